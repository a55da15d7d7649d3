"""`frostline plan`: how the head would compute a step of a size."""

from __future__ import annotations

from typing import Annotated

import typer

from frostline.harness.front.options import MarkdownOption, SuiteOption
from frostline.harness.front.printing import REPORT_WIDTH, deliver
from frostline.harness.outputs import check_outputs


def plan(
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of a step, those alone that are computed.")],
    hidden: Annotated[int, typer.Option("--hidden", help="Width of the hidden states.")],
    vocab: Annotated[int, typer.Option("--vocab", help="Rows of the lm_head's weight.")],
    lm_head: Annotated[str, typer.Option("--lm-head", help="frozen or trainable.")] = "frozen",
    bias: Annotated[bool, typer.Option("--bias", help="The lm_head has a bias.")] = False,
    loss: Annotated[
        str, typer.Option("--loss", help="known in the forward (a fused policy loss), cross_entropy, or unknown.")
    ] = "known",
    dtype: Annotated[str, typer.Option("--dtype", help="bfloat16, float16 or float32.")] = "bfloat16",
    entropy: Annotated[bool, typer.Option("--entropy", help="The loss has a gradient through entropies.")] = False,
    masked: Annotated[bool, typer.Option("--masked", help="Some of the tokens may not count.")] = False,
    group: Annotated[int, typer.Option("--group", help="Tokens that are judged together: a completion's length, or 1.")] = 1,
    label_smoothing: Annotated[bool, typer.Option("--label-smoothing", help="The cross entropy is smoothed.")] = False,
    token_accuracy: Annotated[
        bool, typer.Option("--token-accuracy", help="The cross entropy tells token accuracy or predicted tokens.")
    ] = False,
    memory_budget: Annotated[
        str | None,
        typer.Option("--memory-budget", help="Memory above the inputs, like 512MiB. Default: what unfused code takes."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Whose branches are taken: cuda or cpu.")] = "cuda",
    suite: SuiteOption = "grpo",
    markdown: MarkdownOption = None,
) -> None:
    """Print how the head would compute a step of this size, what else was weighed, and why it was not chosen."""
    from frostline.harness.plan_report import ask_plan, plan_table
    from frostline.harness.planning import PlanQuestion, parse_bytes

    check_outputs({"--markdown": markdown})
    budget = None if memory_budget is None else parse_bytes(memory_budget, "--memory-budget")
    asked = tokens, hidden, vocab, lm_head, bias, loss, dtype, entropy, masked, group, budget, device
    question = PlanQuestion(*asked, label_smoothing, token_accuracy)
    table = plan_table(question, ask_plan(suite, question))
    deliver([table], markdown, width=REPORT_WIDTH)
