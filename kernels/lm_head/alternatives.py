"""The plans that were weighed for a problem, and in words why one of them runs: a plan explained."""

from __future__ import annotations

from dataclasses import dataclass

from frostline.kernels.lm_head.plan import candidates, obstacle
from frostline.kernels.lm_head.problem import Plan, Problem, Strategy


@dataclass(frozen=True)
class Alternative:
    """A way through the problem.

    Attributes:
        name: the strategy, and where it has two forms which one.
        plan: in the largest tiles that fit the budget, or the leanest; None where the strategy cannot be.
        note: why it was chosen or not, without a full stop.
    """

    name: str
    plan: Plan | None
    note: str


@dataclass(frozen=True)
class Alternatives:
    """All strategies for a problem, the preferred first and those that cannot be last; the plan that runs; one sentence why."""

    options: tuple[Alternative, ...]
    chosen: Plan
    why: str


def alternatives(problem: Problem) -> Alternatives:
    """Weigh every strategy for a problem, as `make_plan` does, and say why one won.

    Returns:
        The options with predicted peaks, products and FLOPs, the chosen plan (that of `make_plan`), and the sentence.
    """
    weighed = list(candidates(problem))
    fitting = [plan for plan in weighed if plan.fits]
    chosen = fitting[0] if fitting else min(weighed, key=lambda plan: plan.peak_bytes)
    options = [Alternative(_name(plan), plan, _note(plan, chosen)) for plan in weighed]
    missing = [strategy for strategy in Strategy if strategy not in {plan.strategy for plan in weighed}]
    impossible = [Alternative(strategy.value, None, _why_not(strategy, problem)) for strategy in missing]
    return Alternatives((*options, *impossible), chosen, _why(chosen, weighed))


def _name(plan: Plan) -> str:
    if plan.strategy is not Strategy.BLOCKS or not plan.problem.needs.weight:
        return plan.strategy.value
    return f"{plan.strategy}, {'tiles kept' if plan.keep_tiles else 'summed'}"


def _note(plan: Plan, chosen: Plan) -> str:
    if plan == chosen:
        return "chosen"
    if not plan.fits:
        return "does not fit" if chosen.fits else "needs more"
    if plan.products > chosen.products:
        return f"{_products(plan.products - chosen.products)} more"
    return "as many products, more memory in its first tiles"


def _why_not(strategy: Strategy, problem: Problem) -> str:
    """Why a strategy is none of the candidates."""
    needs = problem.needs
    if not needs.any:
        return "no gradient is needed"
    if strategy is Strategy.FORWARD:
        return "a gradient is needed"
    if strategy is Strategy.STREAM:
        trained = "the weight is trained" if needs.weight else "the bias is trained" if needs.bias else ""
        return trained or f"a gradient goes through {'a sum of the logits' if problem.spread else 'the entropy'}"
    return obstacle(problem) or "as many products as stream, and all logits of a block of rows in memory"


def _why(chosen: Plan, weighed: list[Plan]) -> str:
    name, needs = _name(chosen).capitalize(), f"{_products(chosen.products)} and {format_bytes(chosen.peak_bytes)}"
    limit = _limit(chosen.problem)
    if not chosen.fits:
        over = f", {hidden}" if (hidden := _hidden_excess(chosen)) else ""
        return f"{name} runs: nothing fits {limit}, and it needs least ({needs}{over})."
    if len(weighed) == 1:
        return f"{name} runs: nothing else gives less than it computes ({needs}, within {limit})."
    faster = [plan for plan in weighed if plan.products < chosen.products]
    if faster:
        least = min(faster, key=lambda plan: plan.peak_bytes)
        spared = f"{least.strategy} with {_products(least.products)} needs {format_bytes(least.peak_bytes)} at the least"
        return f"{name} runs ({needs}): {spared}, {_hidden_excess(least) or 'more'} than {limit}."
    equals = [plan for plan in weighed if plan.products == chosen.products and plan != chosen]
    if equals:
        return f"{name} runs ({needs}, within {limit}): the fewest products, and of the forms that need as few the smaller."
    return f"{name} runs ({needs}, within {limit}): the fewest products of what can be."


def _hidden_excess(plan: Plan) -> str:
    """By how much a plan is above the limit, where both would read alike; otherwise nothing."""
    limit = plan.problem.memory_limit
    return f"{plan.peak_bytes - limit:,} B more" if format_bytes(plan.peak_bytes) == format_bytes(limit) else ""


def _limit(problem: Problem) -> str:
    """The memory limit in words: whose it is, and how much."""
    size = format_bytes(problem.memory_limit)
    if problem.memory_budget is not None:
        return f"the budget of {size}"
    unfused = problem.unfused_bytes == problem.memory_limit
    return f"the {size} of unfused code" if unfused else f"the {size} below which memory is not looked at"


def _products(count: int) -> str:
    return f"{count} product{'' if count == 1 else 's'}"


def format_bytes(size: int) -> str:
    """A size with three significant digits in its binary unit: `286 MiB`, `2.94 GiB`."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            value = size / unit
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {name}"
    return f"{size} B"
