"""`frostline plan`: asks a suite's plan hook in a worker, and lays out what it answers."""

from __future__ import annotations

from frostline.harness.isolation import Ended, Process
from frostline.harness.planning import PlanAnswer, PlanOption, PlanQuestion
from frostline.results.record import NothingMeasured
from frostline.results.table import Cell, Column, Table
from frostline.results.units import MISSING, format_value

TIMEOUT_S = 300.0  # a suite may import slowly; the answer itself takes milliseconds

_COLUMNS = (
    Column("option"),
    Column("row block x vocab tile", figures=True),
    Column("products", figures=True),
    Column("FLOPs", figures=True),
    Column("predicted peak", figures=True),
    Column("", prose=True),
)
_PEAK = "predicted peak: above the inputs, forward and backward, gradients included"


def ask_plan(suite: str, question: PlanQuestion) -> PlanAnswer:
    """The answer of a suite's hook.

    Raises:
        UsageError: no such suite, or it has no plan to print.
        NothingMeasured: the hook failed.
    """
    with Process(path=None, targets=(), device="cpu", seed=0, threads=1, timeout_s=TIMEOUT_S) as process:
        try:
            reply = process.ask("plan", suite=suite, question=vars(question))
        except Ended as end:
            raise NothingMeasured(f"the plan of {suite} could not be made: {end.reason}") from None
    return PlanAnswer.from_json(reply["answer"])


def plan_table(question: PlanQuestion, answer: PlanAnswer) -> Table:
    """The options as a table, with the sentence why below it."""
    rows = [_row(option) for option in answer.options]
    return Table(f"Plan for {question}", _COLUMNS, rows, (answer.why, *answer.notes, _PEAK))


def _row(option: PlanOption) -> list[Cell]:
    tile = MISSING if option.row_block is None else f"{option.row_block:,} x {option.vocab_tile:,}"
    figures = [
        MISSING if value is None else format_value(value, unit)
        for value, unit in ((option.products, "1"), (option.flops, "FLOP"), (option.peak_bytes, "B"))
    ]
    return [(cell,) for cell in (option.name, tile, *figures, option.note)]
