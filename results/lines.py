"""Where two lines cross: from which x one side needs less memory than another, or is faster, if it ever is.

Between two points a line is drawn straight in both x and value: activations grow by a fixed number of bytes a token on top of
what is fixed, so a peak is affine in the length, up to where another tensor becomes the largest. There it has a kink, so a
crossing between two points that are far apart is told as that range. A chart with a logarithmic axis draws curves.

A peak is exact, a time is not. Two times differ when they lie further apart than both spreads together (the bars of a chart do
not meet) and than the smallest change that is worth a word. Where they do not, that is all that is said, and a crossing lies
between the nearest points where they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np

from frostline.results.record import PEAK_ALLOCATED, Kind, Metric

NARROW = 1.05  # neighbouring points within 5 % of each other
SAME = 1e-9  # relative: what interpolation may round


@dataclass(frozen=True)
class Series:
    """One side's metric over an axis: rising `xs`, a value for each, and the first x at which it ran out of memory.

    `spreads` has half an interquartile range for each value, 0 where none is known; empty for a metric that has none.
    """

    label: str
    xs: Sequence[float]
    values: Sequence[float]
    oom_at: float | None = None
    predicted: bool = False
    metric: Metric = PEAK_ALLOCATED
    spreads: Sequence[float] = ()
    imported: bool = False


@dataclass(frozen=True)
class Crossing:
    """Where two lines change places: at `x` if they were straight between the neighbouring points `low` and `high`.

    They need not be: a peak has a kink where another tensor becomes the largest. So what is said is where it lies for sure.
    """

    x: float
    value: float
    low: float
    high: float

    @property
    def is_narrow(self) -> bool:
        """Whether the neighbouring points are so near that the place between them does not matter."""
        return self.high <= NARROW * self.low

    @property
    def text(self) -> str:
        """A number where that is known, else a range: `835`, `512–1,024`."""
        return format_x(self.x) if self.is_narrow else f"{format_x(self.low)}–{format_x(self.high)}"


@dataclass(frozen=True)
class Comparison:
    """A side against the baseline: where they cross, and what is to be said of the side: `needs less than torch from 835 on`.

    `out_of_memory` says for the baseline and the side where they run out of memory, if they do.
    """

    label: str
    baseline: str
    crossings: Sequence[Crossing]
    predicate: str
    out_of_memory: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        return "; ".join(part for part in (f"{self.label} {self.predicate}", ", ".join(self.out_of_memory)) if part)


def find_crossings(side: Series, baseline: Series, delta: float = 0.0) -> list[Crossing]:
    """Where the two lines change places, over the x that both have.

    Lines that only touch do not cross. Lines that lie on each other for a while cross where they part. Of times, `delta` (a
    fraction) is the smallest difference that counts.
    """
    return _Pair(side, baseline, delta).crossings


def compare_lines(side: Series, baseline: Series, axis: str, delta: float = 0.0) -> Comparison:
    """Compare a side's line with the baseline's and say in a sentence where it is better.

    Args:
        side, baseline: two lines of one metric over the same axis.
        axis: what x is called.
        delta: the smallest difference of times that counts, as a fraction; the spreads count too.
    """
    pair = _Pair(side, baseline, delta)
    predicate = "; ".join(part for part in (_where(pair, axis), _within_the_noise(pair)) if part)
    return Comparison(side.label, baseline.label, pair.crossings, predicate, _out_of_memory(side, baseline))


def together(comparisons: Sequence[Comparison]) -> list[str]:
    """What several comparisons say in as few sentences as possible: sides of which the same is to be said share one."""
    labels: dict[str, list[str]] = {}
    for one in comparisons:
        labels.setdefault(one.predicate, []).append(one.label)
    told = [f"{listed(names)} {_plural(said) if len(names) > 1 else said}" for said, names in labels.items()]
    ended = dict.fromkeys(end for one in comparisons for end in one.out_of_memory)
    return [*told, *([", ".join(ended)] if ended else [])]


def format_x(x: float) -> str:
    """A place on the axis: whole from ten on, with thousands separators (crossings lie between measured points anyway)."""
    return f"{x:,.0f}" if abs(x) >= 10 else f"{x:.3g}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


@dataclass(frozen=True)
class _Words:
    verb: str
    less: str
    more: str
    same: str


_BYTES = _Words("needs", "less", "more", "as much")
_TIMES = _Words("is", "faster", "slower", "as fast")
_OF_SEVERAL = {"needs": "need", "is": "are", "shares": "share"}


@dataclass(frozen=True)
class _Stretch:
    """A range of x in which one line stays on one side of the other: sign -1 where the first is lower, 0 where they meet."""

    start: float
    end: float
    sign: int


@dataclass(frozen=True)
class _Pair:
    """Two lines beside each other, over the x that both have."""

    side: Series
    baseline: Series
    delta: float

    @property
    def words(self) -> _Words:
        return _TIMES if self.side.metric.kind is Kind.TIMING else _BYTES

    @cached_property
    def xs(self) -> list[float]:
        """Each x of either line in the range of both."""
        if not self.side.xs or not self.baseline.xs:
            return []
        start = max(self.side.xs[0], self.baseline.xs[0])
        end = min(self.side.xs[-1], self.baseline.xs[-1])
        return sorted({float(x) for x in (*self.side.xs, *self.baseline.xs) if start <= x <= end})

    @cached_property
    def clear(self) -> list[float]:
        """Each x at which the difference between the lines is known."""
        return [x for x in self.xs if abs(self.apart(x)) > self._noise(x) or not self._noise(x)]

    @cached_property
    def stretches(self) -> list[_Stretch]:
        """The range of x where the difference is known, cut where the lines meet."""
        points: list[tuple[float, int]] = []
        for i, x in enumerate(self.clear):
            if i and self.apart(self.clear[i - 1]) * self.apart(x) < 0:
                points.append((self._meeting(self.clear[i - 1], x), 0))
            points.append((x, int(np.sign(self.apart(x)))))
        return _joined(points)

    @property
    def crossings(self) -> list[Crossing]:
        stretches = [one for one in self.stretches if one.sign]
        return [self.crossing(second.start) for first, second in pairwise(stretches) if first.sign != second.sign]

    def apart(self, x: float) -> float:
        """By how much the side lies above the baseline."""
        ours, theirs = self._at(x)
        return 0.0 if abs(ours - theirs) <= SAME * max(abs(ours), abs(theirs)) else ours - theirs

    def crossing(self, x: float) -> Crossing:
        """A place on the lines, with the nearest points around it where the difference is known (itself, where it is one)."""
        low = max((at for at in self.clear if at <= x), default=x)
        high = min((at for at in self.clear if at >= x), default=x)
        return Crossing(x, self._at(x)[1], low, high)

    def _at(self, x: float) -> tuple[float, float]:
        ours, theirs = (float(np.interp(x, line.xs, line.values)) for line in (self.side, self.baseline))
        return ours, theirs

    def _noise(self, x: float) -> float:
        """What times must differ by at x: both spreads together, and delta of the shorter one. Nothing for exact metrics."""
        if self.side.metric.kind is not Kind.TIMING:
            return 0.0
        lines = (self.side, self.baseline)
        spreads = sum(float(np.interp(x, line.xs, line.spreads)) for line in lines if len(line.spreads))
        return max(spreads, self.delta * min(self._at(x)))

    def _meeting(self, low: float, high: float) -> float:
        """The first place between two x, of opposite signs, where the lines meet."""
        within = [low, *(x for x in self.xs if low < x < high), high]
        for first, second in pairwise(within):
            before, after = self.apart(first), self.apart(second)
            if before * after <= 0:
                return first + before / (before - after) * (second - first)
        raise AssertionError(f"no change of sign between {low} and {high}")


def _joined(points: Sequence[tuple[float, int]]) -> list[_Stretch]:
    """Points with their signs as stretches: a stretch of one sign reaches to the neighbouring points where the lines meet."""
    runs = [(sign, [x for x, _ in run]) for sign, run in groupby(points, key=lambda point: point[1])]
    stretches = []
    for i, (sign, xs) in enumerate(runs):
        start = runs[i - 1][1][-1] if sign and i else xs[0]
        end = runs[i + 1][1][0] if sign and i + 1 < len(runs) else xs[-1]
        stretches.append(_Stretch(start, end, sign))
    return stretches


def _where(pair: _Pair, axis: str) -> str:
    """Where the side is better, over the x where the difference is known, as a predicate of the side."""
    baseline, words, stretches = pair.baseline.label, pair.words, pair.stretches
    kind = "predicted" if pair.side.predicted else "measured"
    if not pair.xs:
        return f"shares no {axis} that was {kind} with {baseline}"
    if not pair.clear:
        return f"is within the noise of {baseline} at every {axis} {kind}"
    signs = {one.sign for one in stretches}
    everywhere = f"at every {axis} {kind}" if pair.clear == pair.xs else "wherever they differ"
    if signs == {0}:
        return f"{words.verb} {words.same} as {baseline} {everywhere}"
    if -1 not in signs:
        told = f"{words.same} as or {words.more}" if 0 in signs else words.more
        return f"{words.verb} {told} than {baseline} {everywhere}"
    better = f"{words.verb} {words.less} than {baseline}"
    if signs == {-1}:
        return f"{better} {everywhere}"
    savings, first, last = _savings(stretches), stretches[0].start, stretches[-1].end
    if (savings[0].start, savings[0].end) == (first, last):
        return f"{better} or {words.same} {everywhere}"
    ranges = (_range(one, first, last, lambda x: pair.crossing(x).text) for one in savings)
    return f"{better} {' and '.join(ranges)}"


def _savings(stretches: Sequence[_Stretch]) -> list[_Stretch]:
    """Where the side is better; two stretches that are parted by a touch alone are one."""
    savings: list[_Stretch] = []
    for one in stretches:
        if one.sign < 0 and savings and savings[-1].end == one.start:
            savings[-1] = _Stretch(savings[-1].start, one.end, -1)
        elif one.sign < 0:
            savings.append(one)
    return savings


def _range(one: _Stretch, first: float, last: float, name: Callable[[float], str]) -> str:
    """A stretch in words; one that reaches an end of what was measured is left open there."""
    if one.start == first:
        return f"up to {name(one.end)}"
    return f"from {name(one.start)} on" if one.end == last else f"between {name(one.start)} and {name(one.end)}"


def _within_the_noise(pair: _Pair) -> str:
    """Where the difference is not known, unless that is everywhere. Three neighbours and more are told by their ends."""
    if not pair.clear or pair.clear == pair.xs:
        return ""
    told: list[str] = []
    for is_clear, run in groupby(pair.xs, key=lambda x: x in pair.clear):
        names = [format_x(x) for x in run]
        if not is_clear:
            told += names if len(names) < 3 else [f"{names[0]} to {names[-1]}"]
    return f"within the noise at {listed(told)}"


def _plural(predicate: str) -> str:
    """What is said of one, said of several."""
    verb, _, rest = predicate.partition(" ")
    return f"{_OF_SEVERAL[verb]} {rest}"


def _out_of_memory(side: Series, baseline: Series) -> list[str]:
    """Who runs out of memory, and where."""
    ends = ((line.label, line.oom_at) for line in (baseline, side))
    return [f"{label} runs out of memory at {format_x(x)}" for label, x in ends if x is not None]
