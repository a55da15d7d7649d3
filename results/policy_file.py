"""The policy of the gate as a `pyproject.toml` has it: read, and every mistake named by its key and line.

A key that is unknown or a value of a wrong kind is one line that says where it stands, so that a misspelt threshold never means
"no threshold". That holds for all of `[tool.frostline]`: a table `gates` would be a policy that nobody reads. What only a suite
can tell (its presets, axes and their values) is found when the suite is asked, and named by `PolicyFile.mistake`.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from frostline.results.duration import parse_duration
from frostline.results.policy import LAST_GREEN, MERGE_BASE, STORED_SESSION, TABLE, MetricPolicy, Policy, SuitePolicy
from frostline.results.record import METRICS, Outcome, UsageError

OPTIONS = {"inconclusive": ("fail", "warn"), "predicted": ("auto", True, False), "isolation": ("spawn", "fork")}
MAY_BLOCK = (Outcome.SLOWER, Outcome.FASTER, Outcome.MORE, Outcome.LESS, Outcome.BROKEN)

Where: TypeAlias = tuple[str, ...]
Table: TypeAlias = Mapping[str, Any]

OURS: Where = ("tool", "frostline")
GATE: Where = (*OURS, "gate")


class PolicyMistake(UsageError):
    """A mistake in a policy. `where` are the keys that lead to it, `problem` says what is wrong."""

    def __init__(self, where: Where, problem: str, place: str = "") -> None:
        super().__init__(f"gate: {dotted(where)}{place}: {problem}")
        self.where, self.problem = where, problem


@dataclass(frozen=True)
class PolicyFile:
    """The file that a policy was read from, for messages about what stands in it."""

    path: Path
    text: str

    def name(self, *where: str) -> str:
        """A key below the gate's table, with the line on which it is written."""
        return f"{dotted((*GATE, *where))}{self._place((*GATE, *where))}"

    def mistake(self, where: Where, problem: str) -> PolicyMistake:
        """A mistake at a key, with its line."""
        return PolicyMistake(where, problem, self._place(where))

    def _place(self, where: Where) -> str:
        line = line_of(self.text, where)
        return f" (line {line} of {self.path})" if line else ""


def load_policy(pyproject: Path) -> tuple[Policy, PolicyFile]:
    """Read the policy from a `pyproject.toml`.

    Raises:
        UsageError: no such file, no TOML, no such table or no suite in it, or a key that is unknown or of a wrong type.
    """
    try:
        file = PolicyFile(pyproject, pyproject.read_text(encoding="utf-8"))
        content = tomllib.loads(file.text)
    except OSError as problem:
        raise UsageError(f"gate: cannot read {pyproject}: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"gate: {pyproject} is no TOML: {problem}") from problem
    try:
        tool = _typed(content.get("tool", {}), ("tool",), dict, "a table")
        ours = _keys(tool.get("frostline", {}), OURS, ("gate",))
        if "gate" not in ours:
            raise UsageError(f"gate: {pyproject} has no [{TABLE}]; docs/method.md shows one")
        policy = parse_policy(ours["gate"])
    except PolicyMistake as mistake:
        raise file.mistake(mistake.where, mistake.problem) from None
    if not policy.suites:
        raise UsageError(f"gate: [{TABLE}] of {pyproject} names no suite; add [{TABLE}.suites.NAME]")
    return policy, file


def parse_policy(table: Any) -> Policy:
    """The policy that a TOML table says. Raises PolicyMistake for a key that is unknown or of a wrong type."""
    table = _keys(table, GATE, ("suites", "metrics", "blocks", "base", "false_discovery", "budget", "python", *OPTIONS))
    given: dict[str, Any] = {}
    for key, allowed in OPTIONS.items():
        if key in table:
            if not any(type(table[key]) is type(one) and table[key] == one for one in allowed):  # 1 == True
                raise _wrong((*GATE, key), " or ".join(map(_toml, allowed)), table[key])
            given[key] = table[key]
    if "base" in table:
        given["base"] = _base(table["base"], (*GATE, "base"))
    if "false_discovery" in table:
        given["false_discovery"] = _fraction(table["false_discovery"], (*GATE, "false_discovery"))
    if "python" in table:
        given["python"] = _typed(table["python"], (*GATE, "python"), str, "the path of an interpreter or environment")
    if "budget" in table:
        given["budget_s"] = _budget(table["budget"], (*GATE, "budget"))
    if "blocks" in table:
        given["blocks"] = _outcomes(table["blocks"], (*GATE, "blocks"))
    if "suites" in table:
        suites = _typed(table["suites"], (*GATE, "suites"), dict, "a table by suite")
        given["suites"] = tuple(_suite(name, content) for name, content in suites.items())
    if "metrics" in table:
        metrics = _typed(table["metrics"], (*GATE, "metrics"), dict, "a table by metric")
        if not metrics:
            raise PolicyMistake((*GATE, "metrics"), "it names no metric; leave the table out for the default ones")
        given["metrics"] = tuple(_metric(name, content) for name, content in metrics.items())
    return Policy(**given)


def dotted(where: Where) -> str:
    """Keys as TOML writes them, on one line whatever they hold: `tool.frostline.gate.suites."bench.py::nap".rounds`."""
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key) for key in where)


