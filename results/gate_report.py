"""A gate's decision for those who read it elsewhere: Markdown for a summary page, JUnit XML and JSON for machines."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from frostline.results.evidence import Evidence
from frostline.results.gate import ExitCode, GateResult, Item, Weight
from frostline.results.report import verdict_table


def gate_markdown(result: GateResult, sessions: Sequence[Evidence]) -> str:
    """The summary of a run: the headline, what did not pass as a table (worst first), and all verdicts folded away."""
    notable = [item.verdict for item in result.items if item.weight is not Weight.PASSES]
    everything = [item.verdict for item in result.items]
    said = [f"### {result.sentences[0]}", *(result.sentences[1:] if not notable else [])]
    said += dict.fromkeys(session.noise_mark for session in sessions if session.noise_mark and not notable)
    said += _tables(notable, sessions)
    folded = _tables(everything, sessions)
    if folded:
        said += ["<details><summary>Every verdict</summary>", *folded, "</details>"]
    return "\n\n".join(said) + "\n"


def _tables(verdicts: Sequence[Any], sessions: Sequence[Evidence]) -> list[str]:
    chosen = ((session, [one for one in verdicts if one.session_id == session.session.id]) for session in sessions)
    return [verdict_table(session, own).markdown() for session, own in chosen if own]


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
