"""One measured process: builds one case on one side, then does what the session asks, one line of JSON at a time.

Started by `frostline.harness.isolation` as `python -P -m frostline.harness.worker READ_FD WRITE_FD`, or forked by
`frostline.harness.zygote`. It talks on those two descriptors only, so whatever the suite prints breaks nothing. It imports
torch only when the suite does.

Requests (`do`) and their replies:
    describe   the suite's declaration and the selected cases
    build      build the case, warm it up; replies the step's time and which times can be read
    block      take a number of readings of one of the times that the step asks for
    figures    build, and peaks and counts alone
    finish     peaks, counts and provenance, after the timed steps
    verify     build, compare the outputs with the reference
    prepare    load the suite for predictions to come
    predict    the same step under fake tensors; nothing runs
    plan       what the measured code would do with a problem, by the suite's hook
A failing request gets a status and a reason instead; the traceback goes to stderr. A reply has the modules imported of the
target packages where they are others than at the last.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import inspect
import json
import os
import platform
import random
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, NoReturn, TypeAlias

from frostline.harness import selection
from frostline.harness.declare import Skipped, Step, Suite
from frostline.harness.meters.clock import clock_for, warm_up
from frostline.harness.meters.clocks import Clocks, clocks_for
from frostline.harness.planning import PlanQuestion
from frostline.harness.provenance import imported_modules
from frostline.results.record import OPERATORS, STEP_TIME, Module, Status, UsageError

FIGURES_WARM_UP = 2  # steps that compile and fill caches before figures are read
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
Reply = dict[str, Any]
Loaded: TypeAlias = tuple[str, Suite]  # how a suite was named, and the suite


class Explained(Exception):
    """A failure whose message says all that there is to say: no traceback of ours would help."""


class Worker:
    """The state of one measured process between requests."""

    def __init__(self, start: Reply, inherited: Loaded | None = None) -> None:
        self.path: str = start.get("path") or ""
        self.targets: list[str] = start.get("targets") or []
        self.device: str = start.get("device") or "cpu"
        self.seed: int = start.get("seed") or 0
        self.memory_limit: int | None = start.get("memory_limit")
        if self.path and inherited is None:
            sys.path.insert(0, self.path)
        self.tracker: Any = None
        self.loaded = ""
        self.step: Step
        self.suite: Suite
        self.clocks = Clocks()
        if inherited is not None:
            self.loaded, self.suite = inherited

    def describe(self, request: Reply) -> Reply:
        """The declaration, with cases and implementations as selected: what a plan needs to know of a suite."""
        suite = self._load(request)
        device = request.get("device") or self._default_device()
        preset = suite.preset(request["preset"]) if request.get("preset") else selection.default_preset(suite, device)
        asked, settings = request.get("implementations") or [], request.get("settings") or []
        implementations = selection.choose_implementations(suite, asked, preset)
        cases = selection.select(suite, preset, settings)
        return {
            "suite": suite.name,
            "version": suite.version,
            "baseline": suite.baseline,
            "compared": suite.compared,
            "all_implementations": list(suite.implementations),
            "implementations": implementations,
            "targets": list(suite.targets),
            "delta": dict(suite.delta),
            "bars": [vars(bar) for bar in suite.bars],
            "rounds": preset.rounds,
            "axes": list(suite.axes),
            "rounds_of": selection.rounds_of(preset, cases, implementations, settings, asked=bool(asked)),
            "cases": [dict(case.params) for case in cases],
            "device": device,
        }

    def build(self, request: Reply) -> Reply:
        """Build the case and run it until it is warm."""
        self._build(request)
        gc.collect()
        gc.freeze()  # what was imported and built stays: collecting it before every block would take 0.1 s each time
        step_ns = warm_up(self.step, clock_for(self.device))
        self.clocks = clocks_for(self.step, self.device)
        return {"step_ns": step_ns, "times": list(self.clocks.of)}

    def block(self, request: Reply) -> Reply:
        """Take `steps` readings of a metric in a row, each over `loops` runs."""
        metric = request.get("metric", STEP_TIME.name)
        return {"metric": metric, "readings": self.clocks.of[metric](self.step, request["steps"], request.get("loops", 1))}

    def finish(self, _: Reply) -> Reply:
        """What is measured once, after the timed steps, so that no meter's own cost is in a time."""
        self.clocks = Clocks(how=self.clocks.how)  # what the clocks hold of the device's memory must be in no peak
        if "torch" in sys.modules:
            from frostline.harness.meters.counts import count
            from frostline.harness.meters.memory import measure_peaks

            measurements = measure_peaks(self.step, self.device, tracker=self.tracker) | count(self.step)
        else:
            from frostline.harness.meters.resident import measure_resident

            measurements = measure_resident(self.step)
        told = {metric: value for metric, value in measurements.items() if metric not in self.step.omit}
        return {"measurements": told, "environment": self._environment()}

    def figures(self, request: Reply) -> Reply:
        """What is measured once, of a step that was not timed."""
        self._build(request)
        for _ in range(FIGURES_WARM_UP):
            if self.step.reset is not None:
                self.step.reset()
            self.step.run()
        return self.finish(request)

    def verify(self, request: Reply) -> Reply:
        """The outputs' errors against the reference; an empty list where the suite has none."""
        self._build(request)
        if self.step.outputs is None or self.step.reference is None:
            return {"verifications": [], "environment": self._environment()}
        from frostline.harness.verify import verify_step

        return {"verifications": [vars(error) for error in verify_step(self.step)], "environment": self._environment()}

    def predict(self, request: Reply) -> Reply:
        """The cost model's figures. Fake tensors live on the CPU; `device` names whose branches are taken.

        One process predicts for several sides of a source, and may have been started before its target packages were known.
        """
        from frostline.harness.cost import predict

        suite = self._load(request)
        self.device, self.targets = request.get("device", self.device), request.get("targets", self.targets)
        gc.freeze()  # what was imported stays: looking through it before every step would take as long as the step
        gc.disable()  # and an implementation may import much: the step itself is collected before it runs
        context = _target(suite, self.device, request.get("capability"))
        build = _builder(suite, request, "cpu")
        try:
            cost = predict(build, context=context, device=self.device, traffic=suite.traffic() if suite.traffic else None)
        except UsageError as error:  # a step that asks its data is a result of this case, no mistake of the command's
            raise Explained(str(error)) from error
        finally:
            gc.enable()
        if not cost.figures.get(OPERATORS.name, 1):
            raise Explained(
                "the cost model needs tensors, and the step ran no operator of torch's; "
                "measure it: frostline run, frostline compare"
            )
        return {"measurements": dict(cost.figures), "cost": cost.to_json(), "environment": self._environment()}

    def prepare(self, request: Reply) -> Reply:
        """Load the suite, and what predicting needs once in a process."""
        self._load(request)
        if "torch" in sys.modules:
            from frostline.harness.cost import load_shapes

            load_shapes()
        return {}

    def plan(self, request: Reply) -> Reply:
        """The suite's own answer to a question about its plan."""
        suite = self._load(request)
        if suite.plan is None:
            raise UsageError(f"--suite: {suite.name} has no plan to print; grpo has")
        return {"answer": suite.plan(PlanQuestion(**request["question"])).to_json()}

    def _load(self, request: Reply) -> Suite:
        if self.loaded != request["suite"]:  # a suite's file may register operators: it is loaded once
            self.suite, self.loaded = selection.load_suite(request["suite"]), request["suite"]
        wanted = request.get("version", self.suite.version)
        if self.suite.version != wanted:
            raise ValueError(f"the suite is version {self.suite.version} now, and the session began with {wanted}")
        return self.suite

    def _build(self, request: Reply) -> None:
        _end_with_parent()
        build = _builder(self._load(request), request, self.device)
        random.seed(self.seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self.seed)
        with ExitStack() as stack:
            if "torch" in sys.modules:
                self._limit_memory()
                self._seed_torch()
                if self.device == "cpu":
                    from frostline.harness.meters.memory import LiveBytes

                    self.tracker = stack.enter_context(LiveBytes())
            try:
                self.step = build()
            except Exception:
                self._require_device()  # which says more than what torch says
                raise

    def _limit_memory(self) -> None:
        """Let torch's allocator give no more of the GPU than was allowed; beyond it is out of memory, as on a smaller card."""
        import torch

        if self.memory_limit is None or not torch.cuda.is_available():
            return
        there = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, self.memory_limit / there), self.device)

    def _require_device(self) -> None:
        if "torch" not in sys.modules:
            return
        import torch

        number = int(self.device.partition(":")[2] or 0)
        if self.device.startswith("cuda") and number >= torch.cuda.device_count():
            found = f"torch {torch.__version__} finds {torch.cuda.device_count() or 'no'} GPU here"
            raise UsageError(f"--device: {self.device}, and {found}; wanted one that is there, or cpu")

    def _seed_torch(self) -> None:
        import torch

        torch.manual_seed(self.seed)

    def _default_device(self) -> str:
        if "torch" not in sys.modules:
            return "cpu"
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    def _environment(self) -> Reply:
        found: Reply = {
            "python": platform.python_version(),
            "executable": sys.executable,
            "pid": os.getpid(),
            "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "seed": self.seed,
            "hash_seed": os.environ.get("PYTHONHASHSEED"),
        }
        if "torch" in sys.modules:
            import torch

            found |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
            if self.device.startswith("cuda") and torch.cuda.is_available():
                found |= {"cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name(0)}
                found["capability"] = list(torch.cuda.get_device_capability(0))
        if "triton" in sys.modules:
            found["triton"] = sys.modules["triton"].__version__
        if self.clocks.how:
            found["clocks"] = dict(self.clocks.how)
        step = getattr(self, "step", None)
        return found | ({"detail": dict(step.detail)} if step is not None and step.detail else {})


def _end_with_parent() -> None:
    """Be killed when the session is gone, in the midst of a step as well, which may last. Linux alone has it.

    Not before a step is built: what only describes or predicts may be started by a thread, whose end would count.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _target(suite: Suite, device: str, capability: list[int] | None) -> AbstractContextManager[Any]:
    """The context in which the measured code takes the branches of a device, of a generation where the hook has those."""
    enter = suite.target_device
    if enter is None:
        return nullcontext()
    if capability is not None and "capability" in inspect.signature(enter).parameters:
        return enter(device, capability=tuple(capability))
    return enter(device)


def _builder(suite: Suite, request: Reply, device: str) -> Callable[[], Step]:
    def build() -> Step:
        made = suite.function(request["implementation"], device, **request["params"])
        step = made if isinstance(made, Step) else Step(run=made)
        if not callable(step.run) or inspect.iscoroutinefunction(step.run) or inspect.isgeneratorfunction(step.run):
            raise TypeError(f"the suite's function must return a plain function or a Step, got {made!r}")
        return step

    return build


def _failure(error: BaseException) -> Reply:
    """The status that an exception stands for, with one line of reason."""
    if isinstance(error, Skipped):
        return {"status": Status.SKIPPED, "reason": str(error)}
    if isinstance(error, UsageError):
        return {"usage": str(error)}
    if isinstance(error, Explained):
        return {"status": Status.ERROR, "reason": str(error)}
    with suppress(Exception):
        traceback.print_exception(error)
    message = f"{type(error).__name__}: {error}".strip().splitlines()[0][:500]
    return {"status": Status.OOM if is_out_of_memory(error) else Status.ERROR, "reason": message}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: Python's, CUDA's, or the CPU allocator's of torch."""
    names = {cls.__name__ for cls in type(error).__mro__}
    said = str(error)
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in said or "out of memory" in said


def serve(read_fd: int, write_fd: int, inherited: Loaded | None = None) -> None:
    """Answer requests until the session closes its end. `inherited`: the suite that this process was forked with."""
    with os.fdopen(read_fd) as requests, os.fdopen(write_fd, "w") as replies:
        worker = Worker(json.loads(requests.readline()), inherited)
        told: list[Module] = []
        for line in requests:
            request = json.loads(line)
            try:
                reply = getattr(worker, request["do"])(request)
            except Exception as error:  # every failure of the measured code is a row of the store
                reply = _failure(error)
            found = imported_modules(worker.targets)
            if found != told:  # they may be a thousand, and seldom change between two blocks
                reply["modules"], told = [vars(module) for module in found], found
            with suppress(Exception):  # a suite may have closed or replaced them
                sys.stdout.flush()
                sys.stderr.flush()
            replies.write(json.dumps(reply, default=str, skipkeys=True) + "\n")
            replies.flush()


def leave() -> NoReturn:
    """Do what the suite left to be done at the end, then go without tearing torch down, which takes 0.5 s."""
    atexit._run_exitfuncs()
    with suppress(Exception):
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
    leave()
