"""`frostline gate`: a comparison whose exit code decides."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
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
from frostline.results.record import Interrupted, NothingMeasured, UsageError

if TYPE_CHECKING:
    from frostline.results.evidence import Evidence
    from frostline.results.gate import GateResult
    from frostline.results.policy import Policy
    from frostline.results.policy_file import PolicyFile


def gate(
    base: Annotated[
        str | None, typer.Option("--base", help="Default: the policy's, or where HEAD left the main branch.")
    ] = None,
    head: Annotated[str | None, typer.Option("--head", help="Default: the working tree.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say in words what the policy asks and which base it takes; measure nothing.")
    ] = False,
    repo: RepoOption = Path(),
    rounds: RoundsOption = None,
    max_rounds: MaxRoundsOption = None,
    budget: BudgetOption = None,
    isolation: Annotated[str | None, typer.Option("--isolation", help="spawn or fork. Default: the policy's.")] = None,
    python: PythonOption = None,
    db: DbOption = DEFAULT_DB,
    markdown: MarkdownOption = None,
    comment: Annotated[
        Path | None,
        typer.Option("--comment-file", help="Write a comment for the pull request to this file, for a bot to post."),
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the decision as JSON to this file.")] = None,
) -> None:
    """Judge the working tree under the table tool.frostline.gate of the repository's pyproject.toml.

    Exit codes: 0 pass, 1 something got worse or is broken, 2 a mistake in what was asked, 3 no answer, 4 nothing measured,
    70 a fault of frostline, 130 interrupted. Without a GPU the cost model's exact figures decide, at full size.
    """
    from frostline.harness import gating
    from frostline.harness.base import choose_base
    from frostline.harness.checkout import find_project
    from frostline.harness.sources import check
    from frostline.results.evidence import Evidence
    from frostline.results.gate import decide, no_decision
    from frostline.results.policy import Limits
    from frostline.results.policy_file import load_policy
    from frostline.results.policy_words import policy_words
    from frostline.results.store import Store

    outputs = _Outputs.asked(markdown, comment, junit, json_file)
    try:
        root = find_project(repo).root
        policy, file = load_policy(root / "pyproject.toml")
        limits = Limits(rounds, max_rounds, seconds(budget))
        policy = replace(policy, isolation=isolation or policy.isolation)
        if explain:
            with Store.open(db, create=False) if db.exists() else nullcontext() as store:
                chosen = choose_base(policy, base, root, store, file.name("base"))
            check(chosen.asked, repo)
            print("\n".join(policy_words(policy.limited(limits), chosen.words, predicted=gating.is_predicted(policy))))
            return
        interpreter = _interpreter(python, policy, file, root)
        told = progress()
        with Store.open(db) as store:
            chosen = choose_base(policy, base, root, store, file.name("base"))
            for note in (f"compared with {chosen.words}", *chosen.notes):
                told.note(note)
            command = command_line()
            gated = gating.gate(policy, file, chosen, head, repo, store, told, command, limits, interpreter)
            evidence = [Evidence.load(store, one.session.id) for one in gated.sessions]
    except (NothingMeasured, UsageError, Interrupted, KeyboardInterrupt) as reason:
        if isinstance(reason, NothingMeasured):
            outputs.write(no_decision(str(reason)), [])
        else:
            outputs.annotate(str(reason) or "interrupted")
        raise
    verdicts = [verdict for one in gated.sessions for verdict in one.verdicts]
    cases = [case for one in gated.sessions for case in one.plan.cases]
    result = decide(verdicts, gated.policy, cases, gated.failed)
    outputs.show(result, evidence)
    outputs.write(result, evidence)
    raise typer.Exit(result.exit_code)


@dataclass(frozen=True)
class _Outputs:
    """Where a decision goes: the log, and the files that were asked for or that GitHub names."""

    markdown: Path | None
    comment: Path | None
    junit: Path | None
    json_file: Path | None
    summary: Path | None
    on_github: bool

    @classmethod
    def asked(cls, markdown: Path | None, comment: Path | None, junit: Path | None, json_file: Path | None) -> _Outputs:
        """Raises UsageError for a file that cannot be written: before anything is measured, not after minutes of it."""
        summary = Path(os.environ["GITHUB_STEP_SUMMARY"]) if os.environ.get("GITHUB_STEP_SUMMARY") else None
        files = {"--markdown": markdown, "--comment-file": comment, "--junit": junit, "--json": json_file}
        check_outputs({**files, "GITHUB_STEP_SUMMARY": summary})
        return cls(markdown, comment, junit, json_file, summary, os.environ.get("GITHUB_ACTIONS") == "true")

    def show(self, result: GateResult, evidence: Sequence[Evidence]) -> None:
        """The tables and sentences in the log; none where the screen has the Markdown alone."""
        from frostline.results.report import verdict_table

        if self.markdown == SCREEN:
            return
        for seen in evidence:
            gated = [item.verdict for item in result.items if item.verdict.session_id == seen.session.id]
            show(verdict_table(seen, gated))
        print("\n".join(result.sentences))

    def write(self, result: GateResult, evidence: Sequence[Evidence]) -> None:
        """Every file, and the annotations."""
        from frostline.results.gate_annotations import MOST_OF_A_SUMMARY, annotation_lines, gate_comment
        from frostline.results.gate_report import gate_json, gate_junit, gate_markdown

        if self.markdown is not None:
            write_markdown(gate_markdown(result, evidence), self.markdown)
        if self.summary is not None:  # other commands of the step may have written to it
            written = self.summary.stat().st_size if self.summary.exists() else 0
            with self.summary.open("a", encoding="utf-8") as file:
                file.write(gate_markdown(result, evidence, most=max(2000, MOST_OF_A_SUMMARY - written)))
        for path, text in (
            (self.comment, gate_comment(result, evidence)),
            (self.junit, gate_junit(result)),
            (self.json_file, gate_json(result)),
        ):
            if path is not None:
                path.write_text(text, encoding="utf-8")
        if self.on_github:
            self._say(list(annotation_lines(result)))

    def annotate(self, message: str) -> None:
        """One annotation for what ended the gate before it could decide."""
        from frostline.results.gate_annotations import annotation

        if self.on_github:
            self._say([annotation("error", message)])

    def _say(self, lines: Sequence[str]) -> None:
        for line in lines:  # GitHub reads both streams
            print(line, file=sys.stderr if self.markdown == SCREEN else None)


def _interpreter(typed: str | None, policy: Policy, file: PolicyFile, root: Path) -> Interpreter:
    """What was typed, from where the command stands, or what the policy names, from the root of the repository."""
    if typed is not None:
        return find_interpreter(typed)
    if not policy.python:
        return OWN
    return find_interpreter(str(root / Path(policy.python).expanduser()), f"gate: {file.name('python')}")
