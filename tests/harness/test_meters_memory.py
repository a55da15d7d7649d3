"""Peak memory: `LiveBytes` against hand counts, the profiler's memory events and torch's own tracker; the resident set."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from frostline.harness.declare import Step
from frostline.harness.meters import resident
from frostline.harness.meters.dispatch import OperatorWatch
from frostline.harness.meters.memory import LiveBytes, measure_peaks
from frostline.harness.meters.resident import measure_resident

MIB = 2**20


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def little_garbage() -> Iterator[None]:
    """Put what other modules made out of the collector's sight: a collection a step takes 0.2 s otherwise."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def scaled() -> Iterator[Callable[..., None]]:
    """A registered operator of the shape that ours have: it writes into a workspace that it is given and returns nothing."""
    library = torch.library.Library("frostline_test_memory", "DEF")
    library.define("scale_into(Tensor source, float by, Tensor(a!) out) -> ()")

    def scale_into(source: torch.Tensor, by: float, out: torch.Tensor) -> None:
        torch.mul(source, by, out=out)

    library.impl("scale_into", scale_into, "CPU")
    yield torch.ops.frostline_test_memory.scale_into
    library._destroy()


def ones(count: int, **options: Any) -> torch.Tensor:
    """`count` floats: 4 bytes each."""
    return torch.ones(count, **options)


class TestLiveBytes:
    def test_counts_a_storage_from_its_birth_to_its_end(self) -> None:
        with LiveBytes() as live:
            a = ones(1000)
            b = ones(500)
            del a
            c = ones(100)
        assert (live.current, live.peak) == (2400, 6000)
        del b, c
        assert live.current == 0, "what is freed after the context was left is counted too"
        assert live.peak == 6000

    def test_views_and_in_place_operators_are_no_new_memory(self) -> None:
        with LiveBytes() as live:
            a = ones(1000)
            view = a.view(10, 100).t()[3:5].detach()
            a.add_(1).mul_(a)
            view.zero_()
        assert live.peak == 4000
        del a
        assert live.current == 4000, "a view keeps its storage alive"
        del view
        assert live.current == 0

    def test_out_counts_the_storage_that_was_given(self) -> None:
        with LiveBytes() as live:
            a, out = ones(1000), ones(1000)
            torch.exp(a, out=out)
        assert live.peak == 8000

    def test_a_storage_that_grows_or_shrinks_is_counted_anew(self) -> None:
        with LiveBytes() as live:
            a, out = ones(1000), torch.empty(0)
            torch.exp(a, out=out)
            assert live.current == 8000
            a.resize_(3000)
            assert live.current == 16000
            a.untyped_storage().resize_(0)  # as FSDP frees a parameter: no operator tells, the next use of it does
            a.detach()
            assert live.current == 4000

    def test_operators_that_return_nothing_and_lists_of_tensors(self, scaled: Callable[..., None]) -> None:
        with LiveBytes() as live:
            a, out = ones(1000), ones(1000)
            scaled(a, 3.0, out)
            assert live.peak == 8000
            torch._foreach_mul_([a, out], 2.0)
            assert live.peak == 8000
            copies = torch._foreach_mul([a, out], 2.0)
        assert live.peak == 16000
        assert out[0].item() == 6.0 and len(copies) == 2

    def test_tensors_from_elsewhere_count_once_they_are_used(self) -> None:
        outside = ones(1000)
        array = torch.from_numpy(numpy.ones(500))
        with LiveBytes() as live:
            assert live.current == 0
            outside.view(-1)
            array.detach()
        assert live.current == 8000

    def test_a_context_can_be_entered_again(self) -> None:
        live = LiveBytes()
        with live:
            a = ones(1000)
        untracked = ones(10**6)
        with live:
            b = ones(10)
        assert live.current == 4040
        live.reset_peak()
        del a, b, untracked
        assert (live.current, live.peak) == (0, 4040)

    def test_round_to_rounds_each_storage_up(self) -> None:
        with LiveBytes(round_to=512) as live:
            tensors = [ones(1), ones(128), ones(129), ones(0)]
        assert live.current == 512 + 512 + 1024
        assert len(tensors) == 4

    def test_round_to_below_one_is_refused(self) -> None:
        with pytest.raises(ValueError, match="round_to must be at least 1 byte, got 0"):
            LiveBytes(round_to=0)

    def test_meta_and_sparse_tensors_have_no_memory_of_their_own(self) -> None:
        with LiveBytes() as live:
            torch.ones(1000, device="meta")
            values = ones(10)
            values.to_sparse()
        assert live.current == 40

    def test_does_not_keep_what_it_watches_alive(self) -> None:
        live = LiveBytes()
        with live:
            a = ones(10)
        gone = weakref.ref(a)
        del a
        assert gone() is None

    @pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
    def test_composite_operators_are_seen_in_their_parts_in_every_mode(self, mode: Callable[[], Any]) -> None:
        """`matmul` copies a batch that strides cannot express, for `bmm`; inference mode hands `matmul` over whole."""
        a = ones(2 * 10 * 20).view(2, 1, 10, 20).expand(2, 3, 10, 20)
        b = ones(2 * 3 * 20 * 30).view(2, 3, 20, 30)
        with LiveBytes() as live, mode():
            torch.matmul(a, b)
        copy, result = 2 * 3 * 10 * 20, 2 * 3 * 10 * 30
        assert live.peak == 4 * (2 * 10 * 20 + 2 * 3 * 20 * 30 + copy + result)


