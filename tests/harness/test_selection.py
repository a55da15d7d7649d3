"""What a user types to choose a suite and its cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from frostline.harness import Bar, Preset, Share, Step, selection, suite
from frostline.results.record import UsageError

TWO_SUITES = """
from frostline.harness import suite

@suite(axes={"n": [1]})
def first(implementation, device, *, n):
    return lambda: n

@suite()
def second(implementation, device):
    return lambda: None
"""


@suite(
    axes={"vocab": [16, 32], "lm_head": ["frozen", "trainable"], "bias": [False], "masked": [0.0]},
    implementations=["unpruned", "pruned", "torch"],
    compared="pruned",
    presets={"small": Preset({"vocab": [8]}, rounds=6), "few": Preset(implementations=["pruned"])},
    keep=lambda case: not (case["vocab"] == 32 and case["lm_head"] == "frozen"),
)
def head(implementation, device, *, vocab, lm_head, bias, masked):
    return lambda: None


def params(cases):
    return [tuple(case.params.values()) for case in cases]


def test_the_axes_multiply_and_the_filter_keeps():
    assert params(selection.select(head, Preset(), [])) == [
        (16, "frozen", False, 0.0),
        (16, "trainable", False, 0.0),
        (32, "trainable", False, 0.0),
    ]


def test_a_setting_replaces_what_the_preset_chose():
    chosen = selection.select(head, head.presets["small"], ["vocab=64,128", "lm_head=trainable", "bias=true", "masked=0.5"])
    assert params(chosen) == [(64, "trainable", True, 0.5), (128, "trainable", True, 0.5)]


def test_a_case_named_twice_is_one_case():
    assert len(selection.select(head, Preset(), ["vocab=16,16", "lm_head=frozen"])) == 1


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("vocab", "--set: expected AXIS=VALUE[,VALUE...], got 'vocab'"),
        ("vocabulary=1", "no axis 'vocabulary' (did you mean vocab?); it has vocab, lm_head, bias, masked"),
        ("vocab=large", "vocab takes a whole number, got 'large'"),
        ("vocab=1.5", "vocab takes a whole number, got '1.5'"),
        ("lm_head=frosted", "lm_head takes frozen, trainable, got 'frosted'"),
        ("bias=maybe", "bias takes true or false, got 'maybe'"),
        ("masked=half", "masked takes a number, got 'half'"),
    ],
)
def test_a_bad_setting_is_one_clear_line(setting, said):
    with pytest.raises(UsageError) as error:
        selection.select(head, Preset(), [setting])
    assert said in str(error.value) and "\n" not in str(error.value)


def test_an_empty_selection_says_so():
    with pytest.raises(UsageError, match="no case for vocab=32 lm_head=frozen: the selection is empty"):
        selection.select(head, Preset(), ["vocab=32", "lm_head=frozen"])


def test_implementations_come_in_the_suites_order():
    assert selection.choose_implementations(head, ["torch", "unpruned"], Preset()) == ["unpruned", "torch"]
    assert selection.choose_implementations(head, [], head.presets["few"]) == ["pruned"]
    assert selection.choose_implementations(head, [], Preset()) == ["unpruned", "pruned", "torch"]
    with pytest.raises(UsageError, match=r"has no 'prune' \(did you mean pruned\?\)"):
        selection.choose_implementations(head, ["prune"], Preset())


def test_the_default_preset_follows_the_device():
    assert selection.default_preset(head, "cpu").rounds == 6
    assert selection.default_preset(head, "cuda:0") == Preset()


def test_a_bundled_suite_is_found_by_name():
    assert selection.load_suite("grpo").name == "grpo"


def test_a_suite_is_found_in_a_file(tmp_path: Path):
    (tmp_path / "bench.py").write_text(TWO_SUITES)
    assert selection.load_suite(f"{tmp_path}/bench.py::second").name == "second"
    with pytest.raises(UsageError, match=r"holds 2 suites; name one: .*::first, .*::second"):
        selection.load_suite(f"{tmp_path}/bench.py")
    with pytest.raises(UsageError, match=r"no suite 'secnd' \(did you mean second\?\)"):
        selection.load_suite(f"{tmp_path}/bench.py::secnd")


@pytest.mark.parametrize("spec", ["grpoo", "no/such.py", "nothing.py"])
def test_an_unknown_suite_says_what_there_is(spec):
    with pytest.raises(UsageError, match=r"^SUITE: no (suite|file) "):
        selection.load_suite(spec)


def test_a_file_without_a_suite_says_how_to_make_one(tmp_path: Path):
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UsageError, match="holds 0 suites; decorate a function with @suite"):
        selection.load_suite(f"{tmp_path}/empty.py")


def test_a_declaration_that_cannot_be_is_refused_at_once():
    with pytest.raises(UsageError, match="axis 'rows' is no argument of the function; it takes implementation, device, n"):

        @suite(axes={"rows": [1]})
        def wrong(implementation, device, *, n):
            return lambda: None

    with pytest.raises(UsageError, match="baseline='liger' is no implementation; it has default"):

        @suite(baseline="liger")
        def wrong_too(implementation, device):
            return lambda: None

    with pytest.raises(UsageError, match="axis 'n' needs a non-empty list of values, got 'abc'"):

        @suite(axes={"n": "abc"})
        def wrong_again(implementation, device, *, n):
            return lambda: None


@pytest.mark.parametrize(
    ("bar", "said"),
    [
        (Bar("it", "three", "step_time", at_most=1), "bar 'it': side='three' is no implementation; it has one, two"),
        (Bar("it", "two", "step_time", at_most=1, against="no"), "bar 'it': against='no' is no implementation"),
        (Bar("it", "two", "step_time", at_most=1, where={"m": 1}), "bar 'it': 'm' is no axis; it has n"),
        (Bar("it", "two", "step_time", at_most=1, across={"m": 1}), "bar 'it': 'm' is no axis; it has n"),
        (Bar("it", "two", "step_time", at_most=1, where={"n": "1"}), "bar 'it': axis 'n': got '1', wanted a number"),
    ],
)
def test_bars_are_of_implementations_and_axes(bar, said):
    with pytest.raises(UsageError, match=said):
        suite(axes={"n": [1]}, implementations=["one", "two"], bars=[bar])(lambda _i, _d, n: n)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: Preset(rounds=0), "Preset: rounds: got 0, wanted a whole number from 1 on"),
        (lambda: Preset(implementations="two"), "Preset: implementations: got 'two', wanted a list of names"),
        (lambda: Preset({"n": 1}), "Preset: axes: axis 'n' needs a non-empty list of values, got 1"),
        (lambda: Preset(parts={"n": [1]}), "Preset: parts: got {'n': [1]}, wanted a list of axes"),
        (lambda: Preset(shares={"two": 1}), "Preset: shares: 'two': got 1, wanted a Share"),
        (lambda: Share(rounds=1.5), "Share: rounds: got 1.5, wanted a whole number from 1 on"),
        (lambda: Share(axes={"n": None}), "Share: axes: axis 'n' needs a non-empty list of values, got None"),
        (lambda: Step(run=print, omit="flops"), "Step: omit: got 'flops', wanted some of peak_allocated"),
        (lambda: Step(run=print, omit=None), "Step: omit: got None, wanted some of peak_allocated"),
        (lambda: Step(run=print, omit=["step_time"]), "Step: omit: got 'step_time', wanted some of peak_allocated"),
        (lambda: Step(run=print, times=["flops"]), "Step: times: got 'flops', wanted some of step_time, cold_step_time"),
        (lambda: Step(run=print, times=[]), "Step: times: got none, wanted some of step_time"),
    ],
)
def test_a_wrong_declaration_is_refused_when_it_is_made(declare, said):
    with pytest.raises(UsageError) as refused:
        declare()
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"implementations": []}, "implementations: got none, wanted at least one name"),
        ({"implementations": ["one", "one"]}, "implementations: got ['one', 'one'], wanted each name once"),
        ({"choices": {"nope": [1]}}, "choices: 'nope' is no axis; it has n, k"),
        ({"presets": {"p": 3}}, "presets: 'p': got 3, wanted a Preset"),
        ({"presets": {"p": Preset({"nope": [1]})}}, "preset 'p': 'nope' is no axis; it has n, k"),
        ({"presets": {"p": Preset({"n": ["1"]})}}, "preset 'p': axis 'n': got '1', wanted a number"),
        ({"presets": {"p": Preset(parts=[{"zz": [1]}])}}, "preset 'p': parts: 'zz' is no axis; it has n, k"),
        ({"presets": {"p": Preset(implementations=["zz"])}}, "preset 'p': implementations: got 'zz', wanted some of one, two"),
        ({"presets": {"p": Preset(shares={"two": Share(axes={"m": [1]})})}}, "preset 'p': shares: 'two': 'm' is no axis"),
        (
            {"presets": {"p": Preset(shares={"two": Share(axes={"n": ["1"]})})}},
            "preset 'p': shares: 'two': axis 'n': got '1', wanted a number",
        ),
        (
            {"presets": {"p": Preset({"n": [3]}, shares={"two": Share(axes={"n": [4]})})}},
            "preset 'p': shares: 'two': axis 'n': no case has 4; cases have 1, 2, 3",
        ),
    ],
)
def test_a_declaration_that_does_not_fit_its_suite_is_refused(given, said):
    with pytest.raises(UsageError) as refused:
        suite(**{"axes": {"n": [1, 2], "k": ["a"]}, "implementations": ["one", "two"], **given})(lambda _i, _d, **_case: None)
    assert str(refused.value).startswith(f"suite <lambda>: {said}")


def test_a_preset_may_be_a_union_of_parts():
    @suite(axes={"n": [1], "k": ["a", "b"]})
    def parted(implementation, device, *, n, k):
        return lambda: None

    preset = Preset({"n": [2]}, parts=[{}, {"k": ["a"], "n": [3, 4]}, {"k": ["a"]}])
    assert params(selection.select(parted, preset, [])) == [(2, "a"), (2, "b"), (3, "a"), (4, "a")], "each case once"
    assert params(selection.select(parted, preset, ["n=5"])) == [(5, "a"), (5, "b")], "what is typed holds in every part"
    assert preset.values("n") == [2, 3, 4] and preset.values("k") == ["a", "a"]


def test_shares_are_of_implementations_and_leave_the_baseline_alone():
    for shares, said in (
        ({"three": Share(1)}, "preset 'small': shares: 'three' is no implementation"),
        ({"one": Share(1)}, "'one' is the baseline, which takes part in everything"),
        ({"two": Share(7)}, "'two' takes 1 to 6 rounds, got 7"),
    ):
        with pytest.raises(UsageError, match=said):
            suite(implementations=["one", "two"], presets={"small": Preset(rounds=6, shares=shares)})(lambda _i, _d: None)


def test_a_word_that_no_preset_uses_is_a_choice():
    @suite(axes={"loss": ["dapo"]}, choices={"loss": ["dapo", "grpo"]})
    def choosy(implementation, device, *, loss):
        return lambda: loss

    assert params(selection.select(choosy, Preset(), ["loss=grpo"])) == [("grpo",)]
    with pytest.raises(UsageError, match="loss takes dapo, grpo, got 'ppo'"):
        selection.select(choosy, Preset(), ["loss=ppo"])


PARTED = """
from frostline.harness import suite
import the_parts

@suite(sources=[the_parts])
def parted(implementation, device):
    return lambda: None
"""


def test_the_version_follows_every_source(tmp_path: Path, monkeypatch):
    """A change in any file that decides what is measured is another version; the files' names count as well."""
    parts, file = tmp_path / "parts" / "the_parts", tmp_path / "bench.py"
    parts.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(parts.parent))
    versions = []
    for changed, text in (("__init__", ""), ("one", "a = 1"), ("one", "a = 2"), ("two", "a = 2"), ("", PARTED + "#")):
        (parts / f"{changed}.py" if changed else file).write_text(text)
        if not file.exists():
            file.write_text(PARTED)
        versions += [selection.load_suite(str(file)).version for _ in range(2)]
    assert versions[::2] == versions[1::2] and len(set(versions)) == 5
