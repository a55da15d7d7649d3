"""What could disturb a measurement: each check is a pure function of what was read, and says what to do.

`warn`: times may be noisier, or other than a reader expects. `fail`: measuring here would go wrong or mean nothing. `unknown`:
the system does not tell. Sides are interleaved, so much of what is warned of falls on all of them alike; what it costs in the
end shows in `frostline doctor --noise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from frostline.harness.gpus import NO_MIG, Gpu
from frostline.harness.software import Database, Interpreter, Software
from frostline.harness.surroundings import Host, Interval
from frostline.results.flags import THROTTLE_BITS
from frostline.results.units import format_value

CALM_LOAD = 0.5  # for each usable core: beyond it a step that uses them all often waits for one
BUSY_SHARE = 0.2  # of a core: from here on another process is named
STOLEN_SHARE = 0.01  # of the host's time: a tenth of a second in ten
LEAST_MEMORY = 2 * 2**30  # bytes: two live processes with torch take about one GiB before a step has any tensor
GPU_USED_MIB = 1024  # more than a driver keeps for itself: somebody else's tensors
EXCLUSIVE = ("Exclusive_Process", "Exclusive_Thread", "Prohibited")  # modes in which two sides cannot share a GPU
SHOWN = 3  # of a list


class Level(StrEnum):
    """What a check came to."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One check: what was found, why it matters, and what to do about it."""

    level: Level
    name: str
    found: str
    why: str
    advice: str


@dataclass(frozen=True)
class Check:
    """What is asked, why it matters and what helps; the answers are findings."""

    name: str
    why: str
    advice: str

    def ok(self, found: str) -> Finding:
        """Nothing to worry about."""
        return Finding(Level.OK, self.name, found, self.why, "")

    def warn(self, found: str) -> Finding:
        """It may disturb."""
        return Finding(Level.WARN, self.name, found, self.why, self.advice)

    def fail(self, found: str) -> Finding:
        """It will go wrong."""
        return Finding(Level.FAIL, self.name, found, self.why, self.advice)

    def unknown(self) -> Finding:
        """The system does not tell."""
        return Finding(Level.UNKNOWN, self.name, "not known here", self.why, "")


def load(host: Host) -> Finding:
    """The load average against the cores that may be used."""
    check = Check(
        "load",
        "other work takes turns with the measured threads, which by default are as many as the cores",
        "wait until it is idle, or leave cores free with --threads",
    )
    if host.load is None:
        return check.unknown()
    found = f"{host.load:.2f} over the last minute, {_cores(len(host.usable))} usable"
    return check.warn(found) if host.load > CALM_LOAD * len(host.usable) else check.ok(found)


def neighbours(second: Interval) -> Finding:
    """Other processes that used more than a fifth of a core."""
    check = Check(
        "other processes", "they take cores, caches and memory bandwidth from the measured step", "stop them, or wait for them"
    )
    if second.busy is None:
        return check.unknown()
    busy = [f"{one.name} (pid {one.pid}) {_percent(one.share)}" for one in second.busy if one.share > BUSY_SHARE]
    if not busy:
        return check.ok(f"none above {_percent(BUSY_SHARE)} of a core in {second.seconds:.1f} s")
    return check.warn(f"in {second.seconds:.1f} s, of a core: {_some(busy)}")


def governor(host: Host) -> Finding:
    """Whether every core runs at the frequency that is asked for."""
    check = Check(
        "CPU governor",
        "a core that is clocked up only under load makes the first steps slower than the later ones",
        "cpupower frequency-set -g performance",
    )
    kinds = sorted(set(host.governors))
    if not kinds:
        return check.unknown()
    return check.ok("performance") if kinds == ["performance"] else check.warn(", ".join(kinds))


def turbo(host: Host) -> Finding:
    """Whether clocks may go above the nominal one."""
    check = Check(
        "CPU turbo",
        "the clock depends on temperature and on how many cores are busy",
        "turn it off for times that are compared over days (intel_pstate/no_turbo, cpufreq/boost)",
    )
    if host.turbo is None:
        return check.unknown()
    return check.warn("on") if host.turbo else check.ok("off")


def siblings(host: Host) -> Finding:
    """Whether two of the usable logical cores are one physical core."""
    check = Check(
        "SMT",
        "two threads on one physical core slow each other by how much depends on both",
        "use one of each pair: taskset, and --threads with half as many",
    )
    if host.host_cores is None or host.siblings is None:
        return check.unknown()
    if not host.siblings:
        return check.ok("every usable core is a physical one, as far as the system tells")
    pairs = ["+".join(map(str, group)) for group in host.siblings]
    return check.warn(f"{_some(pairs)} share a core")