# --- Whole steps against the profiler and against torch's tracker ------------------------------------------------------


def eager_head(*, frozen: bool) -> Step:
    hidden = torch.randn(64, 48, requires_grad=True)
    weight = torch.randn(300, 48, requires_grad=not frozen)
    targets = torch.randint(0, 300, (64,))

    def run() -> None:
        logits = hidden @ weight.t()
        (-logits.log_softmax(-1).gather(1, targets[:, None])).mean().backward()

    def reset() -> None:
        hidden.grad = weight.grad = None

    return Step(run=run, reset=reset)


def two_layers() -> Step:
    x = torch.randn(100, 64)
    first = torch.nn.Linear(64, 128)
    second = torch.nn.Linear(128, 64, bias=False)

    def run() -> None:
        second(first(x).relu_()).square().sum().backward()

    def reset() -> None:
        first.zero_grad()
        second.zero_grad()

    return Step(run=run, reset=reset)


def views_in_place_and_out() -> Step:
    x, out = torch.randn(200, 100), torch.empty(100, 200)

    def run() -> torch.Tensor:
        y = x.t().contiguous()
        torch.add(y, y, out=out)
        y.view(-1).mul_(out.view(-1))
        return torch.cat([y[:50], out[50:]]).t()

    return Step(run=run)


def gradient_twice() -> Step:
    """Two uses of one tensor: autograd sums their gradients, and keeps the graph of the first backward for the second."""
    x = torch.randn(80, 80, requires_grad=True)

    def run() -> None:
        y = (x @ x).tanh()
        loss = (y * y).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    def reset() -> None:
        x.grad = None

    return Step(run=run, reset=reset)


def gradient_of_an_indexing() -> Step:
    """Autograd fills zeros of the source's size, 120 KB, in place."""
    sources = [torch.randn(300, 100, requires_grad=True) for _ in range(3)]
    index, rows = torch.randint(0, 100, (300, 1)), torch.randint(0, 300, (20,))

    def run() -> None:
        a, b, c = sources
        (a.gather(1, index).sum() + b.index_select(0, rows).sum() + c[rows].sum()).backward()

    def reset() -> None:
        for source in sources:
            source.grad = None

    return Step(run=run, reset=reset)


STEPS = {
    "head, frozen": lambda: eager_head(frozen=True),
    "head, trainable": lambda: eager_head(frozen=False),
    "two layers": two_layers,
    "views, in place, out": views_in_place_and_out,
    "gradient twice": gradient_twice,
    "gradient of an indexing": gradient_of_an_indexing,
}


def profiled_peak(step: Step) -> int:
    """Peak of the running sum of the allocator's own events, above what was live before the step."""
    step.run()
    if step.reset is not None:
        step.reset()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step.run()
    results = profiler.profiler.kineto_results  # type: ignore[union-attr]  # set once the profiler has run
    events = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    total = peak = 0
    for _, size in events:
        total += size
        peak = max(peak, total)
    return peak


@pytest.mark.parametrize("build", STEPS.values(), ids=STEPS.keys())
def test_peak_above_inputs_is_the_profilers(build: Callable[[], Step]) -> None:
    step = build()
    profiled = profiled_peak(step)
    peak = measure_peaks(step, "cpu", repeats=1)["peak_above_inputs"]
    assert profiled > 80_000
    assert abs(peak - profiled) <= 64  # the profiler also sees the scalars that an operator wraps into tensors inside itself


@pytest.mark.parametrize("build", STEPS.values(), ids=STEPS.keys())
def test_peak_is_what_torchs_own_tracker_finds(build: Callable[[], Step]) -> None:
    from torch.distributed._tools.mem_tracker import MemTracker

    theirs, ours = MemTracker(), LiveBytes()
    with OperatorWatch(), theirs:  # inside ours theirs too sees the gradient of an indexing in place
        step = build()
        step.run()
    with ours:
        step = build()
        step.run()
    snapshot = theirs.get_tracker_snapshot("peak")[torch.device("cpu")]
    assert ours.peak == snapshot["Total"]


