"""What the gate found as GitHub takes it: `::error` and `::warning` lines in a log, and a comment that a bot keeps current.

The forms are those of GitHub's workflow commands. Ten annotations of a kind are shown for a step, so there are no more of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frostline.results.evidence import Evidence
from frostline.results.gate import ExitCode, GateResult, Weight
from frostline.results.gate_report import gate_markdown

MOST_ANNOTATIONS = 10  # of a kind and step
COMMENT_MARK = "<!-- frostline gate -->"
"""The first line of a comment: a bot that finds it in one of its own comments replaces that one."""
MOST_OF_A_COMMENT = 65_536  # characters that GitHub takes
MOST_OF_A_SUMMARY = 1_048_576  # bytes that GitHub takes of a step
TITLE = "frostline gate"


def annotation_lines(result: GateResult) -> Iterator[str]:
    """A line for each verdict that did not pass, the worst first; where nothing was decided one that says why."""
    errors = [item.sentence for item in result.items if item.weight in (Weight.BLOCKS, Weight.OPEN)]
    if result.exit_code is ExitCode.NOTHING:
        errors = [" ".join(result.sentences[:2]), *errors]
    yield from _lines("error", errors)
    yield from _lines("warning", [item.sentence for item in result.items if item.weight is Weight.WARNS])


def annotation(kind: str, message: str) -> str:
    """A workflow command, escaped as GitHub's toolkit does it: nothing of the message can end it or begin another."""
    safe = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{kind} title={TITLE}::{safe}"


def gate_comment(result: GateResult, sessions: Sequence[Evidence]) -> str:
    """The summary as a comment on a pull request, short enough for one."""
    return f"{COMMENT_MARK}\n{gate_markdown(result, sessions, most=MOST_OF_A_COMMENT - len(COMMENT_MARK) - 1)}"


def _lines(kind: str, messages: Sequence[str]) -> Iterator[str]:
    shown = messages if len(messages) <= MOST_ANNOTATIONS else messages[: MOST_ANNOTATIONS - 1]
    for message in shown:
        yield annotation(kind, message)
    if left := len(messages) - len(shown):
        yield annotation(kind, f"{left} more; the log and the summary have all")
