"""What other programs measured, brought in; what this one measured, given out; and databases joined."""