def line_of(text: str, where: Where) -> int | None:
    """The line on which the statement begins that first gives a key, or else the innermost table that it is in.

    TOML's own reader keeps no lines, but what it reads of the first n lines tells by which of them a key is there.
    """
    lines = text.splitlines()
    found: dict[int, int] = {}  # by how many of the keys, the line that brought them
    begun = 0  # lines of which whole statements are read
    for number in range(1, len(lines) + 1):
        try:
            content: Any = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue  # within a value of several lines
        depth = 0
        for key in where:
            if not isinstance(content, dict) or key not in content:
                break
            content, depth = content[key], depth + 1
        found.setdefault(depth, begun + 1)
        if depth == len(where):
            break
        begun = number
    best = max(found, default=0)
    return found[best] if best else None


def _suite(name: str, content: Any) -> SuitePolicy:
    where = (*GATE, "suites", name)
    if not name.strip() or not name.isprintable():
        raise PolicyMistake(where, "this cannot be the name of a suite; wanted one such as grpo or bench.py::mine")
    table = _keys(content, where, ("preset", "axes", "rounds", "max_rounds"))
    axes = _typed(table.get("axes", {}), (*where, "axes"), dict, "a table of values by axis")
    for axis, values in axes.items():
        _axis(axis, values, (*where, "axes", axis))
    rounds, most = (_count(table.get(key), (*where, key)) for key in ("rounds", "max_rounds"))
    if rounds is not None and most is not None and most < rounds:
        raise _wrong((*where, "max_rounds"), f"at least the {rounds} of rounds", most)
    preset = table.get("preset")
    if preset is not None:
        _typed(preset, (*where, "preset"), str, "the name of a preset")
    return SuitePolicy(name, preset, {axis: tuple(values) for axis, values in axes.items()}, rounds, most)


def _axis(axis: str, values: Any, where: Where) -> None:
    """Values go to the suite as `axis=value,value`, so neither name nor value may hold what that form is made of."""
    if not axis or "=" in axis or not axis.isprintable():
        raise PolicyMistake(where, "this cannot be the name of an axis")
    if not isinstance(values, list) or not values or not all(isinstance(one, int | float | str) for one in values):
        raise _wrong(where, "a list of numbers, strings or booleans", values)
    for one in values:
        if isinstance(one, str) and (not one or "," in one or not one.isprintable()):
            raise _wrong(where, "values without commas and line breaks, each in quotes of its own", one)


def _metric(name: str, content: Any) -> MetricPolicy:
    where = (*GATE, "metrics", name)
    if name not in METRICS:
        raise _unknown("no such metric", where, list(METRICS))
    table = _keys(content, where, ("delta", "byte_tolerance"))
    delta = _fraction(table["delta"], (*where, "delta")) if "delta" in table else None
    tolerance = table.get("byte_tolerance")
    if tolerance is not None and (not _is_number(tolerance) or not 0 <= tolerance < float("inf")):
        raise _wrong((*where, "byte_tolerance"), "a number of bytes from 0 on", tolerance)
    return MetricPolicy(name, delta, tolerance)


def _base(value: Any, where: Where) -> str:
    base: str = _typed(value, where, str, f"a revision, {MERGE_BASE}, {LAST_GREEN} or {STORED_SESSION}ID")
    if not base.strip() or not base.isprintable() or base == STORED_SESSION:
        raise _wrong(where, f"a revision, {MERGE_BASE}, {LAST_GREEN} or {STORED_SESSION}ID", base)
    return base


def _budget(value: Any, where: Where) -> float:
    text = _typed(value, where, str, "a time such as 10m, in quotes")
    try:
        return parse_duration(text, "")
    except UsageError as problem:
        raise PolicyMistake(where, str(problem).removeprefix(": ")) from None


def _count(value: Any, where: Where) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise _wrong(where, "a whole number from 1 on", value)
    return value


def _outcomes(value: Any, where: Where) -> tuple[Outcome, ...]:
    allowed = [outcome.value for outcome in MAY_BLOCK]
    if not isinstance(value, list) or not value or any(one not in allowed for one in value):
        raise _wrong(where, f"a list of {', '.join(allowed)}", value)
    return tuple(Outcome(one) for one in value)


def _keys(content: Any, where: Where, known: Sequence[str]) -> Table:
    table: Table = _typed(content, where, dict, "a table")
    for key in table:
        if key not in known:
            raise _unknown("unknown key", (*where, key), known)
    return table


def _unknown(what: str, where: Where, known: Sequence[str]) -> PolicyMistake:
    near = difflib.get_close_matches(where[-1], known, n=1)
    perhaps = f", perhaps {near[0]}" if near else ""
    return PolicyMistake(where, f"{what}{perhaps}; {'known' if 'key' in what else 'there'} are {', '.join(known)}")


def _typed(value: Any, where: Where, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise _wrong(where, wanted, value)
    return value


def _fraction(value: Any, where: Where) -> float:
    if not _is_number(value) or not 0 <= value < 1:
        raise _wrong(where, "a fraction from 0 to below 1 (0.03 is 3 %)", value)
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong(where: Where, wanted: str, given: Any) -> PolicyMistake:
    return PolicyMistake(where, f"wanted {wanted}, got {_toml(given)}")


def _toml(value: Any) -> str:
    """A value as TOML would have it, on one line."""
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{dotted((key,))} = {_toml(one)}' for key, one in value.items())}}}"
    return str(value)