class TestMeasurePeaks:
    def test_inputs_and_step_are_told_apart(self) -> None:
        live = LiveBytes()
        with live:
            unused, x = ones(MIB), ones(MIB)
            step = Step(run=lambda: x + 1)
        figures = measure_peaks(step, "cpu", tracker=live)
        assert figures == {"peak_allocated": 12 * MIB, "peak_above_inputs": 4 * MIB}
        del unused

    def test_without_a_tracker_the_inputs_that_are_used_count(self) -> None:
        x = ones(MIB)
        assert measure_peaks(Step(run=lambda: x + 1), "cpu")["peak_allocated"] == 8 * MIB

    def test_gradients_that_reset_drops_are_above_the_inputs(self) -> None:
        frozen = measure_peaks(eager_head(frozen=True), "cpu")["peak_above_inputs"]
        trainable = measure_peaks(eager_head(frozen=False), "cpu")["peak_above_inputs"]
        assert trainable >= frozen

    def test_is_the_maximum_over_the_repeats(self) -> None:
        sizes = iter([9000, 100, 3000, 200])  # the first, which warms up, does not count
        figures = measure_peaks(Step(run=lambda: ones(next(sizes))), "cpu", repeats=3)
        assert figures["peak_above_inputs"] == 12_000

    def test_cycles_are_collected_before_a_step_and_not_in_it(self) -> None:
        def run() -> None:
            for _ in range(3):
                cycle: list[Any] = [ones(1000)]
                cycle.append(cycle)
            gc_runs.append(gc.isenabled())

        gc_runs: list[bool] = []
        figures = measure_peaks(Step(run=run), "cpu", repeats=2)
        assert figures["peak_above_inputs"] == 12_000
        assert gc_runs == [False] * 3
        assert gc.isenabled()

    def test_what_run_returns_is_dropped(self) -> None:
        figures = measure_peaks(Step(run=lambda: ones(1000)), "cpu", repeats=3)
        assert figures["peak_allocated"] == 4000

    @pytest.mark.parametrize("measure", [lambda step: measure_peaks(step, "cpu", repeats=0), lambda s: measure_resident(s, 0)])
    def test_no_repeats_are_refused(self, measure: Callable[[Step], Any]) -> None:
        with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
            measure(Step(run=lambda: None))


class TestCuda:
    """The allocator's statistics, on a stand-in for `torch.cuda`: what is asked, in which order, and what is made of it."""

    def test_reads_the_allocator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[str] = []
        peaks = iter([99, 50, 70, 60])
        answers: dict[str, Callable[[], int]] = {
            "synchronize": lambda: 0,
            "empty_cache": lambda: 0,
            "reset_peak_memory_stats": lambda: 0,
            "memory_allocated": lambda: 40,
            "max_memory_allocated": lambda: next(peaks),
            "max_memory_reserved": lambda: 128,
        }
        for name, answer in answers.items():

            def call(*_: Any, name: str = name, answer: Callable[[], int] = answer) -> int:
                calls.append(name)
                return answer()

            monkeypatch.setattr(torch.cuda, name, call)
        step = Step(run=lambda: calls.append("run"), reset=lambda: calls.append("reset"))
        figures = measure_peaks(step, "cuda")
        assert figures == {"peak_allocated": 70, "peak_above_inputs": 30, "peak_reserved": 128}
        one = ["reset", "synchronize", "empty_cache", "reset_peak_memory_stats", "memory_allocated", "run", "synchronize"]
        assert calls == [*one, "max_memory_allocated", "max_memory_reserved"] * 4

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_on_a_device(self) -> None:
        x = torch.ones(MIB, device="cuda")
        figures = measure_peaks(Step(run=lambda: x + 1), "cuda")
        assert figures["peak_above_inputs"] == 4 * MIB
        assert figures["peak_reserved"] >= figures["peak_allocated"] >= 8 * MIB


class TestResident:
    def test_sees_what_a_step_touches(self) -> None:
        """In a process of its own, as in a worker: one that has freed much before touches it again without growing."""
        script = """if True:
            from frostline.harness import Step
            from frostline.harness.meters.resident import measure_resident
            before = measure_resident(Step(run=lambda: None))["peak_resident"]
            during = measure_resident(Step(run=lambda: bytearray(64 * 2**20)), repeats=1)["peak_resident"]
            print(during - before)"""
        done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
        assert 48 * MIB < float(done.stdout) < 100 * MIB

    def test_reset_runs_before_each_step(self) -> None:
        calls: list[str] = []
        measure_resident(Step(run=lambda: calls.append("run"), reset=lambda: calls.append("reset")), repeats=2)
        assert calls == ["reset", "run"] * 2

    def test_without_proc_the_peak_of_the_process_stands(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        monkeypatch.setattr(resident, "_STATUS", tmp_path / "none")
        monkeypatch.setattr(resident, "_CLEAR", tmp_path / "none" / "either")
        peak = measure_resident(Step(run=lambda: None), repeats=1)["peak_resident"]
        assert 10 * MIB < peak < 2**40
