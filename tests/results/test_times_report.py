"""The table of times: a row for each time and case, and how many times as fast each side is."""

from __future__ import annotations

import math

from frostline.results.evidence import Evidence
from frostline.results.record import Interleave, RoundRatio, Status
from frostline.results.times_report import times_table


def evidence(world) -> Evidence:
    return Evidence(world.session, world.machine, world.sides, world.cases, world.processes, world.ratios)


def test_each_time_has_a_row_for_each_case_and_a_column_for_each_side(make_world):
    world = make_world(("unpruned", "pruned", "torch", "liger"), vocabularies=(4096, 8192))
    for case, position in ((case, position) for case in range(2) for position in range(3)):
        figures = {"kernel_time": 18.3e3 / (1 + position)} | ({"host_time": 60e3} if case == 0 else {})
        if (case, position) == (1, 2):
            world.process(position, case=case, status=Status.OOM, reason="full")
            continue
        world.process(position, case=case, measurements=figures)
        if (case, position) == (0, 1):
            place = (world.session.id, world.cases[0].id, 0, "kernel_time", 1, 0, math.log(0.4), 4)
            world.ratios.append(RoundRatio(*place, Interleave.BLOCK))
    for case in range(2):
        world.process(3, case=case, status=Status.SKIPPED, reason="not here")
    table = times_table(evidence(world))
    assert [column.header for column in table.columns] == ["time", "vocab", "unpruned", "pruned", "torch"]
    assert table.rows == [
        [("kernel time",), ("4,096",), ("18.30 us",), ("9.150 us", "2.50x"), ("6.100 us", "3.00x")],
        [("kernel time",), ("8,192",), ("18.30 us",), ("9.150 us", "2.00x"), ("-",)],
        [("host time",), ("4,096",), ("60.00 us",), ("60.00 us", "1.00x"), ("60.00 us", "1.00x")],
    ]


def test_steps_timed_as_they_are_called_need_no_such_table(make_world):
    world = make_world()
    world.process(0, times=[5e6, 5e6])
    assert times_table(evidence(world)) is None
