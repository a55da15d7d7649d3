"""Rotary embeddings and SwiGLU: work on single values, bound by memory alone. One pass over the data, forward and backward."""
