"""Comparisons whose true answer is known, by several tools: what each said, counted, with intervals and bars.

`python -m frostline.harness.trials` runs the tools and keeps one line of JSON for each comparison; everything here reads those
lines and is pure. A comparison is right when code that does the same is not called faster or slower, and when code with extra
work is called slower. The intervals of shares are exact (Clopper and Pearson 1934). They take the comparisons for independent;
those of one command shared its minutes and its background load, so the number of commands is told beside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from scipy import stats

from frostline.results.record import Outcome, UsageError
from frostline.results.verdict import judge_timing

OURS = "frostline"
DEFAULT_SETTING = "fork, in blocks"
BLOCK_SETTINGS = (DEFAULT_SETTING, "spawn, in blocks")
UNCHANGED = "unchanged"  # what other tools say, or leave unsaid, where they report no change; no claim that it is the same
LEAST_SAME, LEAST_FOUND_10, LEAST_FOUND_5, MOST_FALSE, LEAST_SELF = 0.5, 0.98, 0.90, 0.01, 200


@dataclass(frozen=True)
class Trial:
    """One comparison of one step of the planted package by one tool.

    Attributes:
        tool, setting: `asv` and `factor 1.1`, ... : one run of a tool may be read in several settings.
        load: `calm` or `noisy`: whether a background load came and went.
        change: extra work of the second revision in percent; 0 for code that does the same.
        turn: which of the cell's commands it belongs to, from 0.
        step: `gemm`, `norm` or `python`.
        outcome: `faster`, `slower`, `same`, `inconclusive`, `unchanged`; or another of our verdicts, when something failed.
        ratio: second over first, as the tool has it; None where it does not say.
        seconds: of the whole command, divided by its comparisons.
        log_ratios: of our rounds, in their order.
    """

    tool: str
    setting: str
    load: str
    change: int
    turn: int
    step: str
    outcome: str
    ratio: float | None
    seconds: float
    log_ratios: Sequence[float] = ()

    @property
    def differs(self) -> bool:
        """Whether the tool called it faster or slower."""
        return self.outcome in (Outcome.FASTER, Outcome.SLOWER)


@dataclass(frozen=True)
class Calibration:
    """What a planted change really costs: the median over many A B B A in one process of B's time over A's."""

    step: str
    change: int
    ratio: float
    step_ns: float


@dataclass(frozen=True)
class SetUp:
    """What a run was made with. Lines of different machines or versions do not belong together.

    Attributes:
        machine, versions, commit, date: what it ran on, the versions of all that takes part, and ours.
        once_s: by tool, what setting it up took, s: environments and builds. Next to nothing where they were there.
        commands: by way of comparing, what was run to compare two revisions.
    """

    machine: str
    versions: Mapping[str, str]
    commit: str
    date: str
    once_s: Mapping[str, float] = field(default_factory=dict)
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What must be equal for trials to be counted together."""
        return self.machine, tuple(sorted(self.versions.items()))


