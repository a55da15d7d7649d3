"""The policy of the gate: what `[tool.frostline.gate]` of a `pyproject.toml` says, as frozen dataclasses.

    [tool.frostline.gate]
    inconclusive = "warn"                 # or "fail", the default

    [tool.frostline.gate.suites.grpo]
    preset = "small"
    axes = { vocab = [4096], lm_head = ["frozen", "trainable"] }

    [tool.frostline.gate.metrics.step_time]
    delta = 0.05

`policy_file.py` reads it, `policy_words.py` says it in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from frostline.results.judge import Thresholds
from frostline.results.record import FLOPS, PEAK_ALLOCATED, STEP_TIME, Outcome

TABLE = "tool.frostline.gate"
MERGE_BASE, LAST_GREEN, STORED_SESSION = "merge-base", "last-green", "session:"
"""What a base may be beside a revision; a session's id follows its word."""


@dataclass(frozen=True)
class SuitePolicy:
    """Which cases of a suite are gated, and in how many rounds where times are measured.

    `preset` None means the suite's own choice; `rounds` (of a look) None the preset's; `max_rounds` None two looks.
    """

    name: str
    preset: str | None = None
    axes: Mapping[str, Sequence[int | float | str | bool]] = field(default_factory=dict)
    rounds: int | None = None
    max_rounds: int | None = None


@dataclass(frozen=True)
class MetricPolicy:
    """A gated metric. `delta`: smallest change worth a word, a fraction; `byte_tolerance` in bytes; None means the default."""

    name: str
    delta: float | None = None
    byte_tolerance: float | None = None


DEFAULT_METRICS = tuple(MetricPolicy(metric.name) for metric in (STEP_TIME, PEAK_ALLOCATED, FLOPS))


@dataclass(frozen=True)
class Limits:
    """How long one call of the gate may measure; None leaves it to the policy. Rounds as of a suite's policy."""

    rounds: int | None = None
    max_rounds: int | None = None
    budget_s: float | None = None

    @property
    def given(self) -> list[str]:
        """The options that set them."""
        options = {"--rounds": self.rounds, "--max-rounds": self.max_rounds, "--budget": self.budget_s}
        return [option for option, value in options.items() if value is not None]


@dataclass(frozen=True)
class Policy:
    """What the gate compares, and what makes it fail.

    `blocks`: outcomes that fail it (exit 1). `inconclusive`: whether a verdict that could not be reached fails it too (exit
    3) or is only said. `base`: what is compared with: a revision, `merge-base`, `last-green` (the newest ancestor on the
    main branch of which a stored gate passed), or `session:ID` (what a stored session had as its head). `predicted`:
    whether the cost model's figures are gated: `auto` means on machines without a GPU. `false_discovery`: the share of false
    ones that is allowed among the times that block (Benjamini and Hochberg). `isolation`: how processes are started, `spawn`
    or `fork`. `budget_s`: seconds that measuring may take, all suites together; None sets no limit. `python`: the environment
    that measures, a path from the root of the repository; empty for the command's own.
    """

    suites: Sequence[SuitePolicy] = ()
    metrics: Sequence[MetricPolicy] = DEFAULT_METRICS
    blocks: Sequence[Outcome] = (Outcome.SLOWER, Outcome.MORE, Outcome.BROKEN)
    inconclusive: str = "fail"
    base: str = MERGE_BASE
    predicted: bool | str = "auto"
    false_discovery: float = 0.01
    isolation: str = "spawn"
    budget_s: float | None = None
    python: str = ""

    def limited(self, limits: Limits) -> Policy:
        """The policy with the limits of one call in place of its own, where there are any. Rounds hold for every suite."""
        suites = self.suites
        if limits.rounds or limits.max_rounds:
            suites = [
                replace(
                    suite,
                    rounds=limits.rounds or suite.rounds,
                    max_rounds=limits.max_rounds or (None if limits.rounds else suite.max_rounds),
                )
                for suite in suites
            ]
        return replace(self, suites=suites, budget_s=limits.budget_s or self.budget_s)

    def judging(self) -> dict[str, Any]:
        """What decides of verdicts, as JSON: kept with a gate's sessions, so that later ones know whether it passed."""
        return {
            "metrics": [metric.name for metric in self.metrics],
            "blocks": [outcome.value for outcome in self.blocks],
            "inconclusive": self.inconclusive,
            "predicted": self.predicted,
            "false_discovery": self.false_discovery,
        }

    @classmethod
    def of_judging(cls, kept: Mapping[str, Any], suites: Sequence[str]) -> Policy:
        """The policy that `judging` kept, for the suites that were measured under it."""
        return cls(
            suites=tuple(map(SuitePolicy, suites)),
            metrics=tuple(map(MetricPolicy, kept["metrics"])),
            blocks=tuple(map(Outcome, kept["blocks"])),
            inconclusive=kept["inconclusive"],
            predicted=kept["predicted"],
            false_discovery=kept["false_discovery"],
        )

    def thresholds(self, suite_deltas: Mapping[str, Mapping[str, float]] | None = None) -> Thresholds:
        """The policy's thresholds for `judge_session`; where it says nothing, a suite's own hold (by suite and metric)."""
        own = {metric.name: metric.delta for metric in self.metrics if metric.delta is not None}
        names = {suite.name for suite in self.suites} | set(suite_deltas or {})
        deltas = {name: {**(suite_deltas or {}).get(name, {}), **own} for name in names}
        tolerances = {metric.name: metric.byte_tolerance for metric in self.metrics if metric.byte_tolerance is not None}
        return Thresholds({"": own, **deltas}, tolerances)
