"""A gate's decision for those who read it elsewhere: Markdown for a summary page, JUnit XML and JSON for machines."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from xml.etree import ElementTree

from frostline.results.evidence import Evidence
from frostline.results.gate import ExitCode, GateResult, Item, Weight
from frostline.results.record import Verdict
from frostline.results.report import verdict_table
from frostline.results.table import escaped


def gate_markdown(result: GateResult, sessions: Sequence[Evidence], most: int | None = None) -> str:
    """The summary of a run: the headline, what did not pass (the worst first), and every verdict folded away.

    Of a page longer than `most` bytes first what is folded away is left out, then the tables give way to as many of the
    sentences as there is room for.
    """
    notable = [item.verdict for item in result.items if item.weight is not Weight.PASSES]
    everything = [item.verdict for item in result.items]
    tables = _tables(notable, sessions)
    said = [f"### {_plain(result.sentences[0])}", *map(_plain, _beside_tables(result))]
    marks = [session.noise_mark for session in sessions if session.noise_mark and not notable]
    said += [_plain(mark) for mark in dict.fromkeys(marks)]
    folded = _tables(everything, sessions)
    fold = ["<details><summary>Every verdict</summary>", *folded, "</details>"] if folded else []
    for parts in ([*said, *tables, *fold], [*said, *tables, LEFT_OUT]):
        page = "\n\n".join(parts) + "\n"
        if most is None or len(page.encode()) <= most:
            return page
    assert most is not None
    return _sentences(result, most)


LEFT_OUT = "The log has every verdict: there are too many for this page."


def _beside_tables(result: GateResult) -> list[str]:
    """The sentences that no row of a table says: of suites and metrics without a figure, and why there was no decision."""
    in_tables = {item.sentence for item in result.items}
    return [sentence for sentence in result.sentences[1:] if sentence not in in_tables]


def _sentences(result: GateResult, most: int) -> str:
    """The headline and as many sentences as fit, each a point of a list."""
    lines = [f"### {_plain(result.sentences[0])}", "", *(f"- {_plain(sentence)}" for sentence in result.sentences[1:])]
    shown: list[str] = []
    room = most - len(LEFT_OUT) - 3
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        shown.append(line)
    return "\n".join([*shown, "", LEFT_OUT]) + "\n"


def _plain(sentence: str) -> str:
    return escaped(" ".join(sentence.split()))


def _tables(verdicts: Sequence[Verdict], sessions: Sequence[Evidence]) -> list[str]:
    """The tables of the sessions that have such verdicts, the one with the worst first."""
    chosen = [(session, [one for one in verdicts if one.session_id == session.session.id]) for session in sessions]
    order = {one.session_id: at for at, one in reversed(list(enumerate(verdicts)))}  # they come with the worst first
    told = sorted((pair for pair in chosen if pair[1]), key=lambda pair: order[pair[0].session.id])
    return [verdict_table(session, own).markdown() for session, own in told]


def gate_junit(result: GateResult) -> str:
    """JUnit XML: a test case for each verdict; what blocks is a failure, what is open an error, what only warns is skipped."""
    root = ElementTree.Element("testsuites", name="frostline gate")
    for suite in dict.fromkeys(item.case.suite for item in result.items):
        items = [item for item in result.items if item.case.suite == suite]
        counts = {tag: sum(TAGS[item.weight] == tag for item in items) for tag in ("failure", "error", "skipped")}
        element = ElementTree.SubElement(
            root,
            "testsuite",
            name=suite,
            tests=str(len(items)),
            failures=str(counts["failure"]),
            errors=str(counts["error"]),
            skipped=str(counts["skipped"]),
        )
        for item in items:
            _test_case(element, item)
    if result.exit_code is ExitCode.NOTHING:
        element = ElementTree.SubElement(root, "testsuite", name="gate", tests="1", failures="0", errors="1", skipped="0")
        nothing = ElementTree.SubElement(element, "testcase", classname="gate", name="something was measured")
        ElementTree.SubElement(nothing, "error", message=" ".join(result.sentences[:2]))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


TAGS = {Weight.BLOCKS: "failure", Weight.OPEN: "error", Weight.WARNS: "skipped", Weight.PASSES: ""}


def _test_case(parent: ElementTree.Element, item: Item) -> None:
    name = f"{item.case.label} {item.verdict.metric} {item.verdict.role} side {item.verdict.position}"
    element = ElementTree.SubElement(parent, "testcase", classname=item.case.suite, name=name)
    if TAGS[item.weight]:
        ElementTree.SubElement(element, TAGS[item.weight], message=item.sentence)


def gate_json(result: GateResult) -> str:
    """The decision as JSON: exit code, sentences, and each verdict with its case; a figure that does not exist is null."""
    content = {
        "exit_code": int(result.exit_code),
        "sentences": list(result.sentences),
        "verdicts": [
            {
                "suite": item.case.suite,
                "case": dict(item.case.params),
                "weight": item.weight,
                "metric": item.verdict.metric,
                "role": item.verdict.role,
                "session": item.verdict.session_id,
                "position": item.verdict.position,
                "outcome": item.verdict.outcome,
                "reason": item.verdict.reason,
                "sentence": item.verdict.sentence,
                "effect": _number(item.verdict.effect),
                "low": _number(item.verdict.low),
                "high": _number(item.verdict.high),
                "level": item.verdict.level,
                "delta": item.verdict.delta,
                "rounds": item.verdict.rounds,
                "flags": list(item.verdict.flags),
            }
            for item in result.items
        ],
    }
    return json.dumps(content, indent=2) + "\n"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
