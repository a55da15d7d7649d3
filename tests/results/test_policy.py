"""The gate's policy: every key, every mistake with its line, and what it says in words."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from frostline.results.policy import MetricPolicy, Policy, SuitePolicy
from frostline.results.policy_file import GATE, line_of, load_policy, parse_policy
from frostline.results.policy_words import policy_words
from frostline.results.record import Outcome, UsageError

AS_MANY = "8 rounds (more where the suite asks for more), and while that tells nothing, as many again"


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
        policy, _ = load_policy(pyproject)
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
            ({"base": 3}, "gate.base: wanted a revision, merge-base, last-green or session:ID, got 3"),
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
                'gate.suites.grpo."pre set" (line 5 of {file}): unknown key, perhaps preset',
            ),
            (("delta", "dela"), "metrics.step_time.dela (line 7 of {file}): unknown key, perhaps delta;"),
            (("step_time", "steptime"), "gate.metrics.steptime (line 7 of {file}): no such metric, perhaps step_time;"),
            (("metrics", "nothing_like"), "gate.nothing_like (line 6 of {file}): unknown key; known are suites,"),
            (('"warn"', '"ignore"'), 'gate.inconclusive (line 3 of {file}): wanted "fail" or "warn", got "ignore"'),
            (("8", '"eight"'), 'gate.suites.grpo.rounds (line 5 of {file}): wanted a whole number from 1 on, got "eight"'),
            (("0.03", "3"), "metrics.step_time.delta (line 7 of {file}): wanted a fraction from 0 to below 1"),
            (("rounds", r'"a\nkey"'), r'gate.suites.grpo."a\nkey" (line 5 of {file}): unknown key;'),
            ((".grpo]", r'."gr\npo"]'), r'gate.suites."gr\npo" (line 4 of {file}): this cannot be the name of a suite'),
            (("rounds = 8", 'budget = """\n8"""'), "gate.suites.grpo.budget (line 5 of {file}): unknown key;"),
            (
                ('"warn"', '"warn"\nbudget = """\nsoon\n"""'),
                r"gate.budget (line 4 of {file}): got 'soon\n', wanted a time such as 90s",
            ),
            (("rounds = 8", "axes.vocab = [\n 1,\n [2]]"), "grpo.axes.vocab (line 5 of {file}): wanted a list of numbers,"),
            (("rounds = 8", 'axes.a = ["x,y"]'), "grpo.axes.a (line 5 of {file}): wanted values without commas"),
            (
                ("rounds = 8", "max_rounds = 4\nrounds = 8"),
                "grpo.max_rounds (line 5 of {file}): wanted at least the 8 of rounds, got 4",
            ),
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

    def test_a_line_is_that_of_the_statement_whatever_stands_around_it(self):
        text = """# [tool.frostline.gate]
[other]
a = '''
[tool.frostline.gate.suites.grpo]
rounds = 1
'''
[tool.frostline]
gate.suites."b.py::x" = { rounds = 8, axes = { n = [
 1,
] } }
gate.base = "main"
"""
        where = (*GATE, "suites", "b.py::x")
        assert [line_of(text, one) for one in ((*GATE, "base"), where, (*where, "axes", "n"), (*where, "none"))] == [
            11,
            8,
            8,
            8,
        ]
        assert line_of(text, ("nothing", "of", "it")) is None

    def test_a_whole_policy_in_words(self):
        table = {
            "inconclusive": "warn",
            "budget": "10m",
            "blocks": ["slower", "broken"],
            "suites": {
                "grpo": {"preset": "small", "axes": {"vocab": [4096, 8192]}, "rounds": 6, "max_rounds": 18},
                "norms": {},
            },
            "metrics": {"step_time": {"delta": 0.05}, "peak_allocated": {"byte_tolerance": 2**20}, "flops": {}},
        }
        assert policy_words(parse_policy(table), "main, as typed", predicted=False) == [
            "Compared with: main, as typed.",
            "Figures measured on this machine decide (there is a GPU here).",
            "Suite grpo: preset small; vocab = 4096, 8192; 6 rounds, and while that tells nothing, up to 18.",
            f"Suite norms: the preset that it has for this machine; {AS_MANY}.",
            "Metric step_time: a change below 5 % counts as none.",
            "Metric peak_allocated: a difference up to 1.000 MiB counts as none.",
            "Metric flops: compared exactly.",
            "Fails (exit 1) where a verdict is slower or broken.",
            "Only said where it is more.",
            "Inconclusive is only said; a comparison that cannot be made or a figure that is missing is exit 3.",
            "Nothing measured at all, or nothing of one of the suites, is exit 4.",
            "Times that would block are held to a false discovery rate of 1 % over all gated times.",
            "Measuring ends after 600 s, all suites together.",
            "Processes are started by spawn, in the environment of the command.",
        ]

    def test_where_the_cost_model_decides_nothing_is_said_of_rounds(self):
        said = policy_words(Policy((SuitePolicy("grpo"),)), "HEAD~1", predicted=True)
        assert said[1] == "The cost model's figures decide (there is no GPU here): nothing is run, and times are not judged."
        assert not [line for line in said if "rounds" in line or "discovery" in line]

    def test_what_decides_comes_back_from_json(self):
        policy = Policy((SuitePolicy("grpo"),), (MetricPolicy("flops"),), (Outcome.MORE,), "warn", predicted=True)
        assert Policy.of_judging(policy.judging(), ["grpo"]) == policy
