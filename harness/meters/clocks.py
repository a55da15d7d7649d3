"""Which clocks read the times that a step asks for on its device, and how each reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from frostline.harness.declare import Step, skip
from frostline.harness.meters.clock import Clock, ColdEvents, clock_for, flusher, time_calls, time_on_host
from frostline.results.record import COLD_STEP_TIME, HOST_TIME, KERNEL_TIME, STEP_TIME

NEEDS_CUDA = (COLD_STEP_TIME.name, KERNEL_TIME.name)


@dataclass(frozen=True)
class Clocks:
    """Clocks by metric.

    Attributes:
        of: the clock of each metric that can be read, in the step's order.
        how: by metric what a reader must know of its figure: which of several ways it was read, or why it was not.
    """

    of: Mapping[str, Clock] = field(default_factory=dict)
    how: Mapping[str, str] = field(default_factory=dict)


def clocks_for(step: Step, device: str) -> Clocks:
    """The clocks of a step that is warm. Raises Skipped where none of its times can be read."""
    cuda = device.startswith("cuda")
    how = {name: f"not read: needs a GPU, and this is {device}" for name in step.times if name in NEEDS_CUDA and not cuda}
    wanted = [name for name in step.times if name not in how]
    if not wanted:
        skip(f"{' and '.join(how)} cannot be read on {device}: a GPU is needed")
    if not cuda:
        return Clocks(dict.fromkeys(wanted, time_on_host), how)
    flush = flusher() if any(name in NEEDS_CUDA for name in wanted) else _nothing
    clocks: dict[str, Clock] = {
        STEP_TIME.name: clock_for(device),
        COLD_STEP_TIME.name: ColdEvents(flush),
        HOST_TIME.name: time_calls,
    }
    if KERNEL_TIME.name in wanted:
        clocks[KERNEL_TIME.name], how[KERNEL_TIME.name] = _kernel_clock(step, flush)
    return Clocks({name: clocks[name] for name in wanted}, how)


def _kernel_clock(step: Step, flush: Callable[[], object]) -> tuple[Clock, str]:
    """Replays of a graph where the step allows them, else profiles; and which."""
    import torch

    from frostline.harness.meters.kernels import Profiles, Replays

    because = "the step has no `alike`"
    if step.alike is not None:
        try:
            replays = Replays(step.alike)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            because = f"no graph: {str(error).splitlines()[0][:200]}"
        else:
            return replays, replays.how
    profiles = Profiles(flush, because)
    profiles(step, 1)  # the first profile of a process takes a second
    return profiles, profiles.how


def _nothing() -> None:
    pass
