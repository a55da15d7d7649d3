"""The gate: every exit code and their order, the policy's keys, and what is written for log, pull request and machines."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from frostline.results.evidence import Evidence
from frostline.results.gate import ExitCode, Weight, decide, exit_code_for, no_decision
from frostline.results.gate_annotations import COMMENT_MARK, MOST_ANNOTATIONS, annotation, annotation_lines, gate_comment
from frostline.results.gate_report import gate_json, gate_junit, gate_markdown
from frostline.results.judge import judge_session
from frostline.results.policy import MetricPolicy, Policy, SuitePolicy
from frostline.results.record import Outcome, Reason, Role, Status

GRPO = Policy(suites=(SuitePolicy("grpo"),))


def rounds(effect, deviation=0.01, count=8):
    drawn = np.random.default_rng(1).normal(0.0, 1.0, count)
    return effect + deviation * (drawn - drawn.mean()) / drawn.std(ddof=1)


@pytest.fixture
def judged(make_world):
    """Judge cases given by their effect on time, their ratio of memory, or a status; one case each."""

    def judge(*cases, deviation=0.01):
        world = make_world(vocabularies=[10 + i for i in range(len(cases))])
        for number, case in enumerate(cases):
            effect, memory, status = (0.0, 1.0, case) if isinstance(case, Status) else (*case, Status.OK)
            if case is Status.SKIPPED:
                continue  # nothing of this case was measured
            for round_number, log_ratio in enumerate(rounds(effect, deviation)):
                world.process(0, round_number, case=number, measurements={"step_time": 1e6, "peak_allocated": 1000.0})
                if status is Status.OK:
                    figures = {"step_time": 1e6 * math.exp(effect), "peak_allocated": 1000.0 * memory}
                    world.process(1, round_number, case=number, measurements=figures)
                    world.ratio(1, round_number, float(log_ratio), case=number)
            if status is not Status.OK:
                world.process(1, 0, case=number, status=status, reason="it says why")
        evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes, world.ratios)
        return judge_session(evidence), evidence

    return judge


SAME, SLOWER, MORE, OPEN = (0.0, 1.0), (0.2, 1.0), (0.0, 1.1), (0.025, 1.0)
BROKEN, MISSING = Status.CRASH, Status.SKIPPED


class TestExitCodes:
    @pytest.mark.parametrize(
        ("cases", "code"),
        [
            ([SAME], ExitCode.PASS),
            ([(-0.2, 0.5)], ExitCode.PASS),
            ([SLOWER], ExitCode.WORSE),
            ([MORE], ExitCode.WORSE),
            ([BROKEN], ExitCode.WORSE),
            ([OPEN], ExitCode.OPEN),
            ([MISSING], ExitCode.NOTHING),
            ([SAME, MISSING], ExitCode.OPEN),
            ([SAME, SLOWER, OPEN, BROKEN, MISSING], ExitCode.WORSE),
            ([SAME, BROKEN], ExitCode.WORSE),
        ],
    )
    def test_codes(self, judged, cases, code):
        verdicts, evidence = judged(*cases)
        assert decide(verdicts, GRPO, evidence.cases).exit_code is code
        assert exit_code_for(verdicts) is code

    def test_no_verdicts_at_all_are_never_green(self):
        assert decide([], Policy(), []).exit_code is ExitCode.NOTHING
        assert exit_code_for([]) is ExitCode.NOTHING

    def test_a_suite_of_the_policy_without_a_figure_goes_before_inconclusive_and_after_worse(self, judged):
        both = replace(GRPO, suites=(SuitePolicy("grpo"), SuitePolicy("norms")))
        for case, code in [(SAME, ExitCode.NOTHING), (OPEN, ExitCode.NOTHING), (SLOWER, ExitCode.WORSE)]:
            verdicts, evidence = judged(case)
            result = decide(verdicts, both, evidence.cases)
            assert result.exit_code is code
            assert "Nothing of norms was measured." in result.sentences

    def test_inconclusive_may_warn_but_nothing_measured_may_not(self, judged):
        warn = replace(GRPO, inconclusive="warn")
        for cases, code in [([OPEN], ExitCode.PASS), ([SAME, MISSING], ExitCode.OPEN), ([MISSING], ExitCode.NOTHING)]:
            verdicts, evidence = judged(*cases)
            assert decide(verdicts, warn, evidence.cases).exit_code is code

    def test_a_failed_baseline_is_no_pass(self, judged):
        verdicts, evidence = judged(SAME)
        failed = [replace(one, outcome=Outcome.INCOMPARABLE, reason=Reason.BASELINE_FAILED) for one in verdicts]
        assert decide(failed, replace(GRPO, inconclusive="warn"), evidence.cases).exit_code is ExitCode.OPEN

    def test_only_what_the_policy_names_is_gated(self, judged):
        verdicts, evidence = judged(MORE)
        assert decide(verdicts, replace(GRPO, metrics=(MetricPolicy("step_time"),)), evidence.cases).exit_code is ExitCode.PASS
        assert decide(verdicts, replace(GRPO, metrics=(MetricPolicy("flops"),)), evidence.cases).exit_code is ExitCode.NOTHING
        assert decide(verdicts, replace(GRPO, blocks=(Outcome.SLOWER,)), evidence.cases).exit_code is ExitCode.PASS

    def test_a_broken_side_blocks_whichever_metric_it_stands_under(self, judged):
        verdicts, evidence = judged(BROKEN)
        result = decide(verdicts, replace(GRPO, metrics=(MetricPolicy("flops"),)), evidence.cases)
        assert result.exit_code is ExitCode.WORSE
        assert len(result.items) == 1, "and is said once"

    def test_predictions_count_unless_switched_off(self, judged):
        verdicts, evidence = judged(MORE)
        predicted = [replace(one, role=Role.PREDICT) for one in verdicts if one.metric == "peak_allocated"]
        assert decide(predicted, GRPO, evidence.cases).exit_code is ExitCode.WORSE
        assert decide(predicted, replace(GRPO, predicted=False), evidence.cases).exit_code is ExitCode.NOTHING


class TestDiscoveryRate:
    def test_one_weak_slowdown_among_many_is_inconclusive(self, judged):
        weak = (0.04, 1.0)  # alone it is beyond its 99 % interval, by little
        alone, evidence = judged(weak, deviation=0.03)
        assert decide(alone, GRPO, evidence.cases).exit_code is ExitCode.WORSE
        many, evidence = judged(weak, *[SAME] * 40, deviation=0.03)
        result = decide(many, replace(GRPO, inconclusive="warn"), evidence.cases)
        assert result.exit_code is ExitCode.PASS
        assert any("one such by chance is likely" in sentence for sentence in result.sentences)

    def test_a_strong_slowdown_among_many_is_found(self, judged):
        verdicts, evidence = judged((0.1, 1.0), *[SAME] * 40)
        assert decide(verdicts, GRPO, evidence.cases).exit_code is ExitCode.WORSE

    def test_bytes_are_not_corrected(self, judged):
        verdicts, evidence = judged((0.0, 1.001), *[SAME] * 40)
        assert decide(verdicts, GRPO, evidence.cases).exit_code is ExitCode.WORSE


class TestWords:
    def test_sentences_name_the_case_the_metric_and_why(self, judged):
        verdicts, evidence = judged(SAME, MORE)
        result = decide(verdicts, GRPO, evidence.cases)
        assert result.sentences == [
            "Failed: something got worse (1 more, 3 same).",
            "grpo vocab=11, peak_allocated: more. More: 1.074 KiB against 0.977 KiB (+10.0 %).",
            "Not judged: flops (nothing measured has one).",
        ]
        assert [item.weight for item in result.items] == [Weight.BLOCKS, *[Weight.PASSES] * 3]

    def test_an_only_case_is_named_by_all_its_axes(self, judged):
        verdicts, evidence = judged(SLOWER)
        assert (
            decide(verdicts, GRPO, evidence.cases)
            .sentences[1]
            .startswith("grpo vocab=10 lm_head=frozen dtype=bfloat16, step_time: slower.")
        )

    def test_markdown_has_what_did_not_pass_first_and_the_rest_folded(self, judged):
        verdicts, evidence = judged(SAME, SLOWER, BROKEN)
        page = gate_markdown(decide(verdicts, GRPO, evidence.cases), [evidence])
        shown, folded = page.split("<details>")
        assert shown.startswith("### Failed: something got worse (1 broken, 1 slower")
        assert shown.index("| broken |") < shown.index("| slower |")
        assert "| same |" not in shown
        assert "| same |" in folded

    def test_markdown_of_nothing_says_so(self):
        assert gate_markdown(decide([], Policy(), []), []) == (
            "### Undecided: nothing could be measured (no verdict).\n\nNothing was measured.\n"
        )

    def test_junit(self, judged):
        verdicts, evidence = judged(SAME, SLOWER, OPEN, BROKEN)
        root = ElementTree.fromstring(gate_junit(decide(verdicts, replace(GRPO, inconclusive="warn"), evidence.cases)))
        (suite,) = root
        assert (suite.get("name"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("grpo", "2", "0", "1")
        assert len(suite) == int(suite.get("tests"))
        failures = [case for case in suite if case.find("failure") is not None]
        assert any("vocab=11" in case.get("name") and "slower" in case.find("failure").get("message") for case in failures)

    def test_junit_of_nothing_is_an_error(self):
        root = ElementTree.fromstring(gate_junit(decide([], GRPO, [])))
        assert root.find("testsuite/testcase/error") is not None

    def test_json(self, judged):
        verdicts, evidence = judged(SAME, BROKEN)
        content = json.loads(gate_json(decide(verdicts, GRPO, evidence.cases)))
        assert content["exit_code"] == 1
        assert content["verdicts"][0]["outcome"] == "broken"
        assert content["verdicts"][0]["effect"] is None
        assert content["verdicts"][0]["case"]["vocab"] == 11

    def test_a_case_stays_together_and_the_worst_is_first(self, judged):
        verdicts, evidence = judged(SAME, (0.001, 1.0), SLOWER)
        folded = gate_markdown(decide(verdicts, GRPO, evidence.cases), [evidence]).split("<details>")[1]
        rows = [line.split(" | ")[:2] for line in folded.splitlines() if line.startswith("| 1")]
        assert [row[0].strip("| ") for row in rows] == ["12", "12", "10", "10", "11", "11"]

    def test_bytes_that_differ_never_look_the_same(self, make_world):
        world = make_world()
        for position, peak in enumerate((2**31, 2**31 - 512)):
            world.process(position, 0, measurements={"step_time": 1e6, "peak_allocated": peak})
        evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes, ())
        page = gate_markdown(decide(judge_session(evidence), GRPO, evidence.cases), [evidence])
        assert "| 2,147,483,648 B | 2,147,483,136 B | 0.9999998 | less |" in page

    def test_why_nothing_of_a_suite_was_measured_is_said(self, judged):
        both = replace(GRPO, suites=(SuitePolicy("grpo"), SuitePolicy("norms")))
        verdicts, evidence = judged(SLOWER)
        result = decide(verdicts, both, evidence.cases, {"norms": "nothing could be measured (oom: no memory)\n  Traceback"})
        assert result.exit_code is ExitCode.WORSE
        said = "Nothing of norms was measured: nothing could be measured (oom: no memory)."
        assert said in result.sentences and said in gate_markdown(result, [evidence])


class TestGitHub:
    def test_what_blocks_is_an_error_and_what_is_only_said_a_warning(self, judged):
        verdicts, evidence = judged(SLOWER, OPEN, SAME)
        lines = list(annotation_lines(decide(verdicts, replace(GRPO, inconclusive="warn"), evidence.cases)))
        assert [line.split("::")[1] for line in lines] == ["error title=frostline gate", "warning title=frostline gate"]
        assert lines[0].startswith("::error title=frostline gate::grpo vocab=10, step_time: slower. Slower: +22.1 %25 (99 %25")

    def test_no_message_can_end_its_line_or_begin_another(self):
        assert annotation("error", "100 %\n::error::x\r\n") == "::error title=frostline gate::100 %25%0A::error::x%0D%0A"

    def test_no_more_than_github_shows(self, judged):
        verdicts, evidence = judged(*[MORE] * 14)
        lines = list(annotation_lines(decide(verdicts, GRPO, evidence.cases)))
        assert len(lines) == MOST_ANNOTATIONS
        assert lines[-1].endswith("::5 more; the log and the summary have all")

    def test_where_nothing_was_measured_that_is_the_error(self):
        (line,) = annotation_lines(no_decision("HEAD cannot be built"))
        assert line.endswith("::Undecided: nothing could be measured. HEAD cannot be built")

    def test_a_comment_can_be_found_again_and_is_never_too_long(self, judged):
        verdicts, evidence = judged(*[MORE] * 300)
        result = decide(verdicts, GRPO, evidence.cases)
        comment = gate_comment(result, [evidence])
        assert comment.splitlines()[0] == COMMENT_MARK
        assert len(gate_markdown(result, [evidence])) > 65_536 > len(comment.encode())
        assert "Every verdict" not in comment and "| more |" in comment
        assert "The log has every verdict: there are too many for this page." in comment
        long = [replace(item, sentence=item.sentence + 300 * "\u00e9") for item in result.items]
        short = gate_markdown(
            replace(result, sentences=[result.sentences[0], *(one.sentence for one in long)]), [evidence], 5000
        )
        assert 4000 < len(short.encode()) <= 5000 and short.startswith("### Failed") and "| more |" not in short

    def test_no_text_of_a_case_is_markup(self, judged):
        verdicts, evidence = judged(BROKEN)
        hostile = [replace(one, sentence="</details><script>alert(1)</script> | @all `x`") for one in verdicts]
        page = gate_markdown(decide(hostile, GRPO, evidence.cases), [evidence])
        assert "<script" not in page and page.count("</details>") == 1
