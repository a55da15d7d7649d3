"""The plan of the package's own head, for `frostline plan`: the suite's hook."""

from __future__ import annotations

import torch

from frostline.harness import PlanAnswer, PlanOption, PlanQuestion
from frostline.kernels import Needs, alternatives, plan
from frostline.kernels.lm_head.alternatives import Alternative
from frostline.kernels.lm_head.problem import Plan


def plan_of_head(question: PlanQuestion) -> PlanAnswer:
    """What the head would do, the ways that were weighed, and beside them what plain code would need."""
    trained = question.lm_head == "trainable"
    chosen = plan(
        question.tokens,
        question.hidden,
        question.vocab,
        getattr(torch, question.dtype),
        Needs(hidden=True, weight=trained, bias=trained and question.bias),
        question.memory_budget,
        question.device,
        loss_known=question.loss != "unknown",
        told_again=question.loss == "cross_entropy",
        entropy=question.entropy,
        spread=question.label_smoothing,
        best=question.token_accuracy,
        masked=question.masked,
        group=question.group,
    )
    found = alternatives(chosen.problem)
    return PlanAnswer([*map(_option, found.options), _plain(chosen)], found.why, _notes(chosen))


def _option(option: Alternative) -> PlanOption:
    if option.plan is None:
        return PlanOption(option.name, option.note)
    weighed = option.plan
    return PlanOption(
        option.name,
        option.note,
        row_block=min(weighed.row_block, weighed.problem.rows),
        vocab_tile=weighed.vocab_tile,
        products=weighed.products,
        flops=weighed.flops,
        peak_bytes=weighed.peak_bytes,
    )


def _plain(chosen: Plan) -> PlanOption:
    """Unfused code: logits, then each gradient, one product for each."""
    problem = chosen.problem
    products = 1 + problem.needs.hidden + problem.needs.weight
    flops = products * 2 * problem.rows * problem.hidden * problem.vocab
    return PlanOption(
        "unfused code", "for comparison: all logits in memory", products=products, flops=flops, peak_bytes=problem.unfused_bytes
    )


def _notes(chosen: Plan) -> tuple[str, ...]:
    if chosen.fits:
        return ()
    return ("The budget cannot be met. A step would run all the same, as lean as it can.",)
