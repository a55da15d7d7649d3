"""The backward of a norm alone: its tensors, and the norms that it is compared with."""
