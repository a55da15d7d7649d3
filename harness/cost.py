"""The cost model: what a step takes, told without running it.

The suite's own step runs under torch's `FakeTensorMode`, where a tensor is its shape, dtype and storage size, and an operator
only works those out. The meters that watch a real CPU step watch this one, so a prediction is the measurement of the same
code at any size, without its memory or time: exact for a CPU, in its allocator's granules for a CUDA device.

Fake tensors live on `cpu` (a fake `cuda` tensor aborts a torch without CUDA in autograd). That the measured code takes its
CUDA branches is for the suite's `target_device` hook, a context that the caller hands over.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from frostline.harness.declare import Step
from frostline.harness.meters.counts import count
from frostline.harness.meters.memory import CUDA_GRANULE, LiveBytes, measure_peaks
from frostline.results.record import UsageError


class NotPredictable(UsageError):
    """A step that cannot run without its data: one line with the operator, the place and what to do about it."""


def predict(
    build: Callable[[], Step], *, context: AbstractContextManager[Any] | None = None, device: str = "cpu"
) -> dict[str, float]:
    """Build a step of fake tensors and meter it.

    Args:
        build: makes the step, with its tensors on `cpu`; `Skipped` passes through.
        context: entered while the step is built and run; in it the measured code takes the branches of `device`.
        device: the device that is predicted. For `cuda` each tensor counts in multiples of 512 bytes, as its allocator does.

    Returns:
        `peak_allocated` and `peak_above_inputs` in bytes, `flops` and `operators`, as `measure_peaks` and `count` define
        them.

    Raises:
        NotPredictable: the step reads a tensor's data, or calls an operator that has no fake implementation.
    """
    tracker = LiveBytes(round_to=CUDA_GRANULE if torch.device(device).type == "cuda" else 1)
    # Without fallback kernels: they would run an operator for real on zeros, at full size.
    with _explained(), context or nullcontext(), FakeTensorMode(allow_fallback_kernels=False):
        with tracker:
            step = build()
            counts = count(step)
        return measure_peaks(step, "cpu", repeats=1, tracker=tracker, warm=True) | counts


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except DataDependentOutputException as error:
        raise NotPredictable(
            f"cost: {error.func} at {_place(error)} reads a tensor's data, and a predicted step has none; "
            "give the figure as an argument or an axis of the suite"
        ) from error
    except DynamicOutputShapeException as error:
        raise NotPredictable(
            f"cost: the shape of what {error.func} at {_place(error)} returns depends on a tensor's data, and a predicted step "
            "has none; use an operator of fixed shape (a mask in place of an index), or give the count as an argument"
        ) from error
    except UnsupportedOperatorException as error:
        raise NotPredictable(
            f"cost: {error.func} at {_place(error)} cannot run on fake tensors; "
            "register a fake for it (torch.library.register_fake)"
        ) from error
    except AssertionError as error:
        if "FakeTensor" not in str(error):  # how torch says that a real tensor came in
            raise
        raise NotPredictable(
            f"cost: {_place(error)} uses a tensor that was made outside the suite's function; make it inside"
        ) from error


def _place(error: BaseException) -> str:
    """The innermost line of the traceback that is neither torch's nor ours: `file.py:12`."""
    ours = (Path(torch.__file__).parent, Path(__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _inside(Path(frame.filename), ours)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown line"


def _inside(file: Path, folders: tuple[Path, ...]) -> bool:
    return any(file.is_relative_to(folder) for folder in folders)
