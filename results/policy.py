"""The policy of the gate: what `[tool.frostline.gate]` of a `pyproject.toml` says, as frozen dataclasses.

    [tool.frostline.gate]
    inconclusive = "warn"                 # or "fail", the default

    [tool.frostline.gate.suites.grpo]
    preset = "small"
    axes = { vocab = [4096], lm_head = ["frozen", "trainable"] }

    [tool.frostline.gate.metrics.step_time]
    delta = 0.05

A key that is unknown or has a wrong type is one line that names it, so that a misspelt threshold never means "no threshold".
That holds for all of `[tool.frostline]`: a table `gates` would be a policy that nobody reads.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from frostline.results.duration import parse_duration
from frostline.results.judge import Thresholds
from frostline.results.record import FLOPS, METRICS, PEAK_ALLOCATED, STEP_TIME, Outcome, UsageError

OURS, TABLE = "tool.frostline", "tool.frostline.gate"
MERGE_BASE = "merge-base"
OPTIONS = {"inconclusive": ("fail", "warn"), "predicted": ("auto", True, False), "isolation": ("spawn", "fork")}
MAY_BLOCK = (Outcome.SLOWER, Outcome.FASTER, Outcome.MORE, Outcome.LESS, Outcome.BROKEN)

Table: TypeAlias = Mapping[str, Any]


class _Unknown(UsageError):
    """A key or name that there is not. `where` is its dotted name."""

    def __init__(self, what: str, where: str, name: str, known: Sequence[str], line: str = "") -> None:
        near = difflib.get_close_matches(name, known, n=1)
        perhaps = f", perhaps {near[0]}" if near else ""
        super().__init__(
            f"gate: {where}{line}: {what}{perhaps}; {'known' if 'key' in what else 'there'} are {', '.join(known)}"
        )
        self.what, self.where, self.name, self.known = what, where, name, known

    def on_a_line_of(self, pyproject: Path, text: str) -> _Unknown:
        """The same with the place in the file that it was read from, where that can be told."""
        line = _line_of(text, self.where)
        place = f" (line {line} of {pyproject})" if line else ""
        return _Unknown(self.what, self.where, self.name, self.known, place)


@dataclass(frozen=True)
class SuitePolicy:
    """Which cases of a suite are gated, and in how many rounds where times are measured.

    `preset` None means the suite's own choice; `rounds` (of a look) None the preset's; `max_rounds` None two looks.
    """

    name: str
    preset: str | None = None
    axes: Mapping[str, Sequence[int | float | str | bool]] = field(default_factory=dict)
    rounds: int | None = None
    max_rounds: int | None = None


@dataclass(frozen=True)
class MetricPolicy:
    """A gated metric. `delta`: smallest change worth a word, a fraction; `byte_tolerance` in bytes; None means the default."""

    name: str
    delta: float | None = None
    byte_tolerance: float | None = None


DEFAULT_METRICS = tuple(MetricPolicy(metric.name) for metric in (STEP_TIME, PEAK_ALLOCATED, FLOPS))


@dataclass(frozen=True)
class Limits:
    """How long one call of the gate may measure; None leaves it to the policy. Rounds as of a suite's policy."""

    rounds: int | None = None
    max_rounds: int | None = None
    budget_s: float | None = None

    @property
    def given(self) -> list[str]:
        """The options that set them."""
        options = {"--rounds": self.rounds, "--max-rounds": self.max_rounds, "--budget": self.budget_s}
        return [option for option, value in options.items() if value is not None]


