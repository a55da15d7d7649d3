"""How it is measured. A user's suite file needs only what this page exports."""

from frostline.harness.declare import Preset, Share, Step, Suite, skip, suite

__all__ = ["Preset", "Share", "Step", "Suite", "skip", "suite"]
