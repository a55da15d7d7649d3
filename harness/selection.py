"""What was asked for: a suite found by name or path, and the cases chosen of it by preset and `--set axis=value,...`.

Runs in a worker (a suite file may import packages that only a side provides), never in the command's own process. Every
measured process loads it, so what only some names need (entry points, near misses) is imported where it is used: 20 ms.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from frostline.harness.declare import Preset, Share, Suite, Value
from frostline.results.record import Case, UsageError

BUNDLED = "frostline.suites"  # by name: no import of ours points from the harness to a suite
ENTRY_POINTS = "frostline.suites"


def load_suite(spec: str) -> Suite:
    """The suite that `spec` names: a bundled one (`grpo`), a file (`bench.py`, `bench.py::softmax`), or an entry point.

    Raises:
        UsageError: there is no such suite, or a file holds none or several and none was named.
    """
    path, _, name = spec.partition("::")
    if path.endswith(".py") or "/" in path:
        return _only_suite(_load_file(Path(path)), name, spec)
    if path in bundled_names():
        return _only_suite(importlib.import_module(f"{BUNDLED}.{path}"), name or path, spec)
    from importlib.metadata import entry_points

    entries = entry_points(group=ENTRY_POINTS)
    for entry in entries:
        if entry.name == path:
            found = entry.load()
            return found if isinstance(found, Suite) else _only_suite(found, name, spec)
    known = [*bundled_names(), *(entry.name for entry in entries)]
    raise UsageError(
        f"SUITE: no suite {spec!r}{_did_you_mean(path, known)}; a suite is {', '.join(known)} or a path like bench.py"
    )


def bundled_names() -> list[str]:
    """The names of the suites that come with Frostline: one a file of `frostline.suites`. Its packages hold their parts."""
    import pkgutil

    found = pkgutil.iter_modules(importlib.import_module(BUNDLED).__path__)
    return sorted(module.name for module in found if not module.ispkg)


def select(suite: Suite, preset: Preset, settings: Sequence[str]) -> list[Case]:
    """The cases of `suite` under a preset, with `settings` like `vocab=4096,8192` replacing an axis' values.

    Raises:
        UsageError: an unknown axis, a value that is not of the axis' type, or a selection without a case.
    """
    typed: dict[str, Sequence[Value]] = {}
    for setting in settings:
        axis, values = split_setting(setting)
        if axis not in suite.axes:
            meant = _did_you_mean(axis, list(suite.axes))
            raise UsageError(f"--set: {suite.name} has no axis {axis!r}{meant}; it has {', '.join(suite.axes) or 'none'}")
        known = [*suite.axes[axis], *preset.values(axis), *suite.choices.get(axis, ())]
        typed[axis] = [_parse(axis, value, known) for value in values.split(",")]
    cases = [case for part in preset.parts or [{}] for case in suite.cases({**preset.axes, **part, **typed})]
    if not cases:
        chosen = _describe({**preset.axes, **typed})
        raise UsageError(f"--set: {suite.name} has no case for {chosen or 'its axes'}: the selection is empty")
    return list({case.id: case for case in cases}.values())


def split_setting(setting: str) -> tuple[str, str]:
    """The axis of `AXIS=VALUE[,VALUE...]`, and its values as typed. Raises UsageError for another form."""
    axis, equals, values = setting.partition("=")
    if not axis or not equals or not values:
        raise UsageError(f"--set: expected AXIS=VALUE[,VALUE...], got {setting!r}")
    return axis, values


def choose_implementations(suite: Suite, asked: Sequence[str], preset: Preset) -> list[str]:
    """The implementations asked for, in the suite's order; without any, the preset's, else all.

    Raises:
        UsageError: one that the suite does not have.
    """
    for name in asked:
        if name not in suite.implementations:
            meant = _did_you_mean(name, list(suite.implementations))
            raise UsageError(
                f"--implementations: {suite.name} has no {name!r}{meant}; it has {', '.join(suite.implementations)}"
            )
    wanted = asked or preset.implementations or suite.implementations
    return [name for name in suite.implementations if name in wanted]


def rounds_of(
    preset: Preset, cases: Sequence[Case], implementations: Sequence[str], settings: Sequence[str], *, asked: bool
) -> list[dict[str, int]]:
    """For each case the rounds of every implementation: the preset's, less by its shares. 0 leaves an implementation out.

    An axis that was set, and implementations that were asked for by name, are not left out: what is typed is meant.
    """
    free = [setting.partition("=")[0] for setting in settings]
    shares = {name: preset.shares.get(name, Share()) for name in implementations}

    def rounds(share: Share, case: Case) -> int:
        return (share.rounds or preset.rounds) if asked or share.includes(case.params, free) else 0

    return [{name: rounds(share, case) for name, share in shares.items()} for case in cases]


def default_preset(suite: Suite, device: str) -> Preset:
    """`paper` with a GPU, `small` without one, where the suite has it; otherwise the axes' own values."""
    return suite.presets.get("paper" if device.startswith("cuda") else "small", Preset())


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"SUITE: no file {str(path)!r}")
    name = f"_frostline_suite_{path.stem}"  # its own: a file named like a package must not stand in for it
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"SUITE: {str(path)!r} is not a Python file")
    # Behind everything else: what lies beside the file is found, and no side's code is hidden by it.
    sys.path.append(str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _only_suite(module: ModuleType, name: str, spec: str) -> Suite:
    suites = {value.name: value for value in vars(module).values() if isinstance(value, Suite)}
    if name:
        if name not in suites:
            meant = _did_you_mean(name, list(suites))
            raise UsageError(f"SUITE: {spec!r}: no suite {name!r}{meant}; the file has {', '.join(suites) or 'none'}")
        return suites[name]
    if len(suites) != 1:
        choice = (
            f"name one: {', '.join(f'{spec}::{found}' for found in suites)}" if suites else "decorate a function with @suite"
        )
        raise UsageError(f"SUITE: {spec!r} holds {len(suites)} suites; {choice}")
    return next(iter(suites.values()))


def _parse(axis: str, text: str, known: Sequence[Value]) -> Value:
    """`text` as a value of the axis: one of its known texts or numbers, or any number where the axis has numbers."""
    kinds = {type(value) for value in known}
    try:
        if kinds == {bool}:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if kinds <= {int}:
            return int(text.replace("_", ""))
        if kinds <= {int, float}:
            return float(text)
    except (ValueError, KeyError):
        wanted = "true or false" if kinds == {bool} else "a whole number" if kinds <= {int} else "a number"
        raise UsageError(f"--set: {axis} takes {wanted}, got {text!r}") from None
    for value in known:
        if str(value) == text:
            return value
    raise UsageError(f"--set: {axis} takes {', '.join(dict.fromkeys(map(str, known)))}, got {text!r}")


def _did_you_mean(given: str, known: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(given, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _describe(chosen: Mapping[str, Sequence[Value]]) -> str:
    return " ".join(f"{axis}={','.join(map(str, values))}" for axis, values in chosen.items())
