"""`frostline gate`: a comparison whose exit code decides."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frostline.harness.front.options import (
    DEFAULT_DB,
    BudgetOption,
    DbOption,
    MarkdownOption,
    MaxRoundsOption,
    PythonOption,
    RepoOption,
    RoundsOption,
    seconds,
)
from frostline.harness.front.printing import command_line, progress, show, write_markdown
from frostline.harness.interpreters import OWN, Interpreter, find_interpreter
from frostline.harness.outputs import SCREEN, check_outputs

if TYPE_CHECKING:
    from frostline.results.policy import Policy


def gate(
    base: Annotated[
        str | None, typer.Option("--base", help="Default: the policy's, or where HEAD left the main branch.")
    ] = None,
    head: Annotated[str | None, typer.Option("--head", help="Default: the working tree.")] = None,
    repo: RepoOption = Path(),
    rounds: RoundsOption = None,
    max_rounds: MaxRoundsOption = None,
    budget: BudgetOption = None,
    isolation: Annotated[str | None, typer.Option("--isolation", help="spawn or fork. Default: the policy's.")] = None,
    python: PythonOption = None,
    db: DbOption = DEFAULT_DB,
    markdown: MarkdownOption = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the decision as JSON to this file.")] = None,
) -> None:
    """Judge the working tree under the table tool.frostline.gate of the repository's pyproject.toml.

    Exit codes: 0 pass, 1 something got worse or is broken, 2 a mistake in what was asked, 3 no answer, 4 nothing measured,
    70 a fault of frostline, 130 interrupted. Without a GPU the cost model's exact figures decide, at full size.
    """
    from frostline.harness import commands
    from frostline.harness.checkout import find_project
    from frostline.results.evidence import Evidence
    from frostline.results.gate import decide
    from frostline.results.gate_report import gate_json, gate_junit, gate_markdown
    from frostline.results.policy import Limits, load_policy
    from frostline.results.report import verdict_table
    from frostline.results.store import Store

    summary = Path(os.environ["GITHUB_STEP_SUMMARY"]) if os.environ.get("GITHUB_STEP_SUMMARY") else None
    check_outputs({"--markdown": markdown, "--junit": junit, "--json": json_file, "GITHUB_STEP_SUMMARY": summary})
    root = find_project(repo).root
    policy = load_policy(root / "pyproject.toml")
    policy = replace(policy, isolation=isolation or policy.isolation)
    interpreter = _interpreter(python, policy, root)
    limits = Limits(rounds, max_rounds, seconds(budget))
    with Store.open(db) as store:
        policy, done = commands.gate(policy, base, head, repo, store, progress(), command_line(), limits, interpreter)
        evidence = [Evidence.load(store, one.session.id) for one in done]
    verdicts = [verdict for one in done for verdict in one.verdicts]
    result = decide(verdicts, policy, [case for one in done for case in one.plan.cases])
    if markdown != SCREEN:
        for seen in evidence:
            gated = [item.verdict for item in result.items if item.verdict.session_id == seen.session.id]
            show(verdict_table(seen, gated))
        print("\n".join(result.sentences))
    if markdown is not None:
        write_markdown(gate_markdown(result, evidence), markdown)
    for path, text, mode in (
        (summary, gate_markdown(result, evidence), "a"),
        (junit, gate_junit(result), "w"),
        (json_file, gate_json(result), "w"),
    ):
        if path is not None:
            with path.open(mode) as file:
                file.write(text)
    raise typer.Exit(result.exit_code)


def _interpreter(typed: str | None, policy: Policy, root: Path) -> Interpreter:
    """What was typed, from where the command stands, or what the policy names, from the root of the repository."""
    from frostline.results.policy import TABLE

    if typed is not None:
        return find_interpreter(typed)
    return find_interpreter(str(root / Path(policy.python).expanduser()), f"gate: {TABLE}.python") if policy.python else OWN
