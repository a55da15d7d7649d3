"""What holds of every plan, whatever the problem: memory, cover, caps, and what a budget may and may not change."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline.kernels import alternatives
from frostline.kernels.lm_head import plan as planning
from frostline.kernels.lm_head.alternatives import Alternative
from frostline.kernels.lm_head.engine import _slices
from frostline.kernels.lm_head.output_tiles import workspace_size
from frostline.kernels.lm_head.plan import Needs, Problem, Strategy, candidates, make_plan, obstacle
from frostline.kernels.lm_head.problem import NEGLIGIBLE_BYTES

GIB = 2**30
CAP = {"cuda": GIB, "cpu": GIB // 16}  # of a tile of logits, whatever the problem's size
SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def sizes(least: int, most: int) -> st.SearchStrategy[int]:
    """Small and large alike, with powers of two and their neighbours."""
    near = st.builds(lambda power, step: 2**power + step, st.integers(0, most.bit_length() - 1), st.integers(-1, 1))
    return st.one_of(near, st.integers(least, most)).map(lambda size: min(max(size, least), most))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    device, group = draw(st.sampled_from(["cuda", "cpu"])), draw(st.one_of(st.just(1), sizes(2, 16384)))
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]))
    return Problem(
        rows=group * draw(sizes(1, max(70000 // group, 1))),
        hidden=draw(sizes(1, 8192)),
        vocab=draw(sizes(2, 262144)),
        dtype=dtype,
        needs=Needs(*(draw(st.booleans()) for _ in range(3))),
        loss_known=draw(st.booleans()),
        entropy=draw(st.booleans()),
        group=group,
        masked=draw(st.booleans()),
        device=device,
        fusable=device == "cuda" and dtype in SIXTEEN_BITS and draw(st.booleans()),
    )


budgets = st.lists(st.integers(2**10, 2**36), min_size=2, max_size=6, unique=True).map(sorted)
quick = settings(max_examples=50, deadline=None)


@quick
@given(problems())
def test_never_above_the_unfused_path(problem):
    """Of a head as heads are: a vocabulary no smaller than the hidden size. Beside few rows, workspaces count."""
    vocab = max(problem.vocab, problem.hidden, 64)
    head = replace(problem, vocab=vocab)
    plan, most = make_plan(head), max(head.unfused_bytes, NEGLIGIBLE_BYTES)
    assert plan.peak_bytes <= most + (0 if head.rows >= 128 else NEGLIGIBLE_BYTES)
    assert plan.fits == (plan.peak_bytes <= most)


@quick
@given(problems())
def test_little_above_it_whatever_the_shape(problem):
    """A vocabulary smaller than the hidden size, down to two words: row statistics and a second hidden gradient, no more."""
    wide = torch.promote_types(problem.dtype, torch.float32).itemsize
    row = (2 * problem.hidden + 64) * wide
    most = max(problem.unfused_bytes, NEGLIGIBLE_BYTES)
    assert make_plan(problem).peak_bytes <= most + problem.rows * row + NEGLIGIBLE_BYTES


@quick
@given(problems(), st.one_of(st.none(), st.integers(1, 2**36)))
def test_tiles_cover_rows_and_vocabulary_exactly(problem, budget):
    for plan in candidates(replace(problem, memory_budget=budget)):
        for size, step in ((problem.rows, plan.row_block), (problem.vocab, plan.vocab_tile)):
            ends = [(part.start, part.stop) for part in _slices(size, step)]
            assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])] and ends[-1][1] == size
        assert plan.vocab_tile <= problem.vocab
        if plan.in_forward:
            assert plan.row_block % problem.group == 0  # a completion is in one block


@quick
@given(problems(), st.one_of(st.none(), st.integers(1, 2**36)))
def test_no_tile_above_the_cap(problem, budget):
    for plan in candidates(replace(problem, memory_budget=budget)):
        height = min(plan.row_block, problem.rows)
        width = problem.vocab if plan.strategy is Strategy.BLOCKS else plan.vocab_tile
        wide = torch.promote_types(problem.dtype, torch.float32).itemsize
        size = height * width * wide
        if (
            plan.fused and plan.strategy is not Strategy.BLOCKS
        ):  # no logits in memory, and of FORWARD nothing but partial figures
            size = height * width * problem.dtype.itemsize if problem.needs.any else workspace_size(height, width) * wide
        assert size <= CAP[problem.device], plan


@quick
@given(problems(), budgets)
def test_a_larger_budget_is_never_slower_nor_a_smaller_one_fatter(problem, budgets):
    plans = [make_plan(replace(problem, memory_budget=budget)) for budget in budgets]
    for smaller, larger in itertools.pairwise(plans):
        assert smaller.flops >= larger.flops
        assert smaller.peak_bytes <= larger.peak_bytes
    for plan, budget in zip(plans, budgets, strict=True):
        assert plan.fits == (plan.peak_bytes <= budget)
        if not plan.fits:
            assert plan.peak_bytes == min(other.peak_bytes for other in candidates(plan.problem)) > budget


@quick
@given(problems())
def test_the_same_plan_every_time(problem):
    first = make_plan(problem)
    planning._make_plan.cache_clear()
    assert make_plan(replace(problem)) == first


@quick
@given(problems(), st.one_of(st.none(), st.integers(1, 2**36)))
def test_the_alternatives_tell_of_the_plan_that_runs(problem, budget):
    asked = replace(problem, memory_budget=budget)
    found = alternatives(asked)
    assert found.chosen == make_plan(asked)
    assert [option.plan for option in found.options if option.note == "chosen"] == [found.chosen]
    assert {option.name.partition(",")[0] for option in found.options} == set(Strategy)
    assert all(option.plan is None or option.plan.products >= found.chosen.products for option in found.options if fits(option))
    assert found.why.endswith(".") and found.why.lower().startswith(found.chosen.strategy.value)


def fits(option: Alternative) -> bool:
    return option.plan is not None and option.plan.fits


@quick
@given(problems())
def test_what_is_formed_in_the_forward(problem):
    plan = make_plan(problem)
    assert not (plan.in_forward and obstacle(problem))
    for candidate in candidates(problem, in_forward=True):
        assert candidate.in_forward or not problem.needs.any
