"""What a self-comparison (A/A) says of a machine: its noise, what it can tell, and whether it is `noisy`.

`frostline doctor --noise` compares the installed code with itself under the ordinary rule and stores that as a session. Here
it is judged anew whenever a report asks: nothing stored is marked, and a newer self-comparison of the machine decides.

A machine fails when a step came out `faster` or `slower` than itself, or when the noise of a round is so large that identical
code is more often not called the `same` within delta than it is, even over 16 rounds (`power.most_noise`, 4.9 % for 3 %).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from frostline.results.power import most_noise
from frostline.results.record import STEP_TIME, Case, Outcome, Reason, RoundRatio, Session, Verdict
from frostline.results.statistics import Values
from frostline.results.units import format_change, format_percent

if TYPE_CHECKING:
    from frostline.results.store import Store

DETAIL = "self_comparison"  # the key of a session's detail that says it is one
MOST_ROUNDS = 16  # of a comparison's two looks
TO_DEVIATION = 1.4826  # the median absolute deviation of a normal distribution is its standard deviation over this


@dataclass(frozen=True)
class StepNoise:
    """One step of a self-comparison. `noise` is the robust standard deviation of its rounds' log ratios."""

    name: str
    verdict: Verdict
    noise: float

    @property
    def judged(self) -> bool:
        """Whether there were rounds enough for the ordinary rule."""
        return self.verdict.reason in (
            Reason.INTERVAL_EXCLUDES_ZERO,
            Reason.INTERVAL_WITHIN_DELTA,
            Reason.INTERVAL_TOO_WIDE,
            Reason.EFFECT_BELOW_DELTA,
        )

    @property
    def allowed(self) -> float:
        """The largest noise with which identical code is called `same` at least every other time, over 16 rounds."""
        return most_noise(MOST_ROUNDS, self.verdict.delta)

    @property
    def differs(self) -> bool:
        """Whether it came out faster or slower than itself."""
        return self.verdict.outcome in (Outcome.FASTER, Outcome.SLOWER)

    @property
    def too_loud(self) -> bool:
        """Whether its noise is above what is allowed."""
        return self.judged and self.noise > self.allowed


@dataclass(frozen=True)
class SelfComparison:
    """A finished self-comparison of a machine."""

    session: Session
    steps: Sequence[StepNoise]

    @property
    def decided(self) -> bool:
        """Whether every step was judged. One that was not says nothing of the machine, neither good nor bad."""
        return bool(self.steps) and all(step.judged for step in self.steps)

    @property
    def noisy(self) -> bool:
        """Whether the machine failed."""
        return self.decided and any(step.differs or step.too_loud for step in self.steps)

    @property
    def exit_code(self) -> int:
        """0 where the machine passed, 1 where it is noisy, 3 where nothing was decided: as a gate's."""
        return 1 if self.noisy else 0 if self.decided else 3

    @property
    def found(self) -> str:
        """Why the machine failed; empty where it did not."""
        differ = [
            f"{step.name} {step.verdict.outcome} than itself ({format_change(step.verdict.effect)})"
            for step in self.steps
            if step.differs
        ]
        loud = [f"{100 * step.noise:.1f} % in {step.name}" for step in self.steps if step.too_loud]
        allowed = min((100 * step.allowed for step in self.steps), default=0.0)
        noise = [f"noise of a round of {', '.join(loud)}, where {allowed:.1f} % is allowed"] if loud else []
        return "; ".join(differ + noise)

    @property
    def mark(self) -> str:
        """The line that every report of a noisy machine carries; empty where it passed."""
        if not self.noisy:
            return ""
        return f"machine is noisy: the A/A of {self.session.created_at[:10]} found {self.found}; see frostline doctor --noise"

    @property
    def conclusion(self) -> str:
        """What the machine is good for, in one sentence."""
        unjudged = [step for step in self.steps if not step.judged]
        if unjudged or not self.steps:
            why = f" {unjudged[0].name}: {unjudged[0].verdict.sentence}" if unjudged else ""
            return f"Nothing can be said of this machine.{why}"
        if self.noisy:
            return f"Noisy: {self.found}. Every report of this machine's times says so until an A/A passes."
        worst = max(self.steps, key=lambda step: step.noise)
        delta = format_percent(worst.verdict.delta)
        calm = f"the noise of a round is at most {100 * worst.noise:.1f} % ({worst.name})"
        open_steps = [step.name for step in self.steps if step.verdict.outcome is Outcome.INCONCLUSIVE]
        if open_steps:
            told = f"this time {', '.join(open_steps)} could not be told the same within {delta}"
            return f"Passed: no step differs from itself, and {calm}; {told}."
        return f"Passed: every step is the same as itself within {delta}, and {calm}."


def noise_of_a_round(log_ratios: Values) -> float:
    """The robust standard deviation of rounds' log ratios: 1.4826 times their median absolute deviation from their median.

    Robust, so that it says what a usual round is like: a single wild round shows in the interval and the verdict. Of 8 rounds
    it is some 10 % too small on average. NaN without rounds.
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    return TO_DEVIATION * float(np.median(np.abs(values - np.median(values)))) if len(values) else float("nan")


def self_comparison(
    session: Session, cases: Sequence[Case], verdicts: Sequence[Verdict], ratios: Sequence[RoundRatio]
) -> SelfComparison:
    """Judge what a session of `frostline doctor --noise` gave: its verdicts and its rounds' ratios of the step's time."""
    timed = {verdict.case_id: verdict for verdict in verdicts if verdict.metric == STEP_TIME.name}
    rounds = {
        case.id: [one.log_ratio for one in ratios if one.case_id == case.id and one.metric == STEP_TIME.name] for case in cases
    }
    steps = [
        StepNoise(" ".join(map(str, case.params.values())), timed[case.id], noise_of_a_round(rounds[case.id]))
        for case in cases
        if case.id in timed
    ]
    return SelfComparison(session, steps)


def load_self_comparison(store: Store, session: Session) -> SelfComparison:
    """The self-comparison that a session is, from the store."""
    return self_comparison(session, store.cases(session.id), store.verdicts(session.id), store.ratios(session.id))


def latest_self_comparison(store: Store, machine_id: str, device: str) -> SelfComparison | None:
    """The newest self-comparison that was decided, of a machine on a kind of device (`cuda:1` counts for `cuda`)."""
    kind = device.partition(":")[0]
    for session in reversed(store.sessions()):
        if DETAIL in session.detail and session.machine_id == machine_id and session.device.partition(":")[0] == kind:
            found = load_self_comparison(store, session)
            if found.decided:
                return found
    return None
