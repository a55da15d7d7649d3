"""How a step is timed: what is inside a reading, how many runs it covers, and what a warm-up does."""

from __future__ import annotations

import gc
import time

import pytest

from frostline.harness import Step
from frostline.harness.device import hold_device, this_machine
from frostline.harness.meters.clock import clock_for, time_on_cuda, time_on_host, warm_up
from frostline.harness.meters.telemetry import read_telemetry
from frostline.results.record import UsageError


def test_a_reading_is_one_run_and_the_reset_is_not_in_it():
    calls = []

    def reset():
        calls.append("reset")
        time.sleep(0.02)

    def run():
        calls.append("run")
        time.sleep(0.001)

    readings = time_on_host(Step(run, reset=reset), 3, loops=50)
    assert calls == ["reset", "run"] * 3, "a step that must be reset is never run twice for one reading"
    assert all(1e6 <= value < 15e6 for _, value in readings)
    assert [start for start, _ in readings] == sorted(start for start, _ in readings)


def test_a_short_step_is_run_several_times_for_one_reading():
    calls = []
    readings = time_on_host(Step(lambda: calls.append(1)), 4, loops=100)
    assert len(calls) == 400 and len(readings) == 4
    assert all(0 < value < 1e5 for _, value in readings), "the time of one run, not of a hundred"


def test_no_garbage_is_collected_inside_a_block():
    seen = []
    time_on_host(Step(lambda: seen.append(gc.isenabled())), 2)
    assert seen == [False, False] and gc.isenabled()


def test_an_error_in_a_step_leaves_the_collector_on():
    def fail():
        raise ValueError

    with pytest.raises(ValueError):
        time_on_host(Step(fail), 1)
    assert gc.isenabled()


def test_a_warm_up_runs_until_warm_and_tells_the_best_time():
    naps = iter([0.05, 0.03, 0.002, 0.002, 0.002])
    assert 2e6 <= warm_up(Step(lambda: time.sleep(next(naps))), time_on_host) < 20e6


def test_the_clock_follows_the_device():
    assert clock_for("cpu") is time_on_host and clock_for("cuda:1") is time_on_cuda


def test_a_gpu_is_held_by_one_session_at_a_time():
    with hold_device("cuda:7"):
        with pytest.raises(UsageError, match="--device: cuda:7 is held by another session"), hold_device("cuda:7"):
            pass
        with hold_device("cpu"), hold_device("cpu"):
            pass
    with hold_device("cuda:7"):
        pass


def test_a_machine_is_what_it_is_made_of_and_its_name_stays_private():
    machine = this_machine("cpu")
    assert machine.id == this_machine("cpu").id
    assert {"cpu", "cores", "memory_gib", "os", "host"} <= machine.content.keys()
    assert len(machine.content["host"]) == 8


def test_the_state_of_a_cpu_is_read():
    assert read_telemetry("cpu")["load_1min"] >= 0


def test_the_clock_of_the_core_at_work_and_the_counts_of_slowdowns_are_read(tmp_path):
    cores = tmp_path / "sys/devices/system/cpu"
    for core, (clock, slowed) in enumerate([(800_000, 2), (3_400_000, 5)]):
        for name, content in (("cpufreq/scaling_cur_freq", clock), ("thermal_throttle/core_throttle_count", slowed)):
            file = cores / f"cpu{core}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n")
    (cores / "cpu2/cpufreq").mkdir(parents=True)
    (cores / "cpu2/cpufreq/scaling_cur_freq").write_text("<unknown>\n")
    state = read_telemetry("cpu", tmp_path)
    assert (state["clock_mhz"], state["core_throttle_count"]) == (3400.0, 7)
    assert "cgroup_throttled_count" not in state, "what the machine does not tell is absent"
