"""Patches for Hugging Face models: their own code runs, with this package's kernels where it has some."""

from frostline.kernels.models.apply import apply_to
from frostline.kernels.models.muse_glimmer import apply_to_muse_glimmer, remove_from_muse_glimmer

__all__ = ["apply_to", "apply_to_muse_glimmer", "remove_from_muse_glimmer"]
