"""Remarks that go with a verdict and change none: what a careful reader would want to know before believing it.

Data are flagged, never dropped: samples taken while a GPU throttled are samples still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from frostline.results.record import Interleave, ProcessRecord, RoundRatio, SideRecord
from frostline.results.statistics import Values, clock_changed, drifts, is_bimodal

SAME_CODE = "same code"
BESIDE = "installed_with"  # of a side's detail: the distributions that it was given
NOT_VERIFIED = "not verified"
DRIFT = "drift"
BIMODAL = "bimodal"
BASELINE_BIMODAL = "baseline bimodal"
THROTTLED = "throttled"
CLOCK_CHANGED = "clock changed"
NOT_IN_BLOCKS = "not interleaved in blocks"
OUT_OF_TIME = "out of time"  # the case has fewer rounds than its plan: the time that the session could take was used up

CLOCKS = ("clock_sm_mhz", "clock_memory_mhz", "clock_mhz")
# How often a core was slowed down because it was hot, and a control group stopped because its quota was used up.
THROTTLE_COUNTS = ("core_throttle_count", "cgroup_throttled_count")
# nvidia-smi's clocks_event_reasons.active: software power cap, hardware slowdown, software and hardware thermal slowdown,
# power brake. Idle, an application's own clock setting and sync boost are no throttling.
THROTTLE_BITS = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


def code_flags(
    side: SideRecord, baseline: SideRecord, records: Sequence[ProcessRecord], baseline_records: Sequence[ProcessRecord]
) -> list[str]:
    """`same code`, when both sides are one implementation and loaded the same target code (or come from the same source).

    Not of sides that have different distributions beside it: those are what is compared then.
    """
    if side.implementation != baseline.implementation or side.detail.get(BESIDE) != baseline.detail.get(BESIDE):
        return []
    codes = {record.code_id for record in records}, {record.code_id for record in baseline_records}
    loaded_same = codes[0] == codes[1] and len(codes[0]) == 1 and codes[0] != {""}
    return [SAME_CODE] if loaded_same or side.source_id == baseline.source_id else []


def device_flags(records: Sequence[ProcessRecord]) -> list[str]:
    """`throttled` and `clock changed`, from the telemetry that was read before and after the rounds."""
    flags = [THROTTLED] if any(_was_throttled(record.telemetry) for record in records) else []
    after = [record.telemetry.get("after", {}) for record in records]
    clocks = ([float(state[name]) for state in after if _is_number(state.get(name)) and state[name] > 0] for name in CLOCKS)
    return [*flags, CLOCK_CHANGED] if any(clock_changed(read) for read in clocks) else flags


def round_flags(ratios: Sequence[RoundRatio], side_medians: Values, baseline_medians: Values, delta: float) -> list[str]:
    """`drift`, `bimodal` and how the rounds were interleaved, for one timing metric of a side and its baseline."""
    flags = [DRIFT] if drifts([one.log_ratio for one in ratios]) else []
    flags += [BIMODAL] if is_bimodal(side_medians, delta) else []
    flags += [BASELINE_BIMODAL] if is_bimodal(baseline_medians, delta) else []
    return flags + ([NOT_IN_BLOCKS] if any(one.interleave is Interleave.PROCESS for one in ratios) else [])


def _was_throttled(telemetry: Mapping[str, Any]) -> bool:
    """Whether a limit held the device at either end of a round, or a counter of such limits moved in between."""
    before, after = (telemetry.get(end, {}) for end in ("before", "after"))
    return any(_limited(state) for state in (before, after)) or any(
        after[name] > before[name] for name in THROTTLE_COUNTS if _is_number(before.get(name)) and _is_number(after.get(name))
    )


def _limited(state: Mapping[str, Any]) -> bool:
    reasons = state.get("throttle_reasons", 0)
    try:
        return bool(int(str(reasons), 0) & THROTTLE_BITS)
    except ValueError:  # a driver that does not tell
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value >= 0
