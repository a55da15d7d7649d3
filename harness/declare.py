"""What a user writes: a suite, its axes and implementations, and the step that is measured.

    from frostline.harness import suite

    @suite(axes={"rows": [1024, 8192]}, implementations=["torch", "mine"])
    def softmax(implementation, device, *, rows):
        ...
        return step                     # or Step(run=..., outputs=..., reference=...), or skip("why")

Standard library only: a suite without torch never imports it.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from frostline.harness.declared_checks import (
    check_axes,
    check_bar,
    check_names,
    check_omitted,
    check_preset,
    check_rounds,
    check_times,
    check_values,
    every_value,
)
from frostline.harness.planning import PlanAnswer, PlanQuestion
from frostline.results.record import STEP_TIME, Bar, Case, Params, UsageError

Value: TypeAlias = int | float | str | bool
Outputs: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One measurable step.

    `run` is what is timed. `reset` (not timed) runs before every step and drops what the last one left (gradients), so that
    memory above the inputs is told from the inputs. For correctness: `outputs` returns the named tensors of a run,
    `reference` the same names in higher precision, `yardstick` the same names from plain code in the same precision: a side
    is wrong when its error exceeds `allowed_over_yardstick` times the yardstick's (or `tolerance` where there is none).
    `detail` is stored with the process. `omit` names metrics that no meter can read of this step, such as the FLOPs of a kernel
    that hides its products, or the peak of compiled code on a CPU, which torch runs eagerly in the tracker's sight: they are
    left out instead of being wrong.

    `times` names the metrics that the step is timed by, in this order; one that the device has no clock for is left out, and
    the report says why. `step_time` is a step as it is called. A short step may be timed by `host_time` (what the host takes
    to call it), `kernel_time` (its kernels alone) and `cold_step_time` (between events, the L2 cache overwritten before) too.

    `alike` makes another `run` that does the same on tensors of its own. It is called as often as it takes to exceed the L2
    cache, for a CUDA graph in which no run finds its tensors there: that is `kernel_time`. A step without it, or that no graph
    can hold, has the `kernel_time` of a profile.
    """

    run: Callable[[], Any]
    reset: Callable[[], None] | None = None
    outputs: Callable[[], Outputs] | None = None
    reference: Callable[[], Outputs] | None = None
    yardstick: Callable[[], Outputs] | None = None
    tolerance: float = 1e-5
    allowed_over_yardstick: float = 2.0
    detail: Mapping[str, Any] = field(default_factory=dict)
    omit: Collection[str] = ()
    times: Collection[str] = (STEP_TIME.name,)
    alike: Callable[[], Callable[[], Any]] | None = None

    def __post_init__(self) -> None:
        check_omitted(self.omit)
        check_times(self.times)


class Skipped(Exception):
    """Raised by `skip`: this case cannot be, for the reason given."""


def skip(reason: str) -> Any:
    """Say that a case cannot be measured here. Its rows get the status `skipped` with the reason."""
    raise Skipped(reason)


