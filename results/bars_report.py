"""The table of a suite's bars: a line for each, with the figure that was reached and whether it is enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from frostline.results.bars import (
    JudgedBar,
    Reached,
    cases_of,
    format_bar,
    format_figure,
    judge_bars,
    measured,
    stored_bars,
    tally,
)
from frostline.results.evidence import Evidence, varying_axes
from frostline.results.notes import plain, suite_of
from frostline.results.table import Cell, Column, Table


def bars_table(evidence: Evidence) -> Table | None:
    """A row for each bar and case; None where the suite has no bars or the session measured nothing.

    The cases in which a bar was not measured for the same reason share a row. A session none of whose cases a bar is for (those
    of a small preset) gets one sentence in place of rows.
    """
    if not measured(evidence):
        return None
    judged, left_out = judge_bars(evidence), stored_bars(evidence)[1]
    if not judged and not left_out:
        return None
    title = f"Bars of {suite_of(evidence.cases)}: {tally(judged)}"
    if all(one.case is None for one in judged):
        why = [f"they are for other cases: {one.why}" for one in judged[:1]]
        return Table(title, [Column("why", prose=True)], [[(sentence,)] for sentence in (*why, *left_out)])
    columns = [Column("what", prose=True), Column("bar"), Column("figure", figures=True), Column(""), Column("why", prose=True)]
    notes = [
        "a ratio with an interval: side over other by the rounds' ratios, with their 99 % interval; without: of two medians"
    ]
    return Table(title, columns, list(_rows(evidence, judged)), [*notes, *left_out])


def _rows(evidence: Evidence, judged: Iterable[JudgedBar]) -> Iterator[list[Cell]]:
    for (bar, reached, why), found in groupby(judged, key=lambda one: (one.bar, one.reached, one.why)):
        same = list(found)
        if reached is Reached.NOT_MEASURED and len(same) > 1:
            what = f"{bar.says} (in {len(same)} cases)"
            yield [(what,), (format_bar(evidence, bar),), (format_figure(evidence, same[0]),), (reached,), (why,)]
        else:
            yield from (_row(evidence, one) for one in same)


def _row(evidence: Evidence, one: JudgedBar) -> list[Cell]:
    return [
        (_what(evidence, one),),
        (format_bar(evidence, one.bar),),
        (format_figure(evidence, one),),
        (one.reached,),
        (one.why,),
    ]


def _what(evidence: Evidence, one: JudgedBar) -> str:
    """The bar's words, and where it is for several cases which of them it is."""
    if one.case is None or len(cases_of(evidence, one.bar)) == 1:
        return one.bar.says
    place = ", ".join(
        f"{axis} {plain(one.case.params[axis])}"
        for axis in varying_axes(evidence.cases)
        if axis in one.case.params and axis not in one.bar.where
    )
    return f"{one.bar.says} ({place})"
