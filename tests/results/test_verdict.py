"""Every outcome, with the sentence that a maintainer reads (and in `test_reasons.py` every reason code)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from frostline.results.evidence import Evidence, Standing
from frostline.results.judge import Thresholds, judge_across, judge_session
from frostline.results.record import (
    Direction,
    Interleave,
    Kind,
    Machine,
    Module,
    Outcome,
    Reason,
    Role,
    Status,
    UsageError,
    Verification,
)
from frostline.results.store import Store
from frostline.results.verdict import judge_exact, judge_standing, judge_timing, needs_second_look


def rounds(count, mean=0.0, deviation=0.005):
    drawn = np.random.default_rng(5).normal(0.0, 1.0, count)
    return mean + deviation * (drawn - drawn.mean()) / drawn.std(ddof=1)


def evidence(world):
    return Evidence(world.session, world.machine, world.sides, world.cases, world.processes, world.ratios)


def measured(world, times=(1e6, 1e6), effect=0.0, count=8, case=0, **measurements):
    """Give every side `count` ok processes, and the second its ratios."""
    for number in range(count):
        for position, time in enumerate(times):
            world.process(position, number, case=case, measurements={"step_time": time, **measurements})
        world.ratio(1, number, float(rounds(count, effect)[number]) if count > 2 else effect, case=case)
    return world


class TestTiming:
    @pytest.mark.parametrize(
        ("effect", "deviation", "outcome", "reason"),
        [
            (0.10, 0.01, Outcome.SLOWER, Reason.INTERVAL_EXCLUDES_ZERO),
            (-0.10, 0.01, Outcome.FASTER, Reason.INTERVAL_EXCLUDES_ZERO),
            (0.0, 0.005, Outcome.SAME, Reason.INTERVAL_WITHIN_DELTA),
            (0.01, 0.002, Outcome.SAME, Reason.INTERVAL_WITHIN_DELTA),  # real, and too small for a word
            (0.08, 0.10, Outcome.INCONCLUSIVE, Reason.INTERVAL_TOO_WIDE),  # never "no change"
            (0.026, 0.015, Outcome.INCONCLUSIVE, Reason.EFFECT_BELOW_DELTA),
        ],
    )
    def test_outcomes(self, effect, deviation, outcome, reason):
        judged = judge_timing(rounds(8, effect, deviation), delta=0.03)
        assert (judged.outcome, judged.reason) == (outcome, reason)
        assert judged.effect == pytest.approx(math.exp(effect))
        assert judged.low < judged.effect < judged.high
        assert "over 8 rounds." in judged.sentence

    def test_sentences(self):
        assert (
            judge_timing(rounds(8, 0.10, 0.01)).sentence == "Slower: +10.5 % (99 % interval +9.2 % to +11.9 %) over 8 rounds."
        )
        assert judge_timing(rounds(8, 0.0, 0.005)).sentence.startswith("The same within 3 %: ")
        assert judge_timing(rounds(8, 0.0, 0.1)).sentence.startswith("Cannot tell a change of 3 % from none: ")

    @pytest.mark.parametrize("count", range(3, 25))
    def test_fully_separated_rounds_at_every_size(self, count):
        judged = judge_timing(rounds(count, 0.5, 0.01))
        assert judged.outcome is (Outcome.SLOWER if count >= 6 else Outcome.INCONCLUSIVE)
        assert judged.reason is (Reason.INTERVAL_EXCLUDES_ZERO if count >= 6 else Reason.TOO_FEW_ROUNDS)

    @pytest.mark.parametrize("count", [0, 1, 5])
    def test_too_few_rounds(self, count):
        judged = judge_timing([0.5] * count)
        assert judged.reason is Reason.TOO_FEW_ROUNDS
        assert judged.sentence.startswith(f"Only {count} counted round")

    def test_more_is_better_for_throughput(self):
        assert judge_timing(rounds(8, 0.5), direction=Direction.HIGHER).outcome is Outcome.FASTER
        assert judge_timing(rounds(8, -0.5), direction=Direction.HIGHER).outcome is Outcome.SLOWER

    def test_a_bimodal_baseline_is_no_significant_change(self):
        """22.5 or 25.5 ms by run and calm inside each: pooled samples would call it significant every time."""
        modes = np.log([22.5, 25.5, 22.5, 25.5, 25.5, 22.5, 25.5, 22.5]) - np.log(
            [25.5, 22.5, 22.5, 25.5, 22.5, 25.5, 22.5, 22.5]
        )
        assert judge_timing(modes).outcome is Outcome.INCONCLUSIVE


class TestExact:
    @pytest.mark.parametrize(
        ("side", "baseline", "tolerance", "outcome", "reason"),
        [
            ([100.0, 100.0], [100.0], 0, Outcome.SAME, Reason.EQUAL),
            ([101.0], [100.0], 0, Outcome.MORE, Reason.DIFFERENT),
            ([99.0], [100.0], 0, Outcome.LESS, Reason.DIFFERENT),
            ([99.0], [100.0], 1, Outcome.SAME, Reason.WITHIN_TOLERANCE),
            ([98.0], [100.0], 1, Outcome.LESS, Reason.DIFFERENT),
            ([99.0, 101.0], [100.0], 0, Outcome.INCONCLUSIVE, Reason.VARIES),
            ([99.0, 101.0], [100.0], 2, Outcome.SAME, Reason.WITHIN_TOLERANCE),
            ([110.0, 120.0], [90.0, 100.0], 5, Outcome.MORE, Reason.DIFFERENT),
            ([], [100.0], 0, Outcome.INCONCLUSIVE, Reason.NO_VALUE),
        ],
    )
    def test_outcomes(self, side, baseline, tolerance, outcome, reason):
        judged = judge_exact(side, baseline, Kind.BYTES, tolerance, unit="B")
        assert (judged.outcome, judged.reason) == (outcome, reason)

    def test_a_byte_tolerance_is_for_bytes(self):
        assert judge_exact([99.0], [100.0], Kind.EXACT, 5).outcome is Outcome.LESS
        assert judge_exact([99.0], [100.0], Kind.EXACT, delta=0.01).outcome is Outcome.SAME

    def test_sentence_and_ratio(self):
        judged = judge_exact([3.25 * 2**30], [6.5 * 2**30], Kind.BYTES, unit="B")
        assert judged.sentence == "Less: 3.250 GiB against 6.500 GiB (-50.0 %)."
        assert (judged.effect, judged.low, judged.high) == (0.5, 0.5, 0.5)
        assert math.isnan(judge_exact([1.0], [0.0], Kind.EXACT).effect)
        assert judge_exact([0.0], [0.0], Kind.EXACT).effect == 1.0


class TestStanding:
    OK = Standing(Status.OK)

    @pytest.mark.parametrize(
        ("side", "baseline", "outcome", "reason", "sentence"),
        [
            (
                Standing(Status.OOM, "CUDA out of memory. Tried to allocate 2 GiB.\nmore"),
                OK,
                Outcome.BROKEN,
                Reason.SIDE_FAILED,
                "This side ran out of memory: CUDA out of memory. Tried to allocate 2 GiB.",
            ),
            (Standing(Status.CRASH), OK, Outcome.BROKEN, Reason.SIDE_FAILED, "This side crashed."),
            (Standing(Status.TIMEOUT), OK, Outcome.BROKEN, Reason.SIDE_FAILED, "This side ran past its time limit."),
            (
                Standing(Status.WRONG, "", Verification("loss", 0.25, 0.5, 1e-5)),
                OK,
                Outcome.BROKEN,
                Reason.SIDE_WRONG,
                "This side is wrong: loss is off by 0.25 relative, where 1e-05 is allowed.",
            ),
            (OK, Standing(Status.OOM), Outcome.INCOMPARABLE, Reason.BASELINE_FAILED, "The baseline ran out of memory."),
            (
                Standing(Status.OOM),
                Standing(Status.ERROR, "x"),
                Outcome.INCOMPARABLE,
                Reason.BASELINE_FAILED,
                "The baseline raised an error: x.",
            ),
            (
                Standing(Status.SKIPPED, "no bf16 here"),
                OK,
                Outcome.INCOMPARABLE,
                Reason.NOT_MEASURED,
                "This side was skipped: no bf16 here.",
            ),
            (Standing(None), OK, Outcome.INCONCLUSIVE, Reason.NOT_MEASURED, "This side was not measured."),
            (OK, Standing(None), Outcome.INCONCLUSIVE, Reason.NOT_MEASURED, "The baseline was not measured."),
        ],
    )
    def test_outcomes(self, side, baseline, outcome, reason, sentence):
        judged = judge_standing(side, baseline)
        assert (judged.outcome, judged.reason, judged.sentence) == (outcome, reason, sentence)

    def test_two_that_are_ok_are_judged_by_their_figures(self):
        assert judge_standing(self.OK, self.OK) is None


class TestSession:
    def test_every_metric_of_every_case_gets_a_verdict(self, make_world):
        world = make_world(vocabularies=[4096, 8192])
        measured(world, effect=-0.4, peak_allocated=100.0, flops=5.0)
        measured(world, effect=0.0, case=1)
        judged = {(one.case_id, one.metric): one.outcome for one in judge_session(evidence(world))}
        first, second = (case.id for case in world.cases)
        assert judged == {
            (first, "step_time"): Outcome.FASTER,
            (first, "peak_allocated"): Outcome.SAME,
            (first, "flops"): Outcome.SAME,
            (second, "step_time"): Outcome.SAME,
        }

    def test_a_failing_case_leaves_the_others_alone(self, make_world):
        world = make_world(vocabularies=[4096, 8192])
        measured(world)
        world.process(0, 0, case=1, measurements={"step_time": 1.0, "peak_allocated": 1.0})
        world.process(1, 0, case=1, status=Status.OOM, reason="out of memory")
        judged = {(one.case_id, one.metric): one.reason for one in judge_session(evidence(world))}
        first, second = (case.id for case in world.cases)
        assert judged == {
            (first, "step_time"): Reason.INTERVAL_WITHIN_DELTA,
            (second, "step_time"): Reason.SIDE_FAILED,
            (second, "peak_allocated"): Reason.SIDE_FAILED,
        }

    def test_a_wrong_side_is_broken_however_fast(self, make_world):
        world = measured(make_world(), effect=-2.0)
        world.verify(0, 1e-6, 1e-5)
        world.verify(1, 0.5, 1e-5)
        (verdict,) = judge_session(evidence(world))
        assert (verdict.outcome, verdict.reason) == (Outcome.BROKEN, Reason.SIDE_WRONG)
        assert "loss is off by 0.5 relative" in verdict.sentence

    def test_a_wrong_baseline_is_no_baseline(self, make_world):
        world = measured(make_world(), effect=-2.0)
        world.verify(0, math.nan, 1e-5)
        (verdict,) = judge_session(evidence(world))
        assert (verdict.outcome, verdict.reason) == (Outcome.INCOMPARABLE, Reason.BASELINE_FAILED)

    def test_a_check_that_could_not_finish_is_a_flag(self, make_world):
        world = measured(make_world())
        world.process(1, -1, role=Role.VERIFY, status=Status.OOM, reason="the reference is too large")
        (verdict,) = judge_session(evidence(world))
        assert (verdict.outcome, verdict.flags) == (Outcome.SAME, ("not verified",))

    def test_an_uncounted_attempt_says_nothing(self, make_world):
        world = measured(make_world())
        world.process(1, 3, status=Status.CRASH, counted=False)
        assert judge_session(evidence(world))[0].outcome is Outcome.SAME

    def test_nothing_measured_is_never_good_news(self, make_world):
        (verdict,) = judge_session(evidence(make_world()))
        assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.INCONCLUSIVE, Reason.NOT_MEASURED, "step_time")

    def test_predictions_are_judged_beside_measurements(self, make_world):
        world = measured(make_world(), peak_allocated=100.0)
        world.process(0, -1, role=Role.PREDICT, measurements={"peak_allocated": 100.0})
        world.process(1, -1, role=Role.PREDICT, measurements={"peak_allocated": 60.0})
        judged = {(one.role, one.metric): one.outcome for one in judge_session(evidence(world))}
        assert judged[Role.PREDICT, "peak_allocated"] is Outcome.LESS
        assert judged[Role.MEASURE, "peak_allocated"] is Outcome.SAME
        assert (Role.PREDICT, "step_time") not in judged

    def test_a_session_of_predictions_alone_has_no_verdicts_on_times(self, make_world):
        world = make_world()
        for position in range(2):
            world.process(position, -1, role=Role.PREDICT, measurements={"flops": 100.0})
        assert [(one.role, one.metric) for one in judge_session(evidence(world))] == [(Role.PREDICT, "flops")]

    def test_thresholds_by_suite_and_for_all(self, make_world):
        world = measured(make_world(), effect=0.06)
        for given, outcome in [
            ({}, Outcome.SLOWER),
            ({"grpo": {"step_time": 0.1}}, Outcome.SAME),
            ({"": {"step_time": 0.1}}, Outcome.SAME),
        ]:
            (verdict,) = judge_session(evidence(world), Thresholds(delta=given))
            assert verdict.outcome is outcome
        assert verdict.delta == 0.1

    def test_verdicts_survive_the_store(self, make_world, tmp_path):
        world = measured(make_world(), effect=0.2, flops=3.0)
        with Store.open(tmp_path / "a.db") as store:
            store.add_session(world.session, world.machine, world.sides, world.cases)
            store.add_processes(world.processes, world.ratios)
            verdicts = judge_session(Evidence.load(store))
            store.add_verdicts(verdicts)
            read = store.verdicts(world.session.id)
        assert [replace(one, p_value=0.0) for one in read] == [replace(one, p_value=0.0) for one in verdicts]

    def test_second_look(self, make_world):
        world = make_world(vocabularies=[1, 2, 3])
        measured(world, effect=0.2, count=8)
        measured(world, count=4, case=1)
        assert needs_second_look(judge_session(evidence(world))) == [world.cases[1].id], "not the settled, not the unmeasured"


class TestFlags:
    def test_same_code(self, make_world, module):
        other = Module(module.name, module.file, "cd" * 32)
        for implementations, modules, expected in [
            (("pruned", "pruned"), (module, module), ("same code",)),
            (("pruned", "pruned"), (module, other), ()),
            (("unpruned", "pruned"), (module, module), ()),  # one package, asked for two things
        ]:
            world = make_world(implementations)
            for number in range(8):
                for position in range(2):
                    world.process(position, number, measurements={"step_time": 1.0}, modules=(modules[position],))
                world.ratio(1, number, 0.0)
            assert judge_session(evidence(world))[0].flags == expected

    def test_throttling_and_clocks(self, make_world):
        def flags(*telemetry):
            world = measured(make_world())
            world.processes = [replace(one, telemetry=telemetry[i % len(telemetry)]) for i, one in enumerate(world.processes)]
            return judge_session(evidence(world))[0].flags

        def state(clock, reasons):
            both = {"clock_sm_mhz": clock, "throttle_reasons": reasons}
            return {"before": both, "after": both}

        assert flags({}) == ()
        assert flags(state(1980.0, "0x0000000000000001")) == ()
        assert flags(state(1980.0, "0x0000000000000040")) == ("throttled",)
        assert flags(state(1980.0, "0x0"), state(1500.0, "0x0")) == ("clock changed",)
        assert flags(state(1980.0, "not told")) == ()

    @pytest.mark.parametrize("counter", ["core_throttle_count", "cgroup_throttled_count"])
    def test_a_processor_is_throttled_where_a_count_moves(self, make_world, counter):
        def flags(before, after):
            world = measured(make_world())
            telemetry = {"before": before, "after": after}
            world.processes = [replace(one, telemetry=telemetry) for one in world.processes]
            return judge_session(evidence(world))[0].flags

        assert flags({counter: 4.0}, {counter: 7.0}) == ("throttled",)
        assert flags({counter: 0}, {counter: 1}) == ("throttled",)
        assert flags({counter: 4.0}, {counter: 4.0}) == (), "what happened before the round is past"
        assert flags({}, {counter: 4.0}) == ()
        assert flags({"clock_mhz": 2400.0}, {"clock_mhz": 3400.0}) == (), "idle before, at work after"

    def test_calm_telemetry_of_every_kind_is_no_flag(self, make_world):
        world = measured(make_world())
        clocks = [1980.0, 1965.0, 1980.0, 1950.0]
        world.processes = [
            replace(
                one,
                telemetry={
                    "before": {"clock_sm_mhz": 345.0, "throttle_reasons": "0x1", "core_throttle_count": 9},
                    "after": {"clock_sm_mhz": clocks[one.round % 4], "throttle_reasons": "0x0", "core_throttle_count": 9},
                },
            )
            for one in world.processes
        ]
        assert judge_session(evidence(world))[0].flags == ()

    def test_bytes_and_counts_do_not_throttle(self, make_world):
        world = measured(make_world(), peak_allocated=100.0)
        state = {"throttle_reasons": "0x0000000000000004"}
        world.processes = [replace(one, telemetry={"before": state, "after": state}) for one in world.processes]
        judged = {one.metric: one.flags for one in judge_session(evidence(world))}
        assert judged == {"step_time": ("throttled",), "peak_allocated": ()}

    def test_drift_bimodal_and_interleave(self, make_world):
        world = make_world()
        for number in range(8):
            world.process(0, number, measurements={"step_time": 22.5 if number % 2 else 25.5})
            world.process(1, number, measurements={"step_time": 22.5})
            world.ratio(1, number, 0.01 * number)
        world.ratios = [replace(one, interleave=Interleave.PROCESS) for one in world.ratios]
        assert judge_session(evidence(world))[0].flags == ("drift", "baseline bimodal", "not interleaved in blocks")


class TestAcross:
    def test_bytes_are_judged_and_times_are_not(self, make_world):
        base, head = (
            measured(make_world(), peak_allocated=100.0),
            measured(make_world(), times=(2e6, 2e6), peak_allocated=150.0),
        )
        judged = {(one.position, one.metric): one for one in judge_across(evidence(base), evidence(head))}
        assert judged[1, "peak_allocated"].outcome is Outcome.MORE
        assert judged[1, "step_time"].reason is Reason.DIFFERENT_SESSION
        assert judged[1, "step_time"].effect == 2.0
        assert judged[1, "step_time"].baseline_session_id == base.session.id

    def test_another_machine_is_incomparable_but_predictions_are_not(self, make_world):
        base, head = make_world(machine=Machine({"cpu": "Another", "cores": 64})), make_world()
        for world, peak in ((base, 100.0), (head, 150.0)):
            measured(world)
            world.process(1, -1, role=Role.PREDICT, measurements={"peak_allocated": peak})
        judged = {(one.position, one.role): one for one in judge_across(evidence(base), evidence(head))}
        assert judged[1, Role.MEASURE].reason is Reason.DIFFERENT_MACHINE
        assert "Another" in judged[1, Role.MEASURE].sentence
        assert judged[1, Role.PREDICT].outcome is Outcome.MORE

    def test_another_device_is_incomparable(self, make_world):
        base, head = measured(make_world()), measured(make_world())
        head.session = replace(head.session, device="cuda:0")
        assert {one.outcome for one in judge_across(evidence(base), evidence(head))} == {Outcome.INCOMPARABLE}

    def test_another_suite_version_is_incomparable(self, make_world):
        base, head = measured(make_world(version="v1")), measured(make_world(version="v2"))
        judged = judge_across(evidence(base), evidence(head))
        assert {one.reason for one in judged} == {Reason.DIFFERENT_SUITE_VERSION}
        assert {one.outcome for one in judged} == {Outcome.INCOMPARABLE}

    def test_a_case_that_the_base_lacks_was_not_measured(self, make_world):
        base, head = measured(make_world(vocabularies=[1])), measured(make_world(vocabularies=[2]))
        assert {one.reason for one in judge_across(evidence(base), evidence(head))} == {Reason.NOT_MEASURED}

    def test_nothing_in_common(self, make_world):
        with pytest.raises(UsageError, match="share no implementation"):
            judge_across(evidence(make_world(("a", "b"))), evidence(make_world(("c", "d"))))
