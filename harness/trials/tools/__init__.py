"""The tools that are compared: each drives one by its own commands and reads its answer."""
