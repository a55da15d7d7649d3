"""`frostline plan`: the options and why, and one clear line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frostline.harness.planning import PlanAnswer, PlanOption, PlanQuestion, parse_bytes
from frostline.results.record import UsageError

SIZE = ("--vocab", 128256, "--hidden", 4096, "--tokens", 8192)

SUITES = """
from frostline.harness import PlanAnswer, PlanOption, suite

def hook(question):
    if question.tokens == 13:
        raise RuntimeError("no plan for 13 tokens")
    print("noise on stdout breaks nothing")
    return PlanAnswer([PlanOption("only", "chosen", 4, 8, 1, 2 * question.tokens, 2**20)], f"Asked for {question}.")

@suite(plan=hook)
def planned(implementation, device):
    return lambda: None

@suite()
def bare(implementation, device):
    return lambda: None
"""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    file = tmp_path / "bench.py"
    file.write_text(SUITES)
    return file


def test_the_frozen_head_at_the_published_shape(frostline, tmp_path):
    markdown = tmp_path / "plan.md"
    done = frostline("plan", *SIZE, "--lm-head", "frozen", "--markdown", markdown)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "Plan for 8,192 tokens, hidden 4,096, vocab 128,256, bfloat16, lm_head frozen, loss known, on cuda"
    )
    (stream,) = (line for line in lines if line.startswith("stream"))
    assert "4,096 x 16,896" in stream and "17.21 TFLOP" in stream and "MiB" in stream and stream.endswith("chosen")
    (blocks,) = (line for line in lines if line.startswith("blocks"))
    assert "as many products as stream" in blocks
    assert any(line.startswith("Stream runs (2 products and ") for line in lines)
    assert markdown.read_text().startswith("**Plan for 8,192 tokens")


@pytest.mark.parametrize(
    "budget, says",
    [
        ("2GiB", ["Recompute runs (4 products", "more than the budget of 2.00 GiB."]),
        ("512 MiB", ["nothing fits the budget of 512 MiB", "The budget cannot be met. A step would run all the same"]),
    ],
)
def test_a_trained_head_under_a_budget(frostline, budget, says):
    done = frostline("plan", *SIZE, "--lm-head", "trainable", "--memory-budget", budget)
    assert done.returncode == 0, done.stderr
    (recompute,) = (line for line in done.stdout.splitlines() if line.startswith("recompute"))
    assert recompute.endswith("chosen") and "34.43 TFLOP" in recompute
    assert all(words in done.stdout for words in says)


def test_a_suite_of_ones_own_answers(frostline, bench):
    done = frostline("plan", *SIZE, "--suite", f"{bench}::planned", "--bias", "--entropy", "--masked", "--group", 1024)
    assert done.returncode == 0, done.stderr
    assert "only" in done.stdout and "1.000 MiB" in done.stdout and "16.38 kFLOP" in done.stdout
    assert (
        "groups of 1,024" in done.stdout and "with bias" in done.stdout and "with entropies, some tokens masked" in done.stdout
    )


def test_a_hook_that_fails_is_said(frostline, bench):
    done = frostline("plan", "--vocab", 8, "--hidden", 8, "--tokens", 13, "--suite", f"{bench}::planned")
    assert done.returncode == 4
    assert (
        done.stderr.strip() == f"frostline: the plan of {bench}::planned could not be made: RuntimeError: no plan for 13 tokens"
    )


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--lm-head", "cold"], "--lm-head: got 'cold', wanted frozen or trainable"),
        (["--memory-budget", "lots"], "--memory-budget: got 'lots', wanted a size like 512MiB, 1.5GiB or 1000000 (bytes)"),
        (["--suite", "grop"], "SUITE: no suite 'grop' (did you mean grpo?)"),
        (["--tokens", "many"], "Invalid value for '--tokens': "),
    ],
)
def test_mistakes_are_one_line(frostline, arguments, says):
    done = frostline("plan", *SIZE, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"frostline: {says}") and len(done.stderr.splitlines()) == 1


def test_a_suite_without_a_plan(frostline, bench):
    done = frostline("plan", *SIZE, "--suite", f"{bench}::bare")
    assert done.returncode == 2 and done.stderr.strip() == "frostline: --suite: bare has no plan to print; grpo has"


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"loss": "maybe"}, "--loss: got 'maybe', wanted known or cross_entropy or unknown"),
        ({"dtype": "int8"}, "--dtype: got 'int8', wanted bfloat16 or float16 or float32"),
        ({"device": "tpu"}, "--device: got 'tpu', wanted cuda or cpu"),
        ({"tokens": 0}, "--tokens: got 0, wanted a whole number from 1 on"),
        ({"hidden": -1}, "--hidden: got -1, wanted a whole number from 1 on"),
        ({"vocab": 0}, "--vocab: got 0, wanted a whole number from 1 on"),
        ({"token_accuracy": True}, "--token-accuracy: got --loss known, wanted cross_entropy with it"),
        (
            {"loss": "cross_entropy", "group": 2},
            "--group 2: a cross entropy has neither entropies nor groups; leave it out, or take another --loss",
        ),
        ({"group": 3}, "--group: got 3, wanted a divisor of the 8 tokens"),
    ],
)
def test_a_question_that_cannot_be(changes, says):
    with pytest.raises(UsageError) as raised:
        PlanQuestion(**{"tokens": 8, "hidden": 4, "vocab": 16, **changes})
    assert str(raised.value) == says


@pytest.mark.parametrize(
    "text, size",
    [("1000000", 10**6), ("512MiB", 2**29), ("1.5 GiB", 3 * 2**29), ("2GB", 2 * 10**9), ("64kib", 2**16), ("7 B", 7)],
)
def test_sizes(text, size):
    assert parse_bytes(text, "--memory-budget") == size


@pytest.mark.parametrize("text", ["", "0", "0.5 B", "-1MiB", "12 apples", "MiB", "1e9", "nan"])
def test_no_sizes(text):
    with pytest.raises(UsageError, match=r"--memory-budget: got"):
        parse_bytes(text, "--memory-budget")


def test_an_answer_travels_as_json():
    answer = PlanAnswer([PlanOption("a", "chosen", 1, 2, 3, 4, 5), PlanOption("b", "cannot be")], "Because.", ("Note.",))
    assert PlanAnswer.from_json(json.loads(json.dumps(answer.to_json()))) == answer
