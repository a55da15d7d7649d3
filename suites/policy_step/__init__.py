"""The parts of the suite `grpo`: its batch, the plain form of its losses, the float64 reference, and other packages' heads."""
