"""The parts of the suite `cross_entropy`: its loss in plain torch, the float64 reference, and who computes it how."""