@dataclass(frozen=True)
class Share:
    """What an implementation takes part in, of a preset: fewer rounds, and only the cases that have these values of axes."""

    rounds: int | None = None
    axes: Mapping[str, Sequence[Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rounds is not None:
            check_rounds("Share", self.rounds)
        check_values("Share: axes", self.axes)

    def includes(self, params: Params, free: Collection[str] = ()) -> bool:
        """Whether a case belongs to the share. Axes named in `free` are not looked at."""
        return all(params.get(axis) in values for axis, values in self.axes.items() if axis not in free)


@dataclass(frozen=True)
class Preset:
    """A named selection: values for some axes, and how many rounds. `implementations` empty means all of the suite's.

    `parts` are for cases that are no product of all axes: each has values of further axes and is a product of its own. `shares`
    names implementations that take part in less than that: slow ones, or ones that are there for orientation.
    """

    axes: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    rounds: int = 8
    implementations: Sequence[str] = ()
    shares: Mapping[str, Share] = field(default_factory=dict)
    parts: Sequence[Mapping[str, Sequence[Value]]] = ()

    def __post_init__(self) -> None:
        check_rounds("Preset", self.rounds)
        check_names("Preset: implementations", self.implementations)
        if isinstance(self.parts, str | Mapping) or not isinstance(self.parts, Sequence):
            raise UsageError(f"Preset: parts: got {self.parts!r}, wanted a list of axes with values, like [{{'n': [1]}}]")
        for place, values in (("axes", self.axes), *(("parts", part) for part in self.parts)):
            check_values(f"Preset: {place}", values)
        _check_instances("Preset: shares", self.shares, Share)

    def values(self, axis: str) -> list[Value]:
        """Every value that the preset gives to an axis."""
        return [value for chosen in (self.axes, *self.parts) for value in chosen.get(axis, ())]


@dataclass(frozen=True)
class Suite:
    """A named question with axes and implementations. Made by the decorator `suite`."""

    name: str
    function: Callable[..., Any]
    axes: Mapping[str, Sequence[Value]]
    choices: Mapping[str, Sequence[Value]]
    implementations: Sequence[str]
    baseline: str
    compared: str
    presets: Mapping[str, Preset]
    targets: Sequence[str]
    delta: Mapping[str, float]
    version: str
    keep: Callable[[Params], bool] | None = None
    target_device: Callable[..., AbstractContextManager[Any]] | None = None
    path: str = ""
    bars: Sequence[Bar] = ()
    plan: Callable[[PlanQuestion], PlanAnswer] | None = None
    traffic: Callable[[], Mapping[Any, Callable[..., int]]] | None = None

    def preset(self, name: str) -> Preset:
        """The preset of that name. Raises UsageError where there is none."""
        if name not in self.presets:
            raise UsageError(f"--preset: {self.name} has no preset {name!r}; it has {', '.join(self.presets) or 'none'}")
        return self.presets[name]

    def cases(self, selected: Mapping[str, Sequence[Value]]) -> Iterator[Case]:
        """Every case of the axes, with the values of `selected` in place of the axes' own."""
        values = [selected.get(axis, default) for axis, default in self.axes.items()]
        for point in itertools.product(*values):
            params = dict(zip(self.axes, point, strict=True))
            if self.keep is None or self.keep(params):
                yield Case(self.name, self.version, params)


def suite(
    *,
    axes: Mapping[str, Sequence[Value]] | None = None,
    choices: Mapping[str, Sequence[Value]] | None = None,
    implementations: Sequence[str] = ("default",),
    baseline: str | None = None,
    compared: str | None = None,
    presets: Mapping[str, Preset] | None = None,
    targets: Sequence[str] = (),
    sources: Sequence[ModuleType] = (),
    delta: Mapping[str, float] | None = None,
    version: str | None = None,
    keep: Callable[[Params], bool] | None = None,
    target_device: Callable[..., AbstractContextManager[Any]] | None = None,
    bars: Sequence[Bar] = (),
    plan: Callable[[PlanQuestion], PlanAnswer] | None = None,
    traffic: Callable[[], Mapping[Any, Callable[..., int]]] | None = None,
) -> Callable[[Callable[..., Any]], Suite]:
    """Make a suite of a function `(implementation, device, *, **case) -> step | Step`.

    Args:
        axes: each axis with its default values; every name must be a keyword of the function.
        choices: what else `--set` accepts for an axis whose values are words.
        implementations: what the function can be asked for.
        baseline: the implementation that `run` judges the others against (default: the first).
        compared: the implementation that `compare` fixes (default: the last).
        presets: named selections; `small` is the default without a GPU, `paper` with one.
        targets: packages whose code is in question (`compare` takes them from each source). Empty: what a source provides.
        delta: the smallest change worth a word, by metric, as a fraction (default 0.03 for timing).
        sources: modules (of a package: all its files) that the suite is made of, besides its own file.
        version: otherwise a hash of the file's source and that of `sources`. Verdicts never mix versions.
        keep: a filter over cases.
        target_device: a context in which the measured code takes the branches of the device named, for the cost model. Called
            with `cuda` or `cpu`, and where it has such an argument with `capability`, that of a GPU's generation: `(9, 0)`.
        bars: what figures are asked to reach; `run` and `report` print whether they do.
        plan: what the measured code would do with a problem of a given size, for `frostline plan`.
        traffic: gives the bytes that the measured code's own operators read and write, by operator
            (`torch.ops.mine.attention`), each from the operator's arguments, for the cost model.

    Raises:
        UsageError: an axis that the function has no keyword for, no implementation, a baseline that is none of them, or a
            preset, share, choice or bar of an implementation, axis or value that there is not.
    """

    def decorate(function: Callable[..., Any]) -> Suite:
        name, given = function.__name__, dict(axes or {})
        accepted = inspect.signature(function).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        check_values(f"suite {name}", given)
        for axis in given:
            if axis not in accepted and not takes_any:
                raise UsageError(f"suite {name}: axis {axis!r} is no argument of the function; it takes {', '.join(accepted)}")
        check_names(f"suite {name}: implementations", implementations)
        if not implementations:
            raise UsageError(f"suite {name}: implementations: got none, wanted at least one name")
        leading = list(accepted)[:2]
        if not takes_any and (len(leading) < 2 or set(leading) & set(given)):
            raise UsageError(
                f"suite {name}: the function takes (implementation, device, *, axes...), got ({', '.join(accepted)})"
            )
        for role, chosen in (("baseline", baseline), ("compared", compared)):
            if chosen is not None and chosen not in implementations:
                raise UsageError(f"suite {name}: {role}={chosen!r} is no implementation; it has {', '.join(implementations)}")
        _check_instances(f"suite {name}: presets", presets or {}, Preset)
        check_values(f"suite {name}: choices", choices or {})
        check_axes(f"suite {name}: choices", choices or {}, given)
        known, first = every_value(given, choices or {}, (presets or {}).values()), baseline or implementations[0]
        for called, preset in (presets or {}).items():
            check_preset(f"suite {name}: preset {called!r}", preset, implementations, first, given, known)
        for bar in bars:
            check_bar(name, bar, implementations, given)
        return Suite(
            name=name,
            function=function,
            axes=given,
            choices=dict(choices or {}),
            implementations=tuple(implementations),
            baseline=baseline or implementations[0],
            compared=compared or implementations[-1],
            presets=dict(presets or {}),
            targets=tuple(targets),
            delta=dict(delta or {}),
            version=version or _source_hash(function, sources),
            keep=keep,
            target_device=target_device,
            path=inspect.getsourcefile(function) or "",
            bars=tuple(bars),
            plan=plan,
            traffic=traffic,
        )

    return decorate


def _check_instances(place: str, given: Any, wanted: type) -> None:
    if not isinstance(given, Mapping):
        raise UsageError(f"{place}: got {given!r}, wanted names with a {wanted.__name__} each")
    for name, one in given.items():
        if not isinstance(one, wanted):
            raise UsageError(f"{place}: {name!r}: got {one!r}, wanted a {wanted.__name__}")


def _source_hash(function: Callable[..., Any], sources: Sequence[ModuleType]) -> str:
    """Of the function's file alone, or of all files in a fixed order, with their names."""
    content = Path(inspect.getsourcefile(function) or "").read_bytes()
    for module in sources:
        file = Path(module.__file__ or "")
        files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
        for one in files:
            content += f"\0{module.__name__}:{one.relative_to(file.parent)}\0".encode() + one.read_bytes()
    return hashlib.sha256(content).hexdigest()[:12]
