"""A check-up of the machine and environment: what there is, and what could disturb a measurement, as one table.

It reads (`surroundings.py`, `gpus.py`, `software.py`), lets the checks judge (`disturbances.py`), and prints. Nothing is
measured and nothing imported; counters are read twice, a second apart.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from frostline.harness import disturbances as checks
from frostline.harness.disturbances import Finding, Level
from frostline.harness.gpus import NO_MIG, Gpu, read_gpus
from frostline.harness.software import BUILD_TOOLS, LIBRARIES, PEERS, Database, Software, read_database, read_software
from frostline.harness.surroundings import ROOT, Host, Interval, between, read_host, read_moment
from frostline.results.table import Cell, Column, Table
from frostline.results.units import format_value

WATCHED_S = 1.0
NOT_KNOWN = "not known here"


@dataclass(frozen=True)
class Checkup:
    """What was read, and what it came to."""

    host: Host
    second: Interval
    gpus: Sequence[Gpu]
    software: Software
    database: Database

    @property
    def findings(self) -> list[Finding]:
        """Every check, in the order that it is printed."""
        host, second = self.host, self.second
        return [
            checks.load(host),
            checks.neighbours(second),
            checks.virtual(host, second),
            checks.quota(host, second),
            checks.siblings(host),
            checks.governor(host),
            checks.turbo(host),
            checks.heat(second),
            checks.power(host),
            checks.memory(host, second),
            checks.hugepages(host),
            *(finding for gpu in self.gpus for finding in checks.gpu_checks(gpu)),
            checks.variables(self.software),
            checks.interpreter(self.software.interpreter, self.software.torch_debug),
            checks.torch(self.software, self.gpus),
            checks.tools(self.software),
            checks.database(self.database),
        ]

    @property
    def exit_code(self) -> int:
        """1 where something fails, else 0."""
        return int(any(finding.level is Level.FAIL for finding in self.findings))


def examine(db: Path, root: Path = ROOT) -> Checkup:
    """Read everything; takes a second."""
    first = read_moment(root, time.monotonic())
    began = time.monotonic()
    software, gpus, database = read_software(), read_gpus(), read_database(db)
    time.sleep(max(0.0, WATCHED_S - (time.monotonic() - began)))
    second = between(first, read_moment(root, time.monotonic()), _ticks_per_second(), os.getpid())
    return Checkup(read_host(root), second, gpus, software, database)


def checkup_table(checkup: Checkup) -> Table:
    """What there is, by area, then the checks: of one that is not ok, why it matters and what to do stand below."""
    rows: list[Sequence[Cell]] = []
    for area, facts in facts_of(checkup).items():
        named = [area, *[""] * (len(facts) - 1)]
        rows += [[(name,), (what,), (found,)] for name, (what, found) in zip(named, facts.items(), strict=True)]
    rows.append([(), (), ()])
    for finding in checkup.findings:
        told = (finding.why, f"-> {finding.advice}") if finding.level in (Level.WARN, Level.FAIL) else ()
        rows.append([(finding.level,), (finding.name,), (finding.found, *told)])
    counts = Counter(finding.level for finding in checkup.findings)
    tally = [f"{counts[level]} {level}" for level in (Level.FAIL, Level.WARN, Level.OK, Level.UNKNOWN) if counts[level]]
    notes = ["How much of it matters, frostline doctor --noise measures: it compares the installed code with itself."]
    return Table(
        f"frostline doctor: {', '.join(tally)}", [Column(""), Column("what"), Column("found", prose=True)], rows, notes
    )


def checkup_json(checkup: Checkup) -> str:
    """All that was read and found, as JSON."""
    content = {
        "exit_code": checkup.exit_code,
        "checks": [asdict(finding) for finding in checkup.findings],
        "facts": facts_of(checkup),
        "read": {
            "host": asdict(checkup.host),
            "second": asdict(checkup.second),
            "gpus": [asdict(gpu) for gpu in checkup.gpus],
            "software": asdict(checkup.software),
            "database": asdict(checkup.database),
        },
    }
    return json.dumps(content, indent=2, default=str) + "\n"


def facts_of(checkup: Checkup) -> Mapping[str, Mapping[str, str]]:
    """What there is, in words: by area, then by name."""
    areas = {"machine": dict(_machine(checkup.host))}
    if not checkup.gpus:
        areas["machine"]["GPU"] = "none that nvidia-smi tells of"
    for gpu in checkup.gpus:
        areas[f"GPU {gpu.index}"] = dict(_gpu(gpu))
    return areas | {"software": dict(_software(checkup.software)), "database": dict(_database(checkup.database))}


def _machine(host: Host) -> Iterator[tuple[str, str]]:
    limits = host.limits
    yield "system", host.system + (f", in a container ({host.container})" if host.container else "")
    yield "CPU", host.cpu or NOT_KNOWN
    quota = f"; quota of {limits.cores:g} cores" if limits.cores else ""
    yield "cores", f"{len(host.usable)} usable ({_ranges(host.usable)}) of {host.host_cores or NOT_KNOWN}{quota}"
    limit = f"; limit {format_value(limits.memory, 'B')}" if limits.memory else ""
    yield "memory", (f"{_size(host.memory)}, {_size(host.memory_available)} available{limit}" if host.memory else NOT_KNOWN)


def _gpu(gpu: Gpu) -> Iterator[tuple[str, str]]:
    used, total = gpu.memory_used_mib, gpu.memory_mib
    free = f"{_known(None if total is None or used is None else total - used)} MiB free"
    yield "model", f"{gpu.name or NOT_KNOWN}, driver {gpu.driver or NOT_KNOWN}"
    yield "memory", f"{_known(total)} MiB, {free}; ECC {gpu.ecc or NOT_KNOWN}"
    yield "clock", f"{_known(gpu.clock_mhz)} MHz now, {_known(gpu.clock_max_mhz)} at most; {_known(gpu.temperature_c)} °C"
    yield "power", f"{_known(gpu.power_w)} W of {_known(gpu.power_limit_w)}; default limit {_known(gpu.power_default_w)}"
    modes = {"persistence": gpu.persistence, "MIG": "none" if gpu.mig == NO_MIG else gpu.mig, "compute mode": gpu.compute_mode}
    yield "modes", ", ".join(f"{name} {mode or NOT_KNOWN}" for name, mode in modes.items())


def _software(software: Software) -> Iterator[tuple[str, str]]:
    yield "python", f"{software.interpreter.version} ({software.interpreter.executable})"
    cuda = f", CUDA {software.torch_cuda or 'none: a build for the CPU'}" if software.versions.get("torch") else ""
    yield "torch", f"{software.versions.get('torch') or 'not installed'}{cuda}"
    yield "libraries", _versions(software, LIBRARIES)
    yield "peers", _versions(software, PEERS)
    yield "build", _versions(software, BUILD_TOOLS)
    yield "tools", ", ".join(f"{name} {path or 'not found'}" for name, path in software.tools.items())


def _versions(software: Software, names: Sequence[str]) -> str:
    """The versions of those that are here, then the names of the others."""
    here = [f"{name} {software.versions[name]}" for name in names if software.versions.get(name)]
    missing = [name for name in names if not software.versions.get(name)]
    return "; ".join(filter(None, [", ".join(here), f"not installed: {', '.join(missing)}" if missing else ""]))


def _database(database: Database) -> Iterator[tuple[str, str]]:
    size = f"{format_value(database.size, 'B')}, schema {database.schema or 'none yet'}" if database.exists else "not there yet"
    yield "file", f"{database.path}, {size}"


def _known(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:,.0f}"


def _size(value: int | None) -> str:
    return NOT_KNOWN if value is None else format_value(value, "B")


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as the kernel lists them: `0-3,8`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