@dataclass(frozen=True)
class Policy:
    """What the gate compares, and what makes it fail.

    `blocks`: outcomes that fail it (exit 1). `inconclusive`: whether a verdict that could not be reached fails it too (exit
    3) or is only said. `base`: what is compared with, a revision or `merge-base`. `predicted`: whether the cost model's
    figures are gated: `auto` means on machines without a GPU. `false_discovery`: the share of false ones that is allowed
    among the times that block (Benjamini and Hochberg). `isolation`: how processes are started, `spawn` or `fork`.
    `budget_s`: seconds that measuring may take, all suites together; None sets no limit. `python`: the environment that
    measures, a path from the root of the repository; empty for the command's own.
    """

    suites: Sequence[SuitePolicy] = ()
    metrics: Sequence[MetricPolicy] = DEFAULT_METRICS
    blocks: Sequence[Outcome] = (Outcome.SLOWER, Outcome.MORE, Outcome.BROKEN)
    inconclusive: str = "fail"
    base: str = MERGE_BASE
    predicted: bool | str = "auto"
    false_discovery: float = 0.01
    isolation: str = "spawn"
    budget_s: float | None = None
    python: str = ""

    def limited(self, limits: Limits) -> Policy:
        """The policy with the limits of one call in place of its own, where there are any. Rounds hold for every suite."""
        suites = self.suites
        if limits.rounds or limits.max_rounds:
            suites = [
                replace(
                    suite,
                    rounds=limits.rounds or suite.rounds,
                    max_rounds=limits.max_rounds or (None if limits.rounds else suite.max_rounds),
                )
                for suite in suites
            ]
        return replace(self, suites=suites, budget_s=limits.budget_s or self.budget_s)

    def thresholds(self, suite_deltas: Mapping[str, Mapping[str, float]] | None = None) -> Thresholds:
        """The policy's thresholds for `judge_session`; where it says nothing, a suite's own hold (by suite and metric)."""
        own = {metric.name: metric.delta for metric in self.metrics if metric.delta is not None}
        names = {suite.name for suite in self.suites} | set(suite_deltas or {})
        deltas = {name: {**(suite_deltas or {}).get(name, {}), **own} for name in names}
        tolerances = {metric.name: metric.byte_tolerance for metric in self.metrics if metric.byte_tolerance is not None}
        return Thresholds({"": own, **deltas}, tolerances)