@dataclass
class Trials:
    """All that a file of trials holds."""

    set_ups: list[SetUp] = field(default_factory=list)
    calibrations: list[Calibration] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Trials:
        """Read a file; a last line that was cut off by an interruption is left out.

        Raises:
            UsageError: a line that is no trial, or lines of different machines or versions.
        """
        kept = cls()
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        for number, line in enumerate(lines, 1):
            if not line.endswith("\n"):
                break
            try:
                kept.add(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise UsageError(f"{path}: line {number} is no trial ({error})") from None
        if len({set_up.identity for set_up in kept.set_ups}) > 1:
            raise UsageError(f"{path}: holds trials of different machines or versions; move it away and begin anew")
        return kept

    def add(self, line: Mapping[str, Any]) -> None:
        """Take one line of the file."""
        content = {name: value for name, value in line.items() if name != "kind"}
        if line["kind"] == "trial":
            self.trials.append(Trial(**content))
        elif line["kind"] == "calibration":
            self.calibrations.append(Calibration(**content))
        elif line["kind"] == "set-up":
            self.set_ups.append(SetUp(**content))
        else:
            raise ValueError(f"kind {line['kind']!r}")


def as_line(item: Trial | Calibration | SetUp) -> str:
    """The line of a file for one item, with its end."""
    kinds = {Trial: "trial", Calibration: "calibration", SetUp: "set-up"}
    return json.dumps({"kind": kinds[type(item)]} | asdict(item)) + "\n"


@dataclass(frozen=True)
class Share:
    """How many of how many, with the ends of the exact interval."""

    count: int
    of: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share itself; NaN of nothing."""
        return self.count / self.of if self.of else math.nan


def share(count: int, of: int, level: float = 0.95) -> Share:
    """A share with its Clopper-Pearson interval; of nothing, everything from 0 to 1 is possible."""
    if not of:
        return Share(0, 0, 0.0, 1.0)
    tail = (1 - level) / 2
    low = float(stats.beta.ppf(tail, count, of - count + 1)) if count else 0.0
    high = float(stats.beta.isf(tail, count + 1, of - count)) if count < of else 1.0
    return Share(count, of, low, high)


@dataclass(frozen=True)
class Tally:
    """What came of all comparisons of one kind."""

    trials: Sequence[Trial]

    def count(self, holds: Callable[[Trial], bool]) -> Share:
        """The share of comparisons for which something holds."""
        return share(sum(map(holds, self.trials)), len(self.trials))

    @property
    def false(self) -> Share:
        """Of code that does the same: called faster or slower."""
        return self.count(lambda trial: trial.differs)

    @property
    def found(self) -> Share:
        """Of code with extra work: called slower."""
        return self.count(lambda trial: trial.outcome == Outcome.SLOWER)

    @property
    def same(self) -> Share:
        """Called the same, as a claim of its own."""
        return self.count(lambda trial: trial.outcome == Outcome.SAME)

    @property
    def seconds(self) -> float:
        """The median time of a comparison, s; NaN of nothing."""
        return median(trial.seconds for trial in self.trials) if self.trials else math.nan

    @property
    def commands(self) -> int:
        """How many commands they come from."""
        return len({(one.tool, one.load, one.change, one.turn, one.setting) for one in self.trials})


def pick(
    trials: Iterable[Trial],
    tool: str,
    settings: Sequence[str] | None = None,
    *,
    change: int | None = None,
    load: str | None = None,
) -> Tally:
    """The comparisons of a tool in some settings (None: all), with a change and under a load."""
    return Tally(
        [
            one
            for one in trials
            if one.tool == tool
            and (settings is None or one.setting in settings)
            and (change is None or one.change == change)
            and (load is None or one.load == load)
        ]
    )


def settings_of(trials: Iterable[Trial]) -> list[tuple[str, str]]:
    """Every tool with each of its settings, ours first, otherwise in the order of the file."""
    found = dict.fromkeys((one.tool, one.setting) for one in trials)
    return sorted(found, key=lambda each: each[0] != OURS)


@dataclass(frozen=True)
class Mark:
    """A bar and how the trials stand to it.

    `meets` is by the share or time as counted, None where nothing was counted; `shown` where the whole interval says so.
    """

    asks: str
    figure: str
    meets: bool | None
    shown: bool | None = None

    @property
    def word(self) -> str:
        """`holds`, `missed` or `not measured`."""
        return "not measured" if self.meets is None else "holds" if self.meets else "missed"


def marks(trials: Sequence[Trial]) -> list[Mark]:
    """Every bar of the method."""
    own = pick(trials, OURS, BLOCK_SETTINGS, change=0)
    planted = {change: pick(trials, OURS, BLOCK_SETTINGS, change=change) for change in (5, 10)}
    calm = pick(trials, OURS, BLOCK_SETTINGS, change=0, load="calm").same
    everything = len(pick(trials, OURS, change=0).trials)
    return [
        Mark(f"at least {LEAST_SELF} self-comparisons", f"{everything}", everything >= LEAST_SELF if everything else None),
        _at_most("false faster or slower: at most 1 % of self-comparisons", own.false, MOST_FALSE),
        _at_least("10 % slowdown found: at least 98 %", planted[10].found, LEAST_FOUND_10),
        _at_least("5 % slowdown found: at least 90 %", planted[5].found, LEAST_FOUND_5),
        _at_least("same reached in at least half of the calm self-comparisons", calm, LEAST_SAME),
        *_fewer_alarms(trials, own),
        _fast_enough(trials, planted[5]),
    ]


def _at_most(asks: str, found: Share, most: float) -> Mark:
    meets = found.value <= most
    return Mark(asks, percent(found), meets if found.of else None, found.high <= most if meets else found.low > most)


def _at_least(asks: str, found: Share, least: float) -> Mark:
    meets = found.value >= least
    return Mark(asks, percent(found), meets if found.of else None, found.low >= least if meets else found.high < least)


def others_of(trials: Sequence[Trial]) -> list[tuple[str, str]]:
    """The other tools, each in the setting that comes first in the file: as its users run it."""
    first: dict[str, str] = {}
    for tool, setting in settings_of(trials):
        if tool != OURS:
            first.setdefault(tool, setting)
    return list(first.items())


def _fewer_alarms(trials: Sequence[Trial], own: Tally) -> list[Mark]:
    """Ours against each other tool as its users run it; where neither raised any, fewer is not possible: missed."""
    told = []
    for tool, setting in others_of(trials):
        theirs = pick(trials, tool, [setting], change=0)
        meets = own.false.value < theirs.false.value if own.trials and theirs.trials else None
        shown = own.false.high < theirs.false.low if meets else own.false.low > theirs.false.high
        figure = f"{percent(own.false)} against {percent(theirs.false)}"
        told.append(Mark(f"fewer false alarms than {tool} ({setting})", figure, meets, shown))
    return told


def _fast_enough(trials: Sequence[Trial], own: Tally) -> Mark:
    """Our time at the 5 % slowdown against the fastest tool, in any setting, that finds it."""
    asks = "no more time than the fastest other tool that finds 90 % of the 5 % slowdowns"
    times = {}
    for tool, setting in settings_of(trials):
        theirs = pick(trials, tool, [setting], change=5)
        if tool != OURS and theirs.found.value >= LEAST_FOUND_5:
            times[f"{tool} ({setting})"] = theirs.seconds
    if not own.trials:
        return Mark(asks, "", None)
    if not times:
        return Mark(asks, f"{own.seconds:.1f} s; no other tool does", True)
    fastest = min(times, key=times.__getitem__)
    return Mark(asks, f"{own.seconds:.1f} s against {times[fastest]:.1f} s, {fastest}", own.seconds <= times[fastest])


@dataclass(frozen=True)
class Truncated:
    """What the first rounds alone would have said, in one look of that many."""

    rounds: int
    false: Share
    found: Mapping[int, Share]
    same: Share
    seconds: float


def by_rounds(trials: Sequence[Trial], rounds: Sequence[int] = (6, 8, 12, 16)) -> list[Truncated]:
    """The trade-off between time and errors: every comparison of ours judged by its first n rounds, in one look.

    Comparisons that were decided in the first look have no more rounds than that; they are judged by what they have.
    """
    mine = pick(trials, OURS, [DEFAULT_SETTING]).trials
    found = []
    for count in rounds:
        judged = [(one, judge_timing(list(one.log_ratios[:count])).outcome) for one in mine if one.log_ratios]
        own = [outcome for one, outcome in judged if one.change == 0]
        changes = sorted({one.change for one, _ in judged} - {0})
        hits = {c: [outcome is Outcome.SLOWER for one, outcome in judged if one.change == c] for c in changes}
        taken = [one.seconds * min(count, len(one.log_ratios)) / len(one.log_ratios) for one, _ in judged]
        false = share(sum(outcome in (Outcome.FASTER, Outcome.SLOWER) for outcome in own), len(own))
        same = share(sum(outcome is Outcome.SAME for outcome in own), len(own))
        each = {change: share(sum(hit), len(hit)) for change, hit in hits.items()}
        found.append(Truncated(count, false, each, same, median(taken) if taken else math.nan))
    return found


def percent(found: Share) -> str:
    """`1.0 % of 201 [0.1, 3.5]`: the share and its interval in percent; a dash of nothing."""
    if not found.of:
        return "–"
    return f"{found.value:.1%}".replace("%", " %") + f" of {found.of} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
