"""The suite for frostline: the steps as they are, and the same where the sides do not fit on the device together."""

import fcntl
import tempfile
from pathlib import Path

from frostline.harness import suite

STEPS = ["gemm", "norm", "python"]
ROOMS = []  # kept open, and so locked, until the process ends


@suite(axes={"step": STEPS}, targets=["planted"])
def steps(_implementation, _device, *, step):
    """One of the steps."""
    import planted

    return getattr(planted, step)()


@suite(axes={"step": STEPS}, targets=["planted"])
def alone(_implementation, _device, *, step):
    """One of the steps, on a device that has room for one process: a lock stands for its memory."""
    import planted

    room = Path(tempfile.gettempdir(), "frostline-trials.lock").open("w")  # noqa: SIM115 - it stays open, see ROOMS
    try:
        fcntl.flock(room, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise MemoryError("another process takes all the room") from None
    ROOMS.append(room)
    return getattr(planted, step)()