def load_policy(pyproject: Path) -> Policy:
    """Read the policy from a `pyproject.toml`.

    Raises:
        UsageError: no such file, no TOML, no such table or no suite in it, or a key that is unknown or of a wrong type.
    """
    try:
        text = pyproject.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as problem:
        raise UsageError(f"gate: cannot read {pyproject}: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"gate: {pyproject} is no TOML: {problem}") from problem
    try:
        ours = _keys(content.get("tool", {}).get("frostline", {}), OURS, ("gate",))
        if "gate" not in ours:
            raise UsageError(f"gate: {pyproject} has no [{TABLE}]; docs/method.md shows one")
        policy = parse_policy(ours["gate"])
    except _Unknown as mistake:
        raise mistake.on_a_line_of(pyproject, text) from None
    if not policy.suites:
        raise UsageError(f"gate: [{TABLE}] names no suite; add [{TABLE}.suites.NAME]")
    return policy


def parse_policy(table: Table) -> Policy:
    """The policy that a TOML table says. Raises UsageError for a key that is unknown or of a wrong type."""
    table = _keys(table, TABLE, ("suites", "metrics", "blocks", "base", "false_discovery", "budget", "python", *OPTIONS))
    given: dict[str, Any] = {}
    for key, allowed in OPTIONS.items():
        if key in table:
            if table[key] not in allowed:
                raise _wrong(f"{TABLE}.{key}", " or ".join(map(_toml, allowed)), table[key])
            given[key] = table[key]
    if "base" in table:
        given["base"] = _typed(table["base"], f"{TABLE}.base", str, "a revision, or merge-base")
    if "false_discovery" in table:
        given["false_discovery"] = _fraction(table["false_discovery"], f"{TABLE}.false_discovery")
    if "python" in table:
        given["python"] = _typed(table["python"], f"{TABLE}.python", str, "the path of an interpreter or environment")
    if "budget" in table:
        wanted = "a time such as 10m, in quotes"
        budget = _typed(table["budget"], f"{TABLE}.budget", str, wanted)
        given["budget_s"] = parse_duration(budget, f"gate: {TABLE}.budget")
    if "blocks" in table:
        given["blocks"] = _outcomes(table["blocks"], f"{TABLE}.blocks")
    if "suites" in table:
        suites = _typed(table["suites"], f"{TABLE}.suites", dict, "a table by suite")
        given["suites"] = tuple(_suite(name, content) for name, content in suites.items())
    if "metrics" in table:
        metrics = _typed(table["metrics"], f"{TABLE}.metrics", dict, "a table by metric")
        given["metrics"] = tuple(_metric(name, content) for name, content in metrics.items())
    return Policy(**given)


def _suite(name: str, content: Any) -> SuitePolicy:
    where = f"{TABLE}.suites.{name}"
    table = _keys(content, where, ("preset", "axes", "rounds", "max_rounds"))
    axes = _typed(table.get("axes", {}), f"{where}.axes", dict, "a table of values by axis")
    for axis, values in axes.items():
        if not isinstance(values, list) or not values or not all(isinstance(one, int | float | str) for one in values):
            raise _wrong(f"{where}.axes.{axis}", "a list of numbers, strings or booleans", values)
    rounds, most = (_count(table.get(key), f"{where}.{key}") for key in ("rounds", "max_rounds"))
    if rounds is not None and most is not None and most < rounds:
        raise _wrong(f"{where}.max_rounds", f"at least the {rounds} of rounds", most)
    preset = table.get("preset")
    if preset is not None:
        _typed(preset, f"{where}.preset", str, "the name of a preset")
    return SuitePolicy(name, preset, {axis: tuple(values) for axis, values in axes.items()}, rounds, most)


def _metric(name: str, content: Any) -> MetricPolicy:
    where = f"{TABLE}.metrics.{name}"
    if name not in METRICS:
        raise _Unknown("no such metric", where, name, list(METRICS))
    table = _keys(content, where, ("delta", "byte_tolerance"))
    delta = _fraction(table["delta"], f"{where}.delta") if "delta" in table else None
    tolerance = table.get("byte_tolerance")
    if tolerance is not None and (not _is_number(tolerance) or tolerance < 0):
        raise _wrong(f"{where}.byte_tolerance", "a number of bytes from 0 on", tolerance)
    return MetricPolicy(name, delta, tolerance)


def _count(value: Any, where: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise _wrong(where, "a whole number from 1 on", value)
    return value


def _outcomes(value: Any, where: str) -> tuple[Outcome, ...]:
    allowed = [outcome.value for outcome in MAY_BLOCK]
    if not isinstance(value, list) or not value or any(one not in allowed for one in value):
        raise _wrong(where, f"a list of {', '.join(allowed)}", value)
    return tuple(Outcome(one) for one in value)


def _keys(content: Any, where: str, known: Sequence[str]) -> Table:
    table: Table = _typed(content, where, dict, "a table")
    for key in table:
        if key not in known:
            raise _Unknown("unknown key", f"{where}.{key}", key, known)
    return table


def _line_of(text: str, where: str) -> int | None:
    """The line on which a dotted name is written first, or else what it is written in: TOML's own reader keeps no lines."""
    table, best, longest = "", None, 0
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?([^]]+)]", line)
        if header:
            name = table = _bare(header[1])
        elif "=" in line and not line.lstrip().startswith("#"):
            name = f"{table}.{_bare(line.partition('=')[0])}"
        else:
            continue
        if f"{name}.".startswith(f"{where}."):
            return number
        if where.startswith(f"{name}.") and len(name) > longest:
            best, longest = number, len(name)
    return best


def _bare(name: str) -> str:
    """A dotted name without quotes, and without blanks around its parts."""
    return re.sub(r"\s*\.\s*", ".", re.sub("[\"']", "", name)).strip()


def _typed(value: Any, where: str, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise _wrong(where, wanted, value)
    return value


def _fraction(value: Any, where: str) -> float:
    if not _is_number(value) or not 0 <= value < 1:
        raise _wrong(where, "a fraction from 0 to below 1 (0.03 is 3 %)", value)
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong(where: str, wanted: str, given: Any) -> UsageError:
    return UsageError(f"gate: {where}: wanted {wanted}, got {_toml(given)}")


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
