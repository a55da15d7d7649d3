"""Every check, in each of its answers: what is found, that a warning says why and what to do, and what is unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from frostline.harness import disturbances as checks
from frostline.harness.disturbances import Level
from frostline.harness.gpus import Gpu, GpuProcess
from frostline.harness.software import Database, Interpreter, Software
from frostline.harness.surroundings import Busy, Host, Interval, Limits

HOST = Host("Linux", usable=(0, 1, 2, 3), host_cores=4)
SECOND = Interval(1.0)
GIB = 2**30


@pytest.mark.parametrize(
    ("check", "host", "level", "said"),
    [
        (checks.load, {"load": 2.0}, Level.OK, "2.00 over the last minute, 4 cores usable"),
        (checks.load, {"load": 2.1}, Level.WARN, "2.10"),
        (checks.load, {}, Level.UNKNOWN, "not known here"),
        (checks.governor, {"governors": ["performance"] * 4}, Level.OK, "performance"),
        (checks.governor, {"governors": ["performance", "powersave"]}, Level.WARN, "performance, powersave"),
        (checks.governor, {}, Level.UNKNOWN, "not known here"),
        (checks.turbo, {"turbo": True}, Level.WARN, "on"),
        (checks.turbo, {"turbo": False}, Level.OK, "off"),
        (checks.turbo, {}, Level.UNKNOWN, "not known here"),
        (checks.siblings, {"siblings": [(0, 2), (1, 3)]}, Level.WARN, "0+2, 1+3 share a core"),
        (checks.siblings, {}, Level.OK, "every usable core is a physical one"),
        (checks.siblings, {"host_cores": None}, Level.UNKNOWN, "not known here"),
        (checks.hugepages, {"hugepages": "always"}, Level.WARN, "always"),
        (checks.hugepages, {"hugepages": "madvise"}, Level.OK, "madvise"),
        (checks.hugepages, {}, Level.UNKNOWN, "not known here"),
        (checks.power, {"on_battery": True}, Level.WARN, "battery"),
        (checks.power, {"on_battery": False}, Level.OK, "not on a battery"),
        (checks.power, {}, Level.UNKNOWN, "not known here"),
    ],
)
def test_what_the_host_tells(check, host, level, said):
    expect(check(replace(HOST, **host)), level, said)


@pytest.mark.parametrize(
    ("check", "host", "second", "level", "said"),
    [
        (checks.quota, {"limits": Limits(2.0)}, {}, Level.WARN, "2 cores' worth of time for 4 cores"),
        (checks.quota, {"limits": Limits(4.0)}, {"throttled": 3}, Level.WARN, "stopped 3 times in 1.0 s"),
        (checks.quota, {"limits": Limits(4.0)}, {"throttled": 0}, Level.OK, "4 cores, and 4 cores usable"),
        (checks.quota, {}, {"throttled": 0}, Level.OK, "none"),
        (checks.quota, {}, {}, Level.UNKNOWN, "not known here"),
        (checks.memory, {"memory_available": 8 * GIB}, {}, Level.OK, "8.000 GiB free"),
        (checks.memory, {"memory_available": GIB}, {}, Level.WARN, "1.000 GiB free"),
        (checks.memory, {"memory_available": 8 * GIB, "limits": Limits(None, 4 * GIB, 3 * GIB)}, {}, Level.WARN, "1.000 GiB"),
        (checks.memory, {"memory_available": 8 * GIB, "swap_used": GIB}, {}, Level.WARN, "1.000 GiB in swap"),
        (checks.memory, {"memory_available": 8 * GIB}, {"swapped": 5}, Level.WARN, "5 pages were swapped in 1.0 s"),
        (checks.memory, {}, {}, Level.UNKNOWN, "not known here"),
        (checks.virtual, {"virtual": True}, {"stolen": 0.004}, Level.OK, "yes; 0.4 % of the time was stolen"),
        (checks.virtual, {"virtual": True}, {"stolen": 0.05}, Level.WARN, "5.0 % of the time was stolen"),
        (checks.virtual, {"virtual": False}, {}, Level.OK, "no; stolen time not known"),
        (checks.virtual, {}, {}, Level.UNKNOWN, "not known here"),
    ],
)
def test_what_the_host_and_a_second_tell(check, host, second, level, said):
    expect(check(replace(HOST, **host), replace(SECOND, **second)), level, said)


def test_busy_neighbours_are_named():
    busy = [Busy(pid, f"p{pid}", 0.25 * (6 - pid)) for pid in range(1, 7)]
    expect(
        checks.neighbours(replace(SECOND, busy=busy)),
        Level.WARN,
        "p1 (pid 1) 125 %, p2 (pid 2) 100 %, p3 (pid 3) 75 % and 2 more",
    )
    expect(checks.neighbours(replace(SECOND, busy=[Busy(1, "calm", 0.2)])), Level.OK, "none above 20 % of a core")
    expect(checks.neighbours(SECOND), Level.UNKNOWN, "not known here")


def test_a_hot_core():
    expect(checks.heat(replace(SECOND, hot=2)), Level.WARN, "slowed 2 times")
    expect(checks.heat(replace(SECOND, hot=0)), Level.OK, "no core")
    expect(checks.heat(SECOND), Level.UNKNOWN, "not known here")


def software(**given):
    here = {"versions": {"torch": "2.13.0", "pip": "26"}, "tools": {"C compiler": "/usr/bin/cc", "git": "/usr/bin/git"}}
    return Software(Interpreter("CPython 3.12.0", "python"), **(here | given))


def test_variables_that_change_what_runs():
    expect(checks.variables(software(variables={"TRITON_INTERPRET": "1"})), Level.WARN, "TRITON_INTERPRET=1")
    expect(checks.variables(software()), Level.OK, "none")


@pytest.mark.parametrize(
    ("python", "torch_debug", "said"),
    [
        ({"debug": True}, False, "a debug build of Python"),
        ({"dev_mode": True}, True, "a debug build of torch, -X dev"),
        ({"hooks": ["sys.settrace"]}, False, "sys.settrace"),
    ],
)
def test_a_slowed_interpreter(python, torch_debug, said):
    expect(checks.interpreter(Interpreter("CPython", "python", **python), torch_debug), Level.WARN, said)
    expect(checks.interpreter(Interpreter("CPython", "python"), False), Level.OK, "release build")


def test_torch_must_be_here_and_fit_the_gpu():
    expect(checks.torch(software(versions={"torch": None}), []), Level.FAIL, "not installed")
    expect(checks.torch(software(), [Gpu(0, "H200")]), Level.WARN, "has no CUDA, though there is a H200")
    expect(checks.torch(software(torch_cuda="13.0"), [Gpu(0, "H200")]), Level.OK, "2.13.0")


def test_missing_tools_are_named():
    expect(checks.tools(software()), Level.OK, "are here")
    missing = software(versions={}, tools={"C compiler": None, "git": None})
    expect(checks.tools(missing), Level.WARN, "no C compiler, no git, no pip")


def test_a_database_that_cannot_be_used_fails():
    expect(
        checks.database(Database(Path("f.db"), True, problem="it cannot be written")), Level.FAIL, "f.db: it cannot be written"
    )
    expect(checks.database(Database(Path("f.db"))), Level.OK, "made when something is measured")
    expect(checks.database(Database(Path("f.db"), True, 2048)), Level.OK, "2.000 KiB")


CALM_GPU = Gpu(
    0,
    memory_used_mib=4.0,
    compute_mode="Default",
    mig="Disabled",
    throttle_reasons=1,
    power_limit_w=700.0,
    power_default_w=700.0,
    persistence="Enabled",
)


@pytest.mark.parametrize(
    ("changed", "level", "said"),
    [
        ({"processes": [GpuProcess("7", "train", "900")]}, Level.WARN, "train (pid 7) 900 MiB"),
        ({"memory_used_mib": 5000.0}, Level.WARN, "no process seen, 5,000 MiB used"),
        ({"memory_used_mib": None}, Level.UNKNOWN, "not known here"),
        ({"compute_mode": "Exclusive_Process"}, Level.FAIL, "Exclusive_Process"),
        ({"compute_mode": "Prohibited"}, Level.FAIL, "Prohibited"),
        ({"compute_mode": None}, Level.UNKNOWN, "not known here"),
        ({"compute_mode": "Unknown"}, Level.UNKNOWN, "not known here"),
        ({"mig": "Enabled"}, Level.WARN, "on"),
        ({"mig": None}, Level.UNKNOWN, "not known here"),
        ({"throttle_reasons": 0x4}, Level.WARN, "throttled now (0x4)"),
        ({"power_limit_w": 400.0}, Level.WARN, "power capped at 400 W of 700"),
        ({"persistence": "Disabled"}, Level.WARN, "persistence mode off"),
        ({"throttle_reasons": None, "power_limit_w": None}, Level.UNKNOWN, "not known here"),
    ],
)
def test_what_a_gpu_tells(changed, level, said):
    assert {finding.level for finding in checks.gpu_checks(CALM_GPU)} == {Level.OK}
    other = [finding for finding in checks.gpu_checks(replace(CALM_GPU, **changed)) if finding.level is not Level.OK]
    assert len(other) == 1
    expect(other[0], level, said)


def expect(finding, level, said):
    assert finding.level is level and said in finding.found, finding
    assert finding.why and bool(finding.advice) == (level in (Level.WARN, Level.FAIL))
