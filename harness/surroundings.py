"""What the machine around us is and does: cores, limits, memory, power, and who else is busy. Read from /proc and /sys.

Every function takes the root of the file system, so that tests can give a tree of their own. What a system does not tell
(another kernel, a container that hides it, no Linux at all) is None or empty, never an error. Files as in proc(5), cgroups(7)
and the kernel's admin guide (cpufreq, transhuge).
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path("/")
CONTAINER_WORDS = ("docker", "podman", "kubepods", "containerd", "lxc")
MOST_CORES = 2**16  # of a list: more is no list of cores
UNLIMITED = 2**60  # a memory limit from here on is version 1's way to say that there is none


@dataclass(frozen=True)
class Limits:
    """What the control groups allow: cores' worth of time and bytes; None where they set no limit or do not tell."""

    cores: float | None = None
    memory: int | None = None
    memory_used: int | None = None


@dataclass(frozen=True)
class Host:
    """The machine as it stands. Bytes and cores; None or empty means not known."""

    system: str
    container: str | None = None
    cpu: str | None = None
    host_cores: int | None = None
    usable: Sequence[int] = ()
    load: float | None = None
    governors: Sequence[str] = ()
    turbo: bool | None = None
    siblings: Sequence[tuple[int, ...]] | None = ()
    memory: int | None = None
    memory_available: int | None = None
    swap_used: int | None = None
    limits: Limits = field(default_factory=Limits)
    hugepages: str | None = None
    on_battery: bool | None = None
    virtual: bool | None = None


@dataclass(frozen=True)
class Moment:
    """Counters at one time: two of them tell what happened in between."""

    at: float
    processes: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    cpu_ticks: int | None = None
    stolen_ticks: int | None = None
    throttled: int | None = None
    hot: int | None = None
    swapped: int | None = None


@dataclass(frozen=True)
class Busy:
    """Another process and the share of a core that it used."""

    pid: int
    name: str
    share: float


@dataclass(frozen=True)
class Interval:
    """What happened between two moments: others' use of cores, and how much counters moved (None: not known)."""

    seconds: float
    busy: Sequence[Busy] | None = None
    stolen: float | None = None
    throttled: int | None = None
    hot: int | None = None
    swapped: int | None = None


def read_host(root: Path = ROOT) -> Host:
    """The machine under `root`, as far as it tells."""
    usable = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else tuple(range(os.cpu_count() or 1))
    return host_with(root, usable)


def host_with(root: Path, usable: Sequence[int]) -> Host:
    """`read_host` for a process that may use these cores."""
    memory, cpus = _table(root / "proc/meminfo"), root / "sys/devices/system/cpu"
    info = _text(root / "proc/cpuinfo") or ""
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", info, re.MULTILINE)
    load = _text(root / "proc/loadavg")
    swap = {"SwapTotal", "SwapFree"} <= memory.keys()
    return Host(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        container=_container(root),
        cpu=_found(r"^model name\s*:\s*(.*)$", info),
        host_cores=len(_cores(_text(cpus / "online")) or ()) or None,
        usable=usable,
        load=decimal(load.split()[0]) if load else None,
        governors=[text for core in usable if (text := _text(cpus / f"cpu{core}/cpufreq/scaling_governor"))],
        turbo=_turbo(cpus),
        siblings=_siblings(cpus, usable),
        memory=_bytes(memory, "MemTotal"),
        memory_available=_bytes(memory, "MemAvailable"),
        swap_used=1024 * (memory["SwapTotal"] - memory["SwapFree"]) if swap else None,
        limits=_limits(root),
        hugepages=_found(r"\[(\w+)\]", _text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""),
        on_battery=_on_battery(root / "sys/class/power_supply"),
        virtual="hypervisor" in flags[1].split() if flags else None,
    )


def read_moment(root: Path, at: float) -> Moment:
    """The counters now; `at` is the time in seconds, by a clock of the caller's."""
    stat = re.search(r"^cpu\s+(.*)$", _text(root / "proc/stat") or "", re.MULTILINE)
    ticks = [whole(number) for number in stat[1].split()[:8]] if stat else []  # guests' time is counted in user's already
    known = [count for count in ticks if count is not None]
    told = len(known) == 8
    pages = _table(root / "proc/vmstat")
    return Moment(
        at=at,
        processes=dict(_processes(root / "proc")),
        cpu_ticks=sum(known) if told else None,
        stolen_ticks=known[7] if told else None,
        throttled=throttled_count(root),
        hot=hot_count(root),
        swapped=pages["pswpin"] + pages["pswpout"] if {"pswpin", "pswpout"} <= pages.keys() else None,
    )


def throttled_count(root: Path = ROOT) -> int | None:
    """How often our control group was stopped because its quota was used up."""
    counts = (_table(group / "cpu.stat").get("nr_throttled") for group in _groups(root, "cpu"))
    return next((count for count in counts if count is not None), None)


