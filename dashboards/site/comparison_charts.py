"""The charts of a comparison: what each round found, the processes in the order they ran, and the blocks of one round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime

from frostline.dashboards import ratios
from frostline.dashboards.site.findings import Comparison, case_label
from frostline.dashboards.site.pages import Chart
from frostline.dashboards.site.svg import inline_svg
from frostline.results.crossover import Samples
from frostline.results.evidence import Evidence
from frostline.results.record import Case, Interleave, Kind, ProcessRecord, Role, RoundRatio, Sample, SideRecord
from frostline.results.statistics import summarise
from frostline.results.units import format_change, format_value

_GIDS = ((ratios.BASELINE, True), (ratios.SIDE, False))


def timed_metrics(one: Comparison, cases: Sequence[Case]) -> list[str]:
    """The metrics that these cases have rounds of."""
    metrics = [name for name, metric in one.evidence.metrics.items() if metric.kind is Kind.TIMING]
    return [name for name in metrics if any(ratios_of(one, case, name) for case in cases)]


def ratios_of(one: Comparison, case: Case, metric: str) -> Sequence[RoundRatio]:
    """The rounds' ratios of a case; none where the baseline is another session's, since the two did not take turns."""
    return one.evidence.round_ratios(case.id, metric, one.side.position) if one.base is one.evidence else ()


def charts_of(one: Comparison, cases: Sequence[Case], samples: Samples | None) -> Iterator[Chart]:
    """For each time the rounds' ratios and the processes in their order; of one round also its blocks."""
    for metric in timed_metrics(one, cases):
        words = metric.replace("_", " ")
        drawn = (_ratio_chart(one, cases, metric, words), _order_chart(one, cases, metric, words))
        yield from (chart for chart in drawn if chart is not None)
    first = cases[0].id == next(iter(one.verdicts))
    blocks = _block_chart(one, cases[0], samples) if samples is not None and first else None
    if blocks is not None:
        yield blocks


def _ratio_chart(one: Comparison, cases: Sequence[Case], metric: str, words: str) -> Chart | None:
    rows: list[ratios.RatioRow] = []
    told: dict[str, list[str]] = {ratios.ROUNDS: [], ratios.EFFECTS: []}
    for case in cases:
        found = ratios_of(one, case, metric)
        verdict = next((each for each in one.verdicts[case.id] if each.metric == metric and each.role is Role.MEASURE), None)
        if not found or verdict is None or math.isnan(verdict.effect):
            continue
        label, values = case_label(one.evidence, case), [math.exp(each.log_ratio) for each in found]
        ends = [verdict.effect if math.isnan(end) else end for end in (verdict.low, verdict.high)]
        rows.append(ratios.RatioRow(label, verdict.outcome, values, verdict.effect, ends[0], ends[1], verdict.delta))
        told[ratios.ROUNDS] += [f"{label}: round {r.round + 1}, {format_change(v)}" for r, v in zip(found, values, strict=True)]
        told[ratios.EFFECTS].append(f"{label}: {verdict.sentence}")
    if not rows:
        return None
    caption = (
        f"{words}: {one.side_name} over {one.baseline_name}. Points: the rounds, the first on top; below them the geometric"
        " mean with its interval; shaded: too small to matter."
    )
    return Chart(caption, inline_svg(ratios.draw_ratios(rows), name=f"ratios-{metric}", label=caption, tips=told))


def _order_chart(one: Comparison, cases: Sequence[Case], metric: str, words: str) -> Chart | None:
    """Every process of the pair in these cases over the time, against the baseline's median of its case."""
    runs: list[tuple[ratios.Run, str]] = []
    begun = datetime.fromisoformat(one.evidence.session.created_at)
    for case in cases:
        middle = summarise(one.evidence.values(case.id, one.baseline.position, metric)).median
        for side in (one.baseline, one.side):
            for record in timed_records(one.evidence, case, side, metric):
                value = record.measurements[metric]
                minutes = (datetime.fromisoformat(record.started_at) - begun).total_seconds() / 60
                who = one.baseline_name if side is one.baseline else one.side_name
                tip = f"{case_label(one.evidence, case)}: {who}, round {record.round + 1}, {format_value(value, 'ns')}"
                runs.append((ratios.Run(minutes, value / middle, side is one.baseline), tip))
    runs = [pair for pair in runs if math.isfinite(pair[0].share) and pair[0].share > 0]
    if len({run.baseline for run, _ in runs}) < len(_GIDS):
        return None
    told = {gid: [tip for run, tip in runs if run.baseline is is_base] for gid, is_base in _GIDS}
    caption = (
        f"{words}: the processes in the order they ran, each against the baseline's median in its case."
        " A drift moves both sides; a difference keeps them apart."
    )
    figure = ratios.draw_order([run for run, _ in runs], (one.baseline_name, one.side_name))
    return Chart(caption, inline_svg(figure, name=f"order-{metric}", label=caption, tips=told))


def _blocks(samples: Sequence[Sample], metric: str) -> Iterator[tuple[int, float]]:
    """When each block of a process began (ns), and the median of its readings."""
    blocks: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.metric == metric:
            blocks.setdefault(sample.block, []).append(sample)
    for block in blocks.values():
        yield block[0].t_ns, summarise([each.value for each in block]).median


def _block_chart(one: Comparison, case: Case, samples: Samples) -> Chart | None:
    """The blocks of the first round of a case: how the sides took turns. None where they did not do so in blocks."""
    metric = next(iter(timed_metrics(one, [case])), None)
    if metric is None:
        return None
    base, ours = (timed_records(one.evidence, case, side, metric) for side in (one.baseline, one.side))
    pairs = [(b, o) for b in base for o in ours if b.round == o.round and o.interleave is Interleave.BLOCK]
    if not pairs:
        return None
    found = [(*block, record is pairs[0][0]) for record in pairs[0] for block in _blocks(samples(record.id), metric)]
    middle = summarise([value for _, value, is_base in found if is_base]).median
    if len({is_base for *_, is_base in found}) < len(_GIDS) or not middle > 0:
        return None
    begun = min(t_ns for t_ns, *_ in found)
    runs = [ratios.Run((t_ns - begun) / 1e9, value / middle, is_base) for t_ns, value, is_base in sorted(found)]
    names = {True: one.baseline_name, False: one.side_name}
    tips = [f"{names[run.baseline]}: {format_value(run.share * middle, 'ns')}" for run in runs]
    told = {gid: [tip for tip, run in zip(tips, runs, strict=True) if run.baseline is is_base] for gid, is_base in _GIDS}
    caption = (
        f"{metric.replace('_', ' ')}: round {pairs[0][0].round + 1} of {case_label(one.evidence, case)}, block by block:"
        " the line joins the blocks in the order in which the sides took turns."
    )
    figure = ratios.draw_blocks(runs, (one.baseline_name, one.side_name))
    return Chart(caption, inline_svg(figure, name="blocks", label=caption, tips=told))


def timed_records(evidence: Evidence, case: Case, side: SideRecord, metric: str) -> list[ProcessRecord]:
    """A side's processes that measured a time in a case."""
    records = evidence.records(case.id, side.position, Role.MEASURE)
    return [record for record in records if metric in record.measurements and record.started_at]
