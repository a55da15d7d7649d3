"""The head: one streaming pass over the logits of `hidden @ weight.T`, and the losses on it."""
