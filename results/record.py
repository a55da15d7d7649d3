"""The words of Frostline as types: what a sample, a process, a side, a case, a session and a verdict are.

Standard library only, so that the worker (which must stay light), the store and the statistics speak of the same things.
`docs/architecture.md`, section "Words", defines each term.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeAlias

Params: TypeAlias = Mapping[str, int | float | str | bool]


class UsageError(Exception):
    """A mistake that the user can mend: one line that names the argument, what was given and what was wanted (exit 2)."""


class NothingMeasured(Exception):
    """Nothing could be measured (a build failed, every side failed): one line, exit 4."""


class Interrupted(Exception):
    """A session was stopped from the keyboard; what it has is kept: one line with the command that finishes it, exit 130.

    No `KeyboardInterrupt`: the parser of the command line would take that for one of before anything was kept.
    """


class Status(StrEnum):
    """How one process ended. Every one is a row of the store with a reason; none is an exception that loses the others."""

    OK = "ok"
    WRONG = "wrong"
    OOM = "oom"
    TIMEOUT = "timeout"
    CRASH = "crash"
    ERROR = "error"
    SKIPPED = "skipped"


class Role(StrEnum):
    """What a process was for."""

    MEASURE = "measure"
    VERIFY = "verify"
    PREDICT = "predict"  # the cost model's fake tensors: nothing was run


class Interleave(StrEnum):
    """How the sides of a round shared the device: in blocks between live processes, or one process after the other."""

    BLOCK = "block"
    PROCESS = "process"


class Kind(StrEnum):
    """How a metric is judged: `timing` by its rounds, `exact` by equality, `bytes` within a byte tolerance."""

    TIMING = "timing"
    EXACT = "exact"
    BYTES = "bytes"


class Direction(StrEnum):
    """Which way is better."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True)
class Metric:
    """A named quantity. `unit` is the unit that the store keeps (`ns`, `B`, `FLOP`, `1`)."""

    name: str
    unit: str
    kind: Kind
    description: str
    direction: Direction = Direction.LOWER


STEP_TIME = Metric("step_time", "ns", Kind.TIMING, "one step: CUDA events on a GPU, perf_counter_ns on a CPU")
COLD_STEP_TIME = Metric("cold_step_time", "ns", Kind.TIMING, "one step between CUDA events, the L2 cache overwritten before it")
KERNEL_TIME = Metric("kernel_time", "ns", Kind.TIMING, "the kernels of one step alone, nothing of it in the L2 cache before")
HOST_TIME = Metric(
    "host_time", "ns", Kind.TIMING, "the host's time of one step, of many back to back that it does not wait for"
)
PEAK_ALLOCATED = Metric("peak_allocated", "B", Kind.BYTES, "peak of live allocated bytes, inputs and weights included")
PEAK_ABOVE_INPUTS = Metric(
    "peak_above_inputs", "B", Kind.BYTES, "peak of live allocated bytes above what was live before the step"
)
PEAK_RESERVED = Metric("peak_reserved", "B", Kind.BYTES, "peak of bytes that the CUDA allocator reserved")
PEAK_RESIDENT = Metric("peak_resident", "B", Kind.BYTES, "peak resident set of the process (suites that do not use torch)")
FLOPS = Metric("flops", "FLOP", Kind.EXACT, "floating-point operations of the matrix products of one step")
OPERATORS = Metric("operators", "1", Kind.EXACT, "torch operators dispatched in one step")

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        STEP_TIME,
        COLD_STEP_TIME,
        KERNEL_TIME,
        HOST_TIME,
        PEAK_ALLOCATED,
        PEAK_ABOVE_INPUTS,
        PEAK_RESERVED,
        PEAK_RESIDENT,
        FLOPS,
        OPERATORS,
    )
}


IMPORTED = "imported"  # the source kind of sides, and the isolation of processes, that another program measured

BAR_ERRORS = ("relative", "maximum")
"""The errors of a verified output that a bar can be about: the fields of `Verification`."""


def content_id(content: Any) -> str:
    """A global id for what is what it contains (machines, cases, sources): 16 hex digits of SHA-256 of canonical JSON."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def new_id() -> str:
    """A UUIDv7 (RFC 9562): sortable by time, unique over machines. For sessions and processes."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (2**48 - 1)) << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=value))


