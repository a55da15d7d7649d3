"""The clocks for a GPU, with a stand-in for CUDA: what is flushed, captured and replayed, and what a profile adds up to."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from frostline.harness import Step
from frostline.harness.meters import clock, clocks, kernels
from frostline.harness.meters.clock import ColdEvents, time_calls
from frostline.harness.meters.kernels import Kernel, Replays, between_markers, make_turns

L2 = 1000


class Gpu:
    """Notes what is done with it, in order. Each event is `event_ms` after the one before."""

    def __init__(self, monkeypatch, behind=False, event_ms=1.0):
        self.done, self.events, self.behind = [], 0, behind
        gpu = self

        class Event:
            def __init__(self, **_):
                self.at = None

            def record(self):
                gpu.events += 1
                self.at = gpu.events
                gpu.done.append("event")

            def elapsed_time(self, other):
                return event_ms * (other.at - self.at)

            def query(self):
                return not gpu.behind

            def synchronize(self):
                gpu.done.append("wait")

        class Graph:
            def replay(self):
                gpu.done.append("replay")

        class Stream:
            def wait_stream(self, _):
                pass

        @contextmanager
        def scope(name):
            gpu.done.append(name)
            yield
            gpu.done.append(f"end {name}")

        for name, made in {
            "Event": Event,
            "CUDAGraph": Graph,
            "Stream": Stream,
            "current_stream": Stream,
            "stream": lambda _: scope("stream"),
            "graph": lambda *_, **__: scope("capture"),
            "synchronize": lambda: None,
            "current_device": lambda: 0,
            "get_device_properties": lambda _: SimpleNamespace(L2_cache_size=L2),
            "memory_allocated": lambda: 1500 * self.done.count("made"),
        }.items():
            monkeypatch.setattr(torch.cuda, name, made)

    def run(self, name="run"):
        return lambda: self.done.append(name)

    def alike(self):
        self.done.append("made")
        return self.run()


def test_a_cold_reading_is_one_run_after_the_cache_was_overwritten(monkeypatch):
    gpu = Gpu(monkeypatch)
    readings = ColdEvents(gpu.run("flush"))(Step(gpu.run(), reset=gpu.run("reset")), 2, loops=50)
    assert gpu.done == ["reset", "flush", "event", "run", "event"] * 2
    assert [value for _, value in readings] == [1e6, 1e6]


def test_what_overwrites_the_cache_is_larger_than_it(monkeypatch):
    Gpu(monkeypatch)
    empty, made = torch.empty, []
    monkeypatch.setattr(torch, "empty", lambda size, **_: made.append(empty(size, dtype=torch.int8).fill_(1)) or made[0])
    clock.flusher()()
    assert made[0].numel() == 4 * L2 and not made[0].any()


@pytest.mark.parametrize("behind", [False, True])
def test_the_host_goes_from_call_to_call_and_waits_only_where_the_gpu_falls_behind(monkeypatch, behind):
    gpu = Gpu(monkeypatch, behind)
    readings = time_calls(Step(gpu.run()), 3, loops=4)
    a_reading, wait = ["run"] * 4, ["wait"] * behind
    assert gpu.done == [*a_reading, "event", *a_reading, *wait, "event", *a_reading, *wait, "event"]
    assert len(readings) == 3 and all(0 < value < 1e6 for _, value in readings)


@pytest.mark.parametrize(("event_ms", "rounds"), [(1.0, 1), (0.3, 4)])
def test_a_graph_holds_runs_on_tensors_that_exceed_the_cache_and_is_replayed_for_each_reading(monkeypatch, event_ms, rounds):
    gpu = Gpu(monkeypatch, event_ms=event_ms)
    replays = Replays(gpu.alike)
    assert gpu.done[:11] == ["stream", *["made", "run"] * 4, "end stream", "capture"], "1,500 bytes each, 5 times 1,000 wanted"
    assert gpu.done[11:16] == ["run"] * 4 + ["end capture"]
    captured = [len(list(group)) for name, group in itertools.groupby(gpu.done[10:]) if name == "run"]
    assert captured == ([4] if rounds == 1 else [4, 16]), "a replay takes 1 ms or more"
    assert replays.runs == 4 * rounds and "4 sets of tensors" in replays.how
    del gpu.done[:]
    readings = replays(Step(gpu.run("never")), 3, loops=9)
    assert gpu.done == ["event", "replay", "event"] * 3
    assert [value for _, value in readings] == pytest.approx([event_ms * 1e6 / (4 * rounds)] * 3)


def test_a_run_is_captured_while_the_results_of_the_others_are_there(monkeypatch):
    Gpu(monkeypatch)
    alive, most = set(), []

    class Result:
        def __init__(self):
            alive.add(id(self))
            most.append(len(alive))

        def __del__(self):
            alive.discard(id(self))

    kernels._capture([Result, Result, Result], 9, None)
    assert max(most) == 4 and not alive


def test_a_capture_that_fails_gives_the_stream_back(monkeypatch):
    Gpu(monkeypatch)
    given = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "before")
    monkeypatch.setattr(torch.cuda, "set_stream", given.append)

    def fail():
        raise RuntimeError("not while capturing")

    with pytest.raises(RuntimeError, match="not while capturing"):
        kernels._capture([fail], 1, None)
    assert given == ["before"]


def test_runs_are_made_until_their_tensors_exceed_what_is_asked_for():
    taken = []

    def alike():
        taken.append(0)
        return lambda: taken.append(30)

    assert len(make_turns(alike, lambda: sum(taken), 100)) == 4
    assert len(make_turns(alike, lambda: sum(taken), 10)) == 2, "one alone would find its own tensors"
    with pytest.raises(RuntimeError, match="64 runs on tensors of their own fit"):
        make_turns(alike, lambda: 0, 1)


def test_a_profile_counts_what_is_between_two_markers():
    marker, work = "at::cuda::spin_kernel(long)", "norm"
    ran = [
        (marker, 1),
        ("step", 10),
        ("copy", 5),
        (marker, 1),
        ("flush", 99),
        (marker, 1),
        (work, 7),
        (marker, 1),
        ("later", 3),
    ]
    profile = [Kernel(name, float(start), float(duration)) for start, (name, duration) in enumerate(ran)]
    assert between_markers(profile[::-1]) == [15.0, 7.0]
    assert between_markers(profile[:-2]) == [15.0], "a run whose end is missing does not count"
    assert between_markers([]) == []


@pytest.mark.parametrize("alike", [None, lambda: None])
def test_without_a_graph_the_kernels_are_profiled_and_the_figure_says_why(monkeypatch, alike):
    def fail(_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    Gpu(monkeypatch)
    monkeypatch.setattr(kernels, "Replays", fail)
    monkeypatch.setattr(kernels.Profiles, "__call__", lambda *_: [])
    monkeypatch.setattr(clocks, "flusher", lambda: print)
    found = clocks.clocks_for(Step(print, times=["kernel_time", "host_time"], alike=alike), "cuda")
    assert list(found.of) == ["kernel_time", "host_time"] and found.of["host_time"] is time_calls
    because = "no graph: operation not permitted when stream is capturing" if alike else "the step has no `alike`"
    assert found.how == {"kernel_time": f"the sum of durations in a profile ({because})"}


def test_memory_that_runs_out_for_the_graph_is_a_result(monkeypatch):
    def fail(_):
        raise torch.OutOfMemoryError("full")

    Gpu(monkeypatch)
    monkeypatch.setattr(kernels, "Replays", fail)
    monkeypatch.setattr(clocks, "flusher", lambda: print)
    with pytest.raises(torch.OutOfMemoryError):
        clocks.clocks_for(Step(print, times=["kernel_time"], alike=lambda: print), "cuda")


def test_on_a_cpu_the_host_takes_the_step():
    found = clocks.clocks_for(Step(print, times=["cold_step_time", "step_time", "host_time"]), "cpu")
    assert found.of == {"step_time": clock.time_on_host, "host_time": clock.time_on_host}
    assert found.how == {"cold_step_time": "not read: needs a GPU, and this is cpu"}
