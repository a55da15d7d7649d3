"""What a session is on the site: its evidence, its verdicts, and the comparisons of two sides that they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from frostline.dashboards.site.pages import comparison_name, session_name
from frostline.results.evidence import Evidence, side_names
from frostline.results.notes import plain
from frostline.results.record import Case, Outcome, Role, SideRecord, Verdict
from frostline.results.verdict import WORST_FIRST, worst_first

CASES_A_PAGE = 12  # of a comparison, each with its points in two charts


@dataclass(frozen=True)
class Comparison:
    """A side against a baseline, with what was concluded of each case, the worst case first.

    `base` holds the baseline; it is another session than `evidence` where the verdicts say so.
    """

    evidence: Evidence
    base: Evidence
    side: SideRecord
    baseline: SideRecord
    verdicts: Mapping[str, Sequence[Verdict]]  # by case, the worst first, and so within a case

    @property
    def name(self) -> str:
        """What the files of its pages begin with."""
        other = "" if self.base is self.evidence else self.base.session.id
        return comparison_name(self.evidence.session.id, self.side.position, other)

    @property
    def side_name(self) -> str:
        """The side's shortest name in its session."""
        return side_names(self.evidence.sides)[self.side.position]

    @property
    def baseline_name(self) -> str:
        """The baseline's, with its session where that is another."""
        own = side_names(self.base.sides)[self.baseline.position]
        return own if self.base is self.evidence else f"{own} of {self.base.session.id}"

    @property
    def role(self) -> Role:
        """Measured figures, unless there are only predicted ones."""
        return Role.PREDICT if self.evidence.only_predicted else Role.MEASURE

    def page_of(self, case_id: str) -> int:
        """The number, from 0, of the page that a case is on."""
        return list(self.verdicts).index(case_id) // CASES_A_PAGE


@dataclass(frozen=True)
class Findings:
    """A session with what was concluded of it."""

    evidence: Evidence
    verdicts: Sequence[Verdict]
    comparisons: Sequence[Comparison] = field(default_factory=tuple)

    @property
    def name(self) -> str:
        """What the files of the session's pages begin with."""
        return session_name(self.evidence.session.id)


def find_comparisons(evidence: Evidence, verdicts: Sequence[Verdict], bases: Mapping[str, Evidence]) -> list[Comparison]:
    """The comparisons that a session's verdicts are about.

    Args:
        evidence: the session.
        verdicts: all that was concluded of it.
        bases: by its id each other session that holds a baseline of them.
    """
    pairs: dict[tuple[int, str, int], list[Verdict]] = {}
    for one in verdicts:
        pairs.setdefault((one.position, one.baseline_session_id, one.baseline_position), []).append(one)
    found = []
    for (position, base_id, baseline_position), told in pairs.items():
        base = bases[base_id] if base_id else evidence
        by_case: dict[str, list[Verdict]] = {}
        for one in worst_first(told):
            by_case.setdefault(one.case_id, []).append(one)
        sides = {side.position: side for side in evidence.sides}
        baselines = {side.position: side for side in base.sides}
        found.append(Comparison(evidence, base, sides[position], baselines[baseline_position], by_case))
    return found


def severity(outcome: Outcome) -> int:
    """0 for the worst outcome."""
    return WORST_FIRST.index(outcome)


def case_label(evidence: Evidence, case: Case) -> str:
    """A case by the axes that vary in its session; by all where it is the only one."""
    axes = evidence.varying_axes or list(case.params)[:3]
    return " ".join(f"{axis}={plain(case.params[axis])}" for axis in axes if axis in case.params) or case.suite


def case_anchor(case_id: str) -> str:
    """The name of a case's place in a page."""
    return f"case-{case_id}"