@dataclass(frozen=True)
class Machine:
    """Where a session ran. Two machines of equal content are one; `content` holds cpu, cores, memory, gpu, driver, os, ..."""

    content: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Hash of the content."""
        return content_id(self.content)

    @property
    def label(self) -> str:
        """A name to print: the GPU if there is one, else the CPU and its cores."""
        return str(
            self.content.get("gpu") or f"{self.content.get('cpu', 'cpu')}, {self.content.get('cores', os.cpu_count())} cores"
        )


@dataclass(frozen=True)
class Case:
    """One point of a suite's axes. The suite's version belongs to its identity: verdicts never mix versions."""

    suite: str
    suite_version: str
    params: Params

    @property
    def id(self) -> str:
        """Hash of suite, version and params."""
        return content_id([self.suite, self.suite_version, dict(self.params)])

    @property
    def label(self) -> str:
        """Every axis with its value."""
        return " ".join(f"{name}={value}" for name, value in self.params.items())


@dataclass(frozen=True)
class Bar:
    """What a suite asks a figure to reach in the cases that have the values of `where`.

    The figure is compared with `at_most` or `at_least`: itself, or what it is over that of `against`, and where `across` is
    given in the case that differs from this one in those values alone. `results/bars.py` judges it.

    Attributes:
        says: what is asked for, in words.
        side: the implementation whose figure it is.
        figure: a metric's name, or `OUTPUT.relative` or `OUTPUT.maximum`, an error of a verified output.
        at_most, at_least: one of the two: a ratio, or without something to compare with a value in the figure's unit.
        where: the axes' values of the cases that it is for; an axis that is not named may have any.
        against: the implementation that it is compared with; empty with `across`: the same one.
        across: values of axes of the case that it is compared with; empty: the same case.
    """

    says: str
    side: str
    figure: str
    at_most: float | None = None
    at_least: float | None = None
    where: Params = field(default_factory=dict)
    against: str = ""
    across: Params = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("says", "side", "figure", "against"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"Bar {self.says!r}: {name}: got {getattr(self, name)!r}, wanted a word")
        for name in ("at_most", "at_least"):
            limit = getattr(self, name)
            if limit is not None and not (_is_number(limit) and math.isfinite(limit)):
                raise UsageError(f"Bar {self.says!r}: {name}: got {limit!r}, wanted a finite number")
        for name in ("where", "across"):
            values = getattr(self, name)
            if not isinstance(values, Mapping) or not all(isinstance(one, int | float | str) for one in values.values()):
                raise UsageError(f"Bar {self.says!r}: {name}: got {values!r}, wanted one value for an axis, like {{'n': 1}}")
        if (self.at_most is None) == (self.at_least is None):
            raise UsageError(f"Bar {self.says!r}: wanted one of at_most and at_least, got {self.at_most} and {self.at_least}")
        output, _, error = self.figure.rpartition(".")
        if self.figure not in METRICS and not (output and error in BAR_ERRORS):
            wanted = f"{', '.join(METRICS)}, or an output's error such as d_hidden.{BAR_ERRORS[0]}"
            raise UsageError(f"Bar {self.says!r}: figure: got {self.figure!r}, wanted {wanted}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class SideRecord:
    """A side as the store keeps it: an implementation at a source, at a position of its session.

    `source` is what the user typed (or `installed`), `source_id` a hash of the content that it led to.
    """

    position: int
    implementation: str
    source: str
    source_kind: str
    source_id: str
    baseline: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The implementation, with its source unless that is what is installed."""
        return self.implementation if self.source_kind == "installed" else f"{self.implementation} @ {self.source}"


@dataclass(frozen=True)
class Session:
    """All that one command measured. `plan` is what `--resume` finishes; `detail` holds versions, commit, dirty hash.

    `origin` is the form and file that another program's figures were imported from; empty for what was measured here.
    """

    id: str
    command: str
    created_at: str
    machine_id: str
    device: str
    plan: Mapping[str, Any]
    detail: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True)
class Sample:
    """One reading of one metric in one timed step.

    `block` counts the process's own blocks from 0: a cycle goes forth and back, so blocks 2k and 2k + 1 are cycle k.
    `t_ns` is the monotonic clock at the step's start: it orders the samples of all processes of a machine.
    """

    metric: str
    block: int
    t_ns: int
    value: float


@dataclass(frozen=True)
class Verification:
    """One output of a side against the suite's reference. `relative` is ||out - ref|| / ||ref||, `maximum` max |out - ref|.

    `allowed` is the bound on `relative`: a multiple of what the yardstick (plain torch, same dtype) gets wrong.
    """

    output: str
    relative: float
    maximum: float
    allowed: float

    @property
    def ok(self) -> bool:
        """Whether the error is within what is allowed."""
        return self.relative <= self.allowed  # False for NaN


