"""The table of a self-comparison: for each step the A/A, the noise of a round, and what changes the machine can tell."""

from __future__ import annotations

from frostline.results.noise import MOST_ROUNDS, SelfComparison, StepNoise
from frostline.results.power import FOUND, smallest_told
from frostline.results.record import Machine
from frostline.results.table import Cell, Column, Table
from frostline.results.units import MISSING, format_percent

LOOKS = (MOST_ROUNDS // 2, MOST_ROUNDS)


def noise_table(found: SelfComparison, machine: Machine) -> Table:
    """A row for each step. The notes say what the columns mean and end with the conclusion."""
    columns = [
        Column("step"),
        Column("A/A ratio", figures=True),
        Column("rounds", figures=True),
        Column("verdict"),
        Column("noise of a round", figures=True),
        *(Column(f"told in {rounds} rounds", figures=True) for rounds in LOOKS),
    ]
    delta = format_percent(found.steps[0].verdict.delta) if found.steps else MISSING
    notes = [
        "A/A ratio: the installed code over itself (99 % interval); noise: robust standard deviation of the rounds' log ratios",
        f"told: the smallest change called faster or slower {format_percent(FOUND)} of the time at that noise (delta {delta})",
        f"device {found.session.device}, {found.session.plan.get('threads')} threads; session {found.session.id}",
        found.conclusion,
    ]
    return Table(f"A/A on {machine.label}", columns, [_row(step) for step in found.steps], notes)


def _row(step: StepNoise) -> list[Cell]:
    verdict = step.verdict
    if not step.judged:
        return [(step.name,), (MISSING,), (str(verdict.rounds),), (verdict.outcome,), *[(MISSING,)] * (1 + len(LOOKS))]
    told = (smallest_told(step.noise, rounds, verdict.delta) for rounds in LOOKS)
    return [
        (step.name,),
        (f"{verdict.effect:.3f} [{verdict.low:.3f}, {verdict.high:.3f}]",),
        (str(verdict.rounds),),
        (verdict.outcome,),
        (f"{100 * step.noise:.2f} %",),
        *((f"{100 * change:.1f} %",) for change in told),
    ]
