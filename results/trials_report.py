"""The measured part of `docs/method.md`, from a file of trials.

    python -m frostline.results.trials_report results/method.jsonl docs/method.md

Everything between the two markers of the page is written anew; the rest of the page stays.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from frostline.results.record import UsageError
from frostline.results.trials import (
    DEFAULT_SETTING,
    OURS,
    Mark,
    SetUp,
    Share,
    Tally,
    Trials,
    by_rounds,
    marks,
    percent,
    pick,
    settings_of,
)

BEGIN, END = "<!-- measured: begin (make method) -->", "<!-- measured: end -->"
CHANGES, LOADS = (3, 5, 10), ("noisy", "calm")


def measured_part(kept: Trials) -> str:
    """The Markdown between the markers.

    Raises:
        UsageError: nothing was measured.
    """
    if not kept.trials or not kept.set_ups:
        raise UsageError("no trials to report; run: make method")
    sections = (
        _origin(kept),
        _bars(marks(kept.trials)),
        "![Share of planted slowdowns found, by tool](images/method-found.png)\n",
        "![False alarms against the time of a comparison](images/method-time.png)\n",
        _tools(kept),
        _own(kept),
        _rounds(kept),
        _calibration(kept),
        _commands(kept.set_ups[-1]),
    )
    return "\n".join(sections)


def splice(page: str, part: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """The page with what is between its markers replaced.

    Raises:
        UsageError: a page that has not both markers once, in this order.
    """
    first, last = marks
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end or first in rest or last in after:
        raise UsageError(f"the page needs the lines {first} and {last}, each once and in this order")
    return f"{before}{first}\n\n{part.strip()}\n\n{last}{after}"


def _origin(kept: Trials) -> str:
    last = kept.set_ups[-1]
    versions = ", ".join(f"{name} {value}" for name, value in last.versions.items() if name != "load")
    commits = dict.fromkeys(one.commit[:12] + ("+" if one.commit.endswith("+") else "") for one in kept.set_ups if one.commit)
    commands = Tally(kept.trials).commands
    dates = sorted({one.date[:10] for one in kept.set_ups})
    told = _prose(
        f"Measured by `make method` on {last.machine}; {versions}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))};",
        f"revision {', '.join(commits) or 'unknown'}. {len(kept.trials)} answers of {commands} commands.",
        f"The background load: {last.versions['load']}, with pauses as long, each command's with a seed of its own.",
    )
    return told + "\n"


def _bars(rows: Sequence[Mark]) -> str:
    table = ["| asked | measured [95 % interval] | | the whole interval says so |", "|---|---|---|---|"]
    for mark in rows:
        shown = "" if mark.shown is None else "yes" if mark.shown else "no"
        table.append(f"| {mark.asks} | {mark.figure or '–'} | {mark.word} | {shown if mark.meets is not None else ''} |")
    return "\n".join(["### Bars\n", *table, ""])


def _tools(kept: Trials) -> str:
    heads = ["tool", *(f"false alarms, {load}" for load in LOADS), *(f"{change} % found" for change in CHANGES), "s each"]
    table = [_row(heads), _row(["---"] * len(heads))]
    for tool, setting in settings_of(kept.trials):
        if tool == OURS and setting != DEFAULT_SETTING:
            continue
        own = pick(kept.trials, tool, [setting])
        cells = [percent(pick(kept.trials, tool, [setting], change=0, load=load).false) for load in LOADS]
        cells += [percent(pick(kept.trials, tool, [setting], change=change).found) for change in CHANGES]
        table.append(_row([f"{tool}, {setting}", *cells, f"{own.seconds:.1f}"]))
    words = _prose(
        "A false alarm is `faster` or `slower` for code that does the same; found is `slower`, nothing less.",
        "pytest-benchmark looks",
        "for slowdowns alone, so half of its false differences never show. Seconds are those of the whole",
        "command, over its three",
        "comparisons. The second setting of another tool reads the same run again, at our delta of 3 %.",
    )
    return "\n".join(["### Beside other tools\n", *table, "", words, ""])


def _own(kept: Trials) -> str:
    heads = ["way of running", "load", "comparisons (commands)", "false", "same", "inconclusive", "s each"]
    table = [_row(heads), _row(["---"] * len(heads))]
    for tool, setting in settings_of(kept.trials):
        for load in LOADS if tool == OURS else ():
            own = pick(kept.trials, tool, [setting], change=0, load=load)
            if own.trials:
                open_ended = own.count(lambda trial: trial.outcome == "inconclusive")
                counted = f"{len(own.trials)} ({own.commands})"
                shares = [_short(one) for one in (own.false, own.same, open_ended)]
                table.append(_row([setting, load, counted, *shares, f"{own.seconds:.1f}"]))
    words = _prose(
        "The three comparisons of a command share its minutes, its load and, with `fork`, the processes that the",
        "measured ones are",
        "copied from, so one disturbance can reach all three. The intervals take comparisons for independent:",
        "read them beside the",
        "number of commands.",
    )
    return "\n".join(["### Self-comparisons\n", *table, "", words, ""])


def _rounds(kept: Trials) -> str:
    heads = ["rounds", "false", "same", *(f"{change} % found" for change in CHANGES), "s each"]
    table = [_row(heads), _row(["---"] * len(heads))]
    for seen in by_rounds(kept.trials):
        found = [percent(seen.found[change]) if change in seen.found else "–" for change in CHANGES]
        seconds = "–" if math.isnan(seen.seconds) else f"{seen.seconds:.1f}"
        table.append(_row([str(seen.rounds), percent(seen.false), percent(seen.same), *found, seconds]))
    words = _prose(
        f"The comparisons of `{DEFAULT_SETTING}` judged by their first rounds alone, in one look. What was told",
        "after 8 rounds has",
        "no more than those, so the lines of 12 and 16 rounds differ from that of 8 by the undecided comparisons only.",
    )
    return "\n".join(["### How many rounds\n", *table, "", words, ""])


def _calibration(kept: Trials) -> str:
    steps = list(dict.fromkeys(one.step for one in kept.calibrations))
    table = [_row(["planted", *steps]), _row(["---"] * (len(steps) + 1))]
    for change in sorted({one.change for one in kept.calibrations}):
        ratios = {one.step: one.ratio for one in kept.calibrations if one.change == change}
        table.append(_row([f"+{change} %", *(f"{100 * (ratios[step] - 1):+.1f} %" for step in steps)]))
    words = _prose(
        "What the planted work costs: both revisions in one process, taking turns step by step. One process has",
        "one memory layout,",
        "so this is no better a truth than that; it shows that the planted share is about what was meant.",
    )
    return "\n".join(["### What was planted\n", *table, "", words, ""])


def _commands(last: SetUp) -> str:
    lines = list(_command_lines(last))
    once = ", ".join(f"{tool} {seconds:.0f} s" for tool, seconds in last.once_s.items() if seconds >= 1)
    words = _prose(
        f"Builds and environments are in none of these times. The last run spent on them, where not there yet: {once}."
    )
    return "\n".join(["### The commands\n", "```", *lines, "```\n", words if once else ""])


def _command_lines(last: SetUp) -> Iterator[str]:
    for way, commands in last.commands.items():
        yield f"# {way}"
        yield from commands


def _prose(*parts: str) -> str:
    """Sentences, broken into lines as the rest of the page is."""
    return textwrap.fill(" ".join(parts), 128, break_on_hyphens=False)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _short(found: Share) -> str:
    return f"{100 * found.value:.1f} % [{100 * found.low:.1f}, {100 * found.high:.1f}]" if found.of else "–"


def main() -> None:
    """Write the page."""
    try:
        lines, page = (Path(name) for name in sys.argv[1:])
    except ValueError:
        sys.exit("usage: python -m frostline.results.trials_report LINES PAGE")
    try:
        kept = Trials.load(lines)
        page.write_text(splice(page.read_text(), measured_part(kept)))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for mark in marks(kept.trials):
        print(f"{mark.word:12s} {mark.asks}: {mark.figure}")


if __name__ == "__main__":
    main()
