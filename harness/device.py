"""The machine and its GPU: what a session records of them, and the lock that keeps sessions off each other's GPU."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path

from frostline.harness.meters.telemetry import query_gpu
from frostline.results.record import Machine, UsageError


def this_machine(device: str) -> Machine:
    """This machine as content: two sessions are comparable when it is equal. The host's name enters as a hash only."""
    content: dict[str, object] = {
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "os": f"{platform.system()} {platform.machine()}",
        "host": hashlib.sha256(platform.node().encode()).hexdigest()[:8],
    }
    if device.startswith("cuda"):
        values = query_gpu(["name", "memory.total", "driver_version"], device)
        content |= dict(zip(("gpu", "gpu_memory_mib", "driver"), values, strict=False))
    return Machine(content)


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def hold_device(device: str) -> Iterator[None]:
    """Hold a GPU for one session. A CPU is not held: blocks of live processes share it well enough.

    Raises:
        UsageError: another session holds it.
    """
    if not device.startswith("cuda"):
        yield
        return
    with _held(f"gpu-{device.partition(':')[2] or '0'}", f"--device: {device} is held by another session"):
        yield


@contextlib.contextmanager
def hold_session(session_id: str) -> Iterator[None]:
    """Hold a session while it is measured, so that it is not finished by two commands at once.

    Raises:
        UsageError: another command is measuring it.
    """
    with _held(f"session-{session_id}", f"SESSION: {session_id} is still being measured by another command"):
        yield


@contextlib.contextmanager
def _held(name: str, refusal: str) -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / f"frostline-{name}.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{refusal} ({path}); wait for it to end") from None
        yield


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