def hot_count(root: Path = ROOT) -> int | None:
    """How often a core was slowed down because it was hot, over all cores."""
    counts = [_number(path) for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count")]
    return sum(count or 0 for count in counts) if any(count is not None for count in counts) else None


def fastest_clock(root: Path = ROOT) -> int | None:
    """The clock of the fastest core in kHz: of the one at work, where the others idle."""
    clocks = (_number(path) for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"))
    return max((clock for clock in clocks if clock is not None), default=None)


def between(first: Moment, second: Moment, ticks_per_second: int, own_pid: int) -> Interval:
    """What happened between two moments: who else used a core at all, the busiest first, and what the counters say."""
    seconds = max(second.at - first.at, 1e-9)
    used = {
        pid: Busy(pid, name, (ticks - first.processes.get(pid, (name, 0))[1]) / ticks_per_second / seconds)
        for pid, (name, ticks) in second.processes.items()
    }
    busy = [one for pid, one in used.items() if pid != own_pid and one.share > 0]
    cpu, stolen = _change(first.cpu_ticks, second.cpu_ticks), _change(first.stolen_ticks, second.stolen_ticks)
    return Interval(
        seconds=seconds,
        busy=sorted(busy, key=lambda one: -one.share) if second.processes else None,
        stolen=stolen / cpu if cpu and stolen is not None else None,
        throttled=_change(first.throttled, second.throttled),
        hot=_change(first.hot, second.hot),
        swapped=_change(first.swapped, second.swapped),
    )


def _change(before: int | None, after: int | None) -> int | None:
    """By how much a counter moved; one that went back tells nothing."""
    return None if before is None or after is None or after < before else after - before


def _processes(proc: Path) -> Iterator[tuple[int, tuple[str, int]]]:
    """Each process with its name and the ticks it has used; one that ends meanwhile is left out."""
    for path in proc.glob("[0-9]*/stat"):
        # pid (name) state ...: the name may hold blanks and brackets, so what follows its last bracket is counted from.
        head, _, rest = (_text(path) or "").rpartition(")")
        fields = rest.split()
        pid, *used = (whole(text) for text in (path.parent.name, *fields[11:13]))
        if pid is not None and len(used) == 2 and used[0] is not None and used[1] is not None:
            yield pid, (head.partition("(")[2], used[0] + used[1])


def _limits(root: Path) -> Limits:
    """The tightest limits of our control group and those above it, version 2 or 1."""
    cores, memory = [], []
    for group in _groups(root, "cpu"):
        given, _, every = (_text(group / "cpu.max") or "").partition(" ")
        quota = whole(given or _text(group / "cpu.cfs_quota_us"))
        period = whole(every or _text(group / "cpu.cfs_period_us"))
        if quota and period:
            cores.append(quota / period)
    for group in _groups(root, "memory"):
        limit = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
        if limit is not None and limit < UNLIMITED:
            memory.append((limit, _memory_used(group)))
    tightest = min(memory, key=lambda one: one[0], default=(None, None))
    return Limits(min(cores, default=None), *tightest)


def _memory_used(group: Path) -> int | None:
    """Bytes that count against a group's limit and cannot be dropped (file pages that nobody used lately can)."""
    used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes")
    stat = _table(group / "memory.stat")
    return None if used is None else used - stat.get("total_inactive_file", stat.get("inactive_file", 0))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Our control group's directory for a controller, and those above it."""
    mount = root / "sys/fs/cgroup"
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            top = mount
        elif controller in controllers.split(","):
            top = mount / controller
        else:
            continue
        group = top / path.lstrip("/")
        while group != top and top in group.parents:
            yield group
            group = group.parent
        yield top


def _container(root: Path) -> str | None:
    """Which kind of container we are in, as far as it shows."""
    named = _text(root / "run/systemd/container")
    if named:
        return named
    for mark, kind in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if (root / mark).exists():
            return kind
    groups = _text(root / "proc/self/cgroup") or ""
    return next((word for word in CONTAINER_WORDS if word in groups), None)


def _siblings(cpus: Path, usable: Sequence[int]) -> list[tuple[int, ...]] | None:
    """The groups of two or more usable logical cores that share one physical core; None where a list cannot be read."""
    lists = [_text(cpus / f"cpu{core}/topology/thread_siblings_list") for core in usable]
    groups = {None if (cores := _cores(listed)) is None else tuple(cores) for listed in lists if listed}
    known = [group for group in groups if group is not None]
    if len(known) < len(groups):
        return None
    shared = (tuple(core for core in group if core in usable) for group in sorted(known))
    return [group for group in shared if len(group) > 1]


def _cores(listed: str | None) -> list[int] | None:
    """The numbers of a list like `0-3,8`; None for anything else."""
    found: list[int] = []
    for part in (listed or "").split(","):
        first, dash, last = part.partition("-")
        low, high = whole(first), whole(last if dash else first)
        if low is None or high is None or not low <= high < low + MOST_CORES:
            return None
        found += range(low, high + 1)
    return found


def _turbo(cpus: Path) -> bool | None:
    """Whether clocks may go above the nominal one, by Intel's driver or by the others'."""
    off, boost = _number(cpus / "intel_pstate/no_turbo"), _number(cpus / "cpufreq/boost")
    if off is not None:
        return off == 0
    return None if boost is None else boost == 1


def _on_battery(supplies: Path) -> bool | None:
    """Whether a battery is being drained; False where there is no battery, None where nothing is listed at all."""
    if not supplies.is_dir():
        return None
    return any(_text(path) == "Discharging" for path in supplies.glob("*/status"))


def _table(path: Path) -> dict[str, int]:
    """A file of `name value` or `name: value kB` lines."""
    rows = (line.replace(":", " ").split() for line in (_text(path) or "").splitlines())
    return {row[0]: value for row in rows if len(row) >= 2 and (value := whole(row[1])) is not None}


def _bytes(table: Mapping[str, int], name: str) -> int | None:
    return 1024 * table[name] if name in table else None


def _found(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1].strip() if match else None


def _number(path: Path) -> int | None:
    return whole(_text(path))


def decimal(text: str | None) -> float | None:
    """A number as the kernel and tools print them, `12` or `0.50`; None for all else: words, NaN, a comma, no text at all."""
    return float(text) if text and re.fullmatch(r"[0-9]{1,20}(\.[0-9]{1,20})?", text) else None


def whole(text: str | None) -> int | None:
    """A whole number that `decimal` reads; None for all else."""
    return None if text is None or decimal(text) is None or "." in text else int(text)


def _text(path: Path) -> str | None:
    """A small file's text; None where it is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
