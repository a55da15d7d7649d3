"""Runs of the gate on a change that changes nothing, counted: how often it alarmed, and how often it could not decide.

    python -m frostline.results.alarms results/alarms.jsonl docs/ci.md

`python -m frostline.harness.trials.alarms` keeps one line of JSON for each run. Everything between the two markers of the page
is written anew; the rest of the page stays. The interval of a share is exact (Clopper and Pearson 1934).
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from frostline.results.gate import ExitCode
from frostline.results.record import Outcome, UsageError
from frostline.results.trials import share
from frostline.results.trials_report import splice

MARKS = "<!-- alarms: begin (make alarms) -->", "<!-- alarms: end -->"
ASKED_RUNS, MOST_ALARMS = 50, 1
"""What the project asks of its gate: at most so many alarms in so many runs."""


@dataclass(frozen=True)
class Run:
    """One run of the gate.

    Attributes:
        turn: which one, from 0: the seed of its background load.
        exit_code: what the gate ended with.
        verdicts: of each case and metric the suite, the metric, the outcome and the effect.
        seconds: of the whole command.
        commit, machine, load, date: of what, on what, beside what and when.
        busy: the machine's load average over the last minute when it ended, the gate's own processes included.
    """

    turn: int
    exit_code: int
    verdicts: Sequence[Sequence[str | float | None]]
    seconds: float
    commit: str
    machine: str
    load: str
    busy: float
    date: str

    @property
    def line(self) -> str:
        """The line of a file, with its end."""
        return json.dumps(asdict(self)) + "\n"


def load_runs(path: Path) -> list[Run]:
    """Read a file of runs; a last line that an interruption cut off is left out.

    Raises:
        UsageError: a line that is no run.
    """
    runs = []
    for number, line in enumerate(path.read_text().splitlines(keepends=True) if path.exists() else [], 1):
        if not line.endswith("\n"):
            break
        try:
            runs.append(Run(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise UsageError(f"{path}: line {number} is no run of the gate ({error})") from None
    return runs


def measured_part(runs: Sequence[Run]) -> str:
    """The Markdown between the markers. Raises UsageError where nothing was run."""
    if not runs:
        raise UsageError("no run of the gate to report; run: make alarms")
    counts = {code: sum(run.exit_code == code for run in runs) for code in ExitCode}
    alarmed = share(counts[ExitCode.WORSE], len(runs))
    times = [one[2] for run in runs for one in run.verdicts if one[1] == "step_time"]
    told = {outcome: times.count(outcome) for outcome in Outcome if outcome in times}
    busy = sorted(run.busy for run in runs)
    commits = ", ".join(dict.fromkeys(run.commit[:12] for run in runs))
    days = sorted({run.date[:10] for run in runs})
    origin = (
        f"Measured by `make alarms` on {' and '.join(dict.fromkeys(run.machine for run in runs))}, "
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, revision {commits}. The background load: "
        f"{' and '.join(dict.fromkeys(run.load for run in runs))}, with pauses as long, each run's with a seed of its own; "
        f"the load average over the last minute of a run was {busy[0]:.1f} to {busy[-1]:.1f}. "
        f"A run took {median(run.seconds for run in runs):.0f} s (median)."
    )
    rows = [
        ("runs", f"{len(runs)}" + ("" if len(runs) >= ASKED_RUNS else f" (of the {ASKED_RUNS} that are asked for)")),
        ("alarmed (exit 1)", f"{alarmed.count} [{100 * alarmed.low:.1f}, {100 * alarmed.high:.1f} % of runs]"),
        ("undecided (exit 3)", str(counts[ExitCode.OPEN])),
        ("nothing measured (exit 4)", str(counts[ExitCode.NOTHING])),
        ("passed (exit 0)", str(counts[ExitCode.PASS])),
        ("verdicts on times", ", ".join(f"{count} {outcome}" for outcome, count in told.items())),
    ]
    held = "holds" if alarmed.count <= MOST_ALARMS and len(runs) >= ASKED_RUNS else "not shown yet"
    held = "missed" if alarmed.count > MOST_ALARMS else held
    rows.append((f"at most {MOST_ALARMS} alarm in {ASKED_RUNS} runs", held))
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
    if 2 * (counts[ExitCode.PASS] + counts[ExitCode.WORSE]) < len(runs):
        origin += (
            " Most runs could not tell 3 % from nothing under this load: that they did not alarm says less than a pass would."
        )
    return f"{table}\n\n{textwrap.fill(origin, 132)}"


def main() -> None:
    """Write the page's part anew."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m frostline.results.alarms RUNS.jsonl PAGE.md")
    try:
        page = Path(sys.argv[2])
        page.write_text(splice(page.read_text(), measured_part(load_runs(Path(sys.argv[1]))), MARKS))
    except UsageError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