@dataclass(frozen=True)
class Module:
    """A target package's module that a process imported: the proof of which code ran."""

    name: str
    file: str
    sha256: str


@dataclass(frozen=True)
class ProcessRecord:
    """What one process (one case on one side in one round) gave.

    `round` counts from 0; verification and prediction have round -1. `counted` says that this attempt is the one that
    stands for its round. `measurements` has one value a metric: the median of the samples, or the peak, or the count. `cost` is
    what a prediction's figures are made of, as `results/breakdown.py` reads it.
    """

    id: str
    session_id: str
    position: int
    case_id: str
    role: Role
    round: int
    status: Status
    reason: str = ""
    counted: bool = True
    attempt: int = 0
    interleave: Interleave = Interleave.BLOCK
    isolation: str = "spawn"
    started_at: str = ""
    seconds: float = 0.0
    stderr: str = ""
    measurements: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    verifications: Sequence[Verification] = ()
    modules: Sequence[Module] = ()
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)

    @property
    def code_id(self) -> str:
        """A hash of the code of the target packages that was loaded; empty when none was."""
        return _code_id(tuple(self.modules)) if self.modules else ""


@lru_cache(maxsize=256)
def _code_id(modules: tuple[Module, ...]) -> str:
    """All processes of a side mostly load the same modules, often hundreds."""
    return content_id(sorted((module.name, module.sha256) for module in modules))


@dataclass(frozen=True)
class RoundRatio:
    """One round's log ratio of a side to the baseline for one timing metric: the median over its cycles."""

    session_id: str
    case_id: str
    round: int
    metric: str
    position: int
    baseline_position: int
    log_ratio: float
    cycles: int
    interleave: Interleave


@dataclass(frozen=True)
class Imported:
    """A session that another program measured, whole: what the store adds at once."""

    session: Session
    machine: Machine
    sides: Sequence[SideRecord]
    cases: Sequence[Case]
    processes: Sequence[ProcessRecord]
    metrics: Sequence[Metric] = ()


class Outcome(StrEnum):
    """What is concluded of one case and metric between a side and the baseline."""

    FASTER = "faster"  # for timing; `less` is its word for exact metrics
    SLOWER = "slower"
    LESS = "less"
    MORE = "more"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
    BROKEN = "broken"
    INCOMPARABLE = "incomparable"

    @property
    def worse(self) -> bool:
        """Whether the side is worse than the baseline."""
        return self in (Outcome.SLOWER, Outcome.MORE, Outcome.BROKEN)


class Reason(StrEnum):
    """Why a verdict is what it is. Every code has a sentence and a test (`tests/results/test_reasons.py`)."""

    INTERVAL_EXCLUDES_ZERO = "interval_excludes_zero"
    INTERVAL_WITHIN_DELTA = "interval_within_delta"
    INTERVAL_TOO_WIDE = "interval_too_wide"
    EFFECT_BELOW_DELTA = "effect_below_delta"
    TOO_FEW_ROUNDS = "too_few_rounds"
    EQUAL = "equal"
    WITHIN_TOLERANCE = "within_tolerance"
    DIFFERENT = "different"
    VARIES = "varies"  # an exact metric that differs between processes of one side
    SIDE_FAILED = "side_failed"
    SIDE_WRONG = "side_wrong"
    BASELINE_FAILED = "baseline_failed"
    NOT_MEASURED = "not_measured"
    NO_VALUE = "no_value"  # measured, but without this metric
    DIFFERENT_MACHINE = "different_machine"
    DIFFERENT_SUITE_VERSION = "different_suite_version"
    DIFFERENT_SESSION = "different_session"  # times that were not interleaved with the baseline's


@dataclass(frozen=True)
class Verdict:
    """A conclusion with its evidence.

    `effect`, `low` and `high` are ratios to the baseline (1.05: 5 % more). For a timing metric they are the geometric mean
    over rounds and its interval, of the confidence `level`; for an exact one all three are the ratio itself (NaN where there
    is none). `delta` is the smallest change worth a word, as a fraction. `flags` are remarks that change no verdict: same
    code, drift, bimodal, ... `role` tells a verdict on measured figures from one on the cost model's. `baseline_session_id`
    is empty where the baseline was measured in the same session.
    """

    session_id: str
    case_id: str
    metric: str
    position: int
    baseline_position: int
    outcome: Outcome
    reason: Reason
    sentence: str
    effect: float
    low: float
    high: float
    delta: float
    rounds: int
    p_value: float
    flags: Sequence[str] = ()
    role: Role = Role.MEASURE
    baseline_session_id: str = ""
    level: float = 0.99
