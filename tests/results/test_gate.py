"""The gate: every exit code and their order, the policy's keys, and what is written for log, pull request and machines."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from frostline.results.evidence import Evidence
from frostline.results.gate import ExitCode, Weight, decide, exit_code_for
from frostline.results.gate_report import gate_json, gate_junit, gate_markdown
from frostline.results.judge import judge_session
from frostline.results.policy import MetricPolicy, Policy, SuitePolicy, load_policy, parse_policy
from frostline.results.record import Outcome, Reason, Role, Status, UsageError

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


class TestPolicy:
    def test_a_whole_policy(self, tmp_path):
        pyproject = tmp_path / "pyproject.toml"
        pyproject.write_text("""
            [tool.frostline.gate]
            inconclusive = "warn"
            base = "main"
            predicted = true
            isolation = "fork"
            blocks = ["slower", "broken"]
            false_discovery = 0.05
            [tool.frostline.gate.suites.grpo]
            preset = "small"
            rounds = 6
            axes = { vocab = [4096], lm_head = ["frozen", "trainable"] }
            [tool.frostline.gate.suites.norms]
            [tool.frostline.gate.metrics.step_time]
            delta = 0.05
            [tool.frostline.gate.metrics.peak_allocated]
            byte_tolerance = 512
        """)
        policy = load_policy(pyproject)
        assert policy == Policy(
            suites=(
                SuitePolicy("grpo", "small", {"vocab": (4096,), "lm_head": ("frozen", "trainable")}, 6),
                SuitePolicy("norms"),
            ),
            metrics=(MetricPolicy("step_time", delta=0.05), MetricPolicy("peak_allocated", byte_tolerance=512)),
            blocks=(Outcome.SLOWER, Outcome.BROKEN),
            inconclusive="warn",
            base="main",
            predicted=True,
            isolation="fork",
            false_discovery=0.05,
        )

    def test_the_page_s_example_is_a_policy(self):
        page = (Path(__file__).parents[2] / "docs" / "method.md").read_text(encoding="utf-8")
        example = page.split("```toml")[1].split("```")[0]
        policy = parse_policy(tomllib.loads(example)["tool"]["frostline"]["gate"])
        assert policy.suites[0].axes == {"lm_head": ("frozen", "trainable")}
        assert (policy.blocks, policy.false_discovery) == (Policy().blocks, Policy().false_discovery)

    def test_thresholds_of_the_policy_go_before_the_suite_s_own(self):
        policy = Policy((SuitePolicy("grpo"),), (MetricPolicy("step_time", 0.05), MetricPolicy("peak_allocated", None, 512)))
        thresholds = policy.thresholds({"grpo": {"step_time": 0.1, "flops": 0.2}})
        assert thresholds.delta == {"": {"step_time": 0.05}, "grpo": {"step_time": 0.05, "flops": 0.2}}
        assert thresholds.byte_tolerance == {"peak_allocated": 512}

    @pytest.mark.parametrize(
        ("table", "said"),
        [
            ({"inconclusiv": "warn"}, "tool.frostline.gate.inconclusiv: unknown key, perhaps inconclusive; known are suites"),
            ({"inconclusive": "ignore"}, 'gate.inconclusive: wanted "fail" or "warn", got "ignore"'),
            ({"inconclusive": True}, 'gate.inconclusive: wanted "fail" or "warn", got true'),
            ({"predicted": "yes"}, 'gate.predicted: wanted "auto" or true or false, got "yes"'),
            ({"isolation": "thread"}, 'gate.isolation: wanted "spawn" or "fork", got "thread"'),
            ({"python": 3.12}, "gate.python: wanted the path of an interpreter or environment, got 3.12"),
            ({"base": 3}, "gate.base: wanted a revision, or merge-base, got 3"),
            ({"blocks": ["worse"]}, "gate.blocks: wanted a list of slower"),
            ({"blocks": []}, "gate.blocks: wanted a list of slower"),
            ({"blocks": [["slower"]]}, "gate.blocks: wanted a list of slower"),
            ({"false_discovery": 5}, "gate.false_discovery: wanted a fraction"),
            ({"suites": ["grpo"]}, "gate.suites: wanted a table by suite"),
            ({"suites": {"grpo": {"presets": "small"}}}, "gate.suites.grpo.presets: unknown key"),
            ({"suites": {"grpo": {"preset": 1}}}, "gate.suites.grpo.preset: wanted the name of a preset, got 1"),
            ({"suites": {"grpo": {"rounds": 0}}}, "gate.suites.grpo.rounds: wanted a whole number from 1 on, got 0"),
            ({"suites": {"grpo": {"max_rounds": 0}}}, "gate.suites.grpo.max_rounds: wanted a whole number from 1 on, got 0"),
            (
                {"suites": {"grpo": {"rounds": 8, "max_rounds": 6}}},
                "gate.suites.grpo.max_rounds: wanted at least the 8 of rounds, got 6",
            ),
            ({"budget": 600}, "gate.budget: wanted a time such as 10m, in quotes, got 600"),
            ({"budget": "10"}, "gate.budget: got '10', wanted a time such as 90s, 10m or 1h30m"),
            ({"suites": {"grpo": {"rounds": 2.5}}}, "gate.suites.grpo.rounds: wanted a whole number from 1 on"),
            ({"suites": {"grpo": {"rounds": True}}}, "gate.suites.grpo.rounds: wanted a whole number from 1 on, got true"),
            ({"suites": {"grpo": {"axes": {"vocab": 4096}}}}, "gate.suites.grpo.axes.vocab: wanted a list of numbers"),
            ({"suites": {"grpo": {"axes": {"vocab": []}}}}, "gate.suites.grpo.axes.vocab: wanted a list of numbers"),
            ({"metrics": {"time": {}}}, "gate.metrics.time: no such metric, perhaps step_time; there are step_time"),
            ({"metrics": {"step_time": {"delta": 3}}}, "gate.metrics.step_time.delta: wanted a fraction"),
            ({"metrics": {"step_time": {"delta": "3 %"}}}, "gate.metrics.step_time.delta: wanted a fraction"),
            ({"metrics": {"flops": {"byte_tolerance": -1}}}, "gate.metrics.flops.byte_tolerance: wanted a number of bytes"),
            ({"metrics": {"flops": 3}}, "gate.metrics.flops: wanted a table, got 3"),
        ],
    )
    def test_a_mistake_is_one_line_that_names_the_key(self, table, said):
        with pytest.raises(UsageError) as caught:
            parse_policy(table)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("misspelt", "said"),
        [
            (("frostline.gate]", "frostline.gates]"), "tool.frostline.gates (line 2 of {file}): unknown key, perhaps gate;"),
            (("gate.suites.grpo", "gates.suites.grpo"), "tool.frostline.gates (line 4 of {file}): unknown key, perhaps gate;"),
            (("rounds", "round"), "gate.suites.grpo.round (line 5 of {file}): unknown key, perhaps rounds; known are preset"),
            (("inconclusive", "inconclusiv"), "gate.inconclusiv (line 3 of {file}): unknown key, perhaps inconclusive;"),
            (
                ("grpo]\n rounds", 'grpo]\n "pre set"'),
                "gate.suites.grpo.pre set (line 5 of {file}): unknown key, perhaps preset",
            ),
            (("delta", "dela"), "metrics.step_time.dela (line 7 of {file}): unknown key, perhaps delta;"),
            (("step_time", "steptime"), "gate.metrics.steptime (line 7 of {file}): no such metric, perhaps step_time;"),
            (("metrics", "nothing_like"), "gate.nothing_like (line 6 of {file}): unknown key; known are suites,"),
        ],
    )
    def test_what_is_misspelt_is_named_with_its_line_and_what_is_nearest(self, tmp_path, misspelt, said):
        text = '[project]\n[tool.frostline.gate]\n inconclusive = "warn"\n[tool.frostline.gate.suites.grpo]\n rounds = 8\n'
        file = tmp_path / "pyproject.toml"
        text += "[ tool.frostline.gate.metrics ]\n step_time = { delta = 0.03 }\n"
        file.write_text(text.replace(*misspelt, 1))
        with pytest.raises(UsageError) as caught:
            load_policy(file)
        assert said.format(file=file) in str(caught.value) and "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (None, "cannot read"),
            ("[tool.frostline", "is no TOML"),
            ("[tool.other]", r"has no \[tool.frostline.gate\]"),
            ("[tool.frostline.gate]", "names no suite"),
        ],
    )
    def test_a_file_without_a_policy(self, tmp_path, text, said):
        pyproject = tmp_path / "pyproject.toml"
        if text is not None:
            pyproject.write_text(text)
        with pytest.raises(UsageError, match=said):
            load_policy(pyproject)