def quota(host: Host, second: Interval) -> Finding:
    """Whether a control group stops us when a share of time is used up."""
    check = Check(
        "CPU quota",
        "a group that has used its share stands still for the rest of the period (mostly 0.1 s)",
        "raise the quota, or use no more --threads than it has cores",
    )
    limit, throttled = host.limits.cores, second.throttled
    if limit is None and throttled is None:
        return check.unknown()
    if throttled:
        return check.warn(f"stopped {throttled} times in {second.seconds:.1f} s")
    if limit is not None and limit < len(host.usable):
        return check.warn(f"{limit:g} cores' worth of time for {_cores(len(host.usable))}")
    return check.ok("none" if limit is None else f"{limit:g} cores, and {_cores(len(host.usable))} usable")


def memory(host: Host, second: Interval) -> Finding:
    """Whether there is room, and whether pages are moved to and from a disk."""
    check = Check("memory", "a page that has to be brought back from a disk takes milliseconds", "end what holds it")
    free = _free_memory(host)
    if free is None:
        return check.unknown()
    found = f"{format_value(free, 'B')} free"
    if second.swapped:
        return check.warn(f"{found}; {second.swapped} pages were swapped in {second.seconds:.1f} s")
    if host.swap_used:
        found += f"; {format_value(host.swap_used, 'B')} in swap"
    return check.warn(found) if free < LEAST_MEMORY or host.swap_used else check.ok(found)


def hugepages(host: Host) -> Finding:
    """Whether the kernel makes huge pages of anybody's memory."""
    check = Check(
        "huge pages",
        "the kernel merges pages while the step runs, and how much depends on where memory happens to lie",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )
    if host.hugepages is None:
        return check.unknown()
    return check.warn("always") if host.hugepages == "always" else check.ok(host.hugepages)


def heat(second: Interval) -> Finding:
    """Whether a core was slowed down because it was hot."""
    check = Check("CPU heat", "a core that is too hot runs slower until it is not", "let it cool; clean its fans")
    if second.hot is None:
        return check.unknown()
    return check.warn(f"slowed {second.hot} times in {second.seconds:.1f} s") if second.hot else check.ok("no core was slowed")


def power(host: Host) -> Finding:
    """Whether the machine runs on a battery."""
    check = Check("power", "machines on batteries lower their clocks", "plug it in")
    if host.on_battery is None:
        return check.unknown()
    return check.warn("battery") if host.on_battery else check.ok("not on a battery")


def virtual(host: Host, second: Interval) -> Finding:
    """Whether there is a machine around this one that takes time from it."""
    check = Check(
        "virtual machine",
        "its neighbours take time that no process in here is seen to use",
        "choose a machine with dedicated cores",
    )
    if host.virtual is None and second.stolen is None:
        return check.unknown()
    stolen = "stolen time not known" if second.stolen is None else f"{100 * second.stolen:.1f} % of the time was stolen"
    found = f"{'not known' if host.virtual is None else 'yes' if host.virtual else 'no'}; {stolen}"
    return check.warn(found) if (second.stolen or 0.0) > STOLEN_SHARE else check.ok(found)


def variables(software: Software) -> Finding:
    """Variables that change how torch, Triton, CUDA, BLAS or Python run."""
    check = Check(
        "variables",
        "they change what runs; every measured process gets them, so all sides do, but other machines may not",
        "unset those that are not meant",
    )
    found = [f"{name}={value}" for name, value in software.variables.items()]
    return check.warn(", ".join(found)) if found else check.ok("none that changes what runs")


def interpreter(python: Interpreter, torch_debug: bool) -> Finding:
    """Builds and modes that check more and run slower, and tools that watch every line."""
    check = Check(
        "interpreter",
        "checks and hooks cost most where a step does least, so ratios shift too",
        "measure with a release build, without -X dev, coverage or a profiler",
    )
    found = [*python.hooks]
    found += ["a debug build of Python"] if python.debug else []
    found += ["a debug build of torch"] if torch_debug else []
    found += ["-X dev"] if python.dev_mode else []
    return check.warn(", ".join(found)) if found else check.ok("release build, nothing watches it")


