"""The cost model: what a step takes, told without running it.

The suite's own step runs under torch's `FakeTensorMode`, where a tensor is its shape, dtype and storage size, and an operator
only works those out. The meters that watch a real CPU step watch this one, so a prediction is the measurement of the same
code at any size, without its memory or time: exact for a CPU, in its allocator's granules for a CUDA device.

Fake tensors live on `cpu` (a fake `cuda` tensor aborts a torch without CUDA in autograd). That the measured code takes its
CUDA branches is for the suite's `target_device` hook, a context that the caller hands over.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from frostline.harness.declare import Step
from frostline.harness.meters.allocations import Ledger, Peak
from frostline.harness.meters.counts import Call, Formulas, Tally
from frostline.harness.meters.launches import noted_launches
from frostline.harness.meters.memory import CUDA_GRANULE, collected
from frostline.harness.meters.shapes import fake_tensors
from frostline.results.record import PEAK_ABOVE_INPUTS, PEAK_ALLOCATED, UsageError

LARGEST = 24  # tensors alive at the peak that are kept by name


class NotPredictable(UsageError):
    """A step that cannot run without its data: one line with the operator, the place and what to do about it."""


@dataclass(frozen=True)
class Cost:
    """What a step takes.

    Attributes:
        figures: `peak_allocated` and `peak_above_inputs` in bytes, `flops` and `operators`, as `measure_peaks` and `count`
            define them.
        peak: the fullest moment, and what was alive then.
        calls: the operators' work.
        launches: of Triton kernels by hand, by name: their memory is in the figures, what they compute and move is not.
        products_in: of "forward" and "backward" those that have matrix products: on a GPU each has a workspace for them.
    """

    figures: Mapping[str, float]
    peak: Peak
    calls: Sequence[Call]
    products_in: Sequence[str]
    launches: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The peak with its largest tensors, and the work by operator, as plain data."""
        peak = {**vars(self.peak), "alive": [one.to_json() for one in self.peak.alive[:LARGEST]]}
        calls = [one.to_json() for one in self.calls if one.flops or one.bytes]
        return {"peak": peak, "calls": calls, "products_in": list(self.products_in), "launches": dict(self.launches)}


def predict(
    build: Callable[[], Step],
    *,
    context: AbstractContextManager[Any] | None = None,
    device: str = "cpu",
    traffic: Formulas | None = None,
) -> Cost:
    """Build a step of fake tensors and meter it.

    A step that leaves memory behind (an optimizer's state, a cache) is metered once more: its first run is not like the others.

    Args:
        build: makes the step, with its tensors on `cpu`; `Skipped` passes through.
        context: entered while the step is built and run; in it the measured code takes the branches of `device`.
        device: the device that is predicted. For `cuda` each tensor counts in multiples of 512 bytes, as its allocator does.
        traffic: what the measured code declares that its own operators read and write, see `Tally`.

    Raises:
        NotPredictable: the step reads a tensor's data, or calls an operator that has no fake implementation.
    """
    ledger = Ledger(round_to=CUDA_GRANULE if torch.device(device).type == "cuda" else 1)
    with _explained(), context or nullcontext(), fake_tensors(), noted_launches() as launches:
        with ledger:
            step = build()
        cost, left = _run(step, ledger, traffic, launches)
        return _run(step, ledger, traffic, launches)[0] if left else cost


def load_shapes() -> None:
    """Have torch import what it imports at the first fake tensor: a second or two."""
    with fake_tensors():
        (torch.ones(2) + 1).clone()


def _run(step: Step, ledger: Ledger, traffic: Formulas | None, launches: Counter[str]) -> tuple[Cost, int]:
    """One run, and how many bytes more are alive after it than before."""
    tally = Tally(traffic=traffic)
    launches.clear()
    with collected(step), ledger.showing(tally.seen):
        ledger.reset_peak()
        before = ledger.current
        step.run()
    peak = ledger.peak_of_step()
    figures = {PEAK_ALLOCATED.name: float(peak.bytes), PEAK_ABOVE_INPUTS.name: float(peak.bytes - before)} | tally.totals()
    told = {metric: value for metric, value in figures.items() if metric not in step.omit}
    with collected(step):
        return Cost(told, peak, tally.calls, sorted(tally.products_in), dict(launches)), ledger.current - before


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
    except RuntimeError as error:
        if "Couldn't swap" not in str(error):  # how torch says that it cannot convert a module of fake parameters
            raise
        raise NotPredictable(
            f"cost: {_place(error)} converts a module, which torch cannot do without data; make it with the dtype and device"
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
