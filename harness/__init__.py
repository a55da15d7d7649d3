"""How it is measured. A user's suite file needs only what this page exports."""

from frostline.harness.declare import Preset, Share, Step, Suite, skip, suite
from frostline.harness.planning import PlanAnswer, PlanOption, PlanQuestion
from frostline.results.record import Bar

__all__ = ["Bar", "PlanAnswer", "PlanOption", "PlanQuestion", "Preset", "Share", "Step", "Suite", "skip", "suite"]