def torch(software: Software, gpus: Sequence[Gpu]) -> Finding:
    """Whether torch is here and can use the GPUs that are."""
    check = Check(
        "torch",
        "the bundled suites need it; on a GPU it must be a build for CUDA",
        "install the build of torch for this machine",
    )
    version = software.versions.get("torch")
    if version is None:
        return check.fail("not installed")
    if gpus and software.torch_cuda is None:
        return check.warn(f"{version} has no CUDA, though there is a {gpus[0].name}")
    return check.ok(version)


def tools(software: Software) -> Finding:
    """The programs that compiling and comparing need."""
    check = Check(
        "tools",
        "Triton and torch.compile need a C compiler, compare needs git and pip",
        "install what is missing (a C compiler is found by CC, or as cc, gcc or clang)",
    )
    missing = [name for name, path in software.tools.items() if path is None]
    missing += [] if software.versions.get("pip") else ["pip"]
    return check.warn(f"no {', no '.join(missing)}") if missing else check.ok("C compiler, git and pip are here")


def database(db: Database) -> Finding:
    """Whether results can be kept."""
    check = Check("database", "what cannot be kept is not measured", "name another file with --db or FROSTLINE_DB")
    if db.problem:
        return check.fail(f"{db.path}: {db.problem}")
    return check.ok(f"{db.path}: {format_value(db.size, 'B') if db.exists else 'made when something is measured'}")


def gpu_checks(gpu: Gpu) -> list[Finding]:
    """What could disturb on one GPU."""
    return [_gpu_others(gpu), _gpu_mode(gpu), _gpu_mig(gpu), _gpu_clocks(gpu)]


def _gpu_others(gpu: Gpu) -> Finding:
    check = Check(
        f"GPU {gpu.index} others", "they take its time and memory; a peak may not fit any more", "end them, or use another GPU"
    )
    if gpu.processes:
        return check.warn(_some([f"{one.name} (pid {one.pid}) {one.memory_mib} MiB" for one in gpu.processes]))
    if gpu.memory_used_mib is None:
        return check.unknown()
    found = f"no process seen, {gpu.memory_used_mib:,.0f} MiB used"
    return check.warn(found) if gpu.memory_used_mib > GPU_USED_MIB else check.ok(found)


def _gpu_mode(gpu: Gpu) -> Finding:
    check = Check(
        f"GPU {gpu.index} mode", "both sides' processes must be able to use it at the same time", "nvidia-smi -c DEFAULT"
    )
    if gpu.compute_mode in EXCLUSIVE:
        return check.fail(gpu.compute_mode)
    return check.ok("shared") if gpu.compute_mode == "Default" else check.unknown()


def _gpu_mig(gpu: Gpu) -> Finding:
    check = Check(
        f"GPU {gpu.index} MIG", "a slice shares power and clock with its neighbours' slices", "measure on a whole GPU"
    )
    if gpu.mig is None:
        return check.unknown()
    if gpu.mig == NO_MIG:
        return check.ok("this GPU has none")
    return check.warn("on") if gpu.mig == "Enabled" else check.ok("off")


def _gpu_clocks(gpu: Gpu) -> Finding:
    check = Check(
        f"GPU {gpu.index} clocks",
        "a GPU at a limit of power or heat lowers its clock, most for the side that works hardest",
        "let it cool; nvidia-smi -pl with its default limit; nvidia-smi -pm 1",
    )
    if gpu.throttle_reasons is None and gpu.power_limit_w is None:
        return check.unknown()
    found = [f"throttled now (0x{gpu.throttle_reasons:x})"] if (gpu.throttle_reasons or 0) & THROTTLE_BITS else []
    if (gpu.power_limit_w or 0.0) < (gpu.power_default_w or 0.0):
        found.append(f"power capped at {gpu.power_limit_w:.0f} W of {gpu.power_default_w:.0f}")
    if gpu.persistence == "Disabled":
        found.append("persistence mode off, so each process waits for the driver")
    return check.warn("; ".join(found)) if found else check.ok("not throttled, not capped")


def _free_memory(host: Host) -> int | None:
    """Bytes that may still be taken: of the machine, or of the control group where that has less."""
    limits = host.limits
    in_group = None if limits.memory is None or limits.memory_used is None else limits.memory - limits.memory_used
    known = [free for free in (host.memory_available, in_group) if free is not None]
    return min(known, default=None)


def _cores(count: int) -> str:
    return f"{count} core{'' if count == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _some(items: Sequence[str]) -> str:
    more = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f" and {more} more" if more > 0 else "")
