"""The GPUs of the machine and what state they are in, by `nvidia-smi`. None where it does not tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frostline.harness.meters.telemetry import query_gpu, query_gpu_processes
from frostline.harness.surroundings import decimal, whole

NO_MIG = "[N/A]"  # what nvidia-smi says of MIG on a GPU that cannot be sliced

FIELDS = {
    "name": "name",
    "driver": "driver_version",
    "memory_mib": "memory.total",
    "memory_used_mib": "memory.used",
    "clock_mhz": "clocks.sm",
    "clock_max_mhz": "clocks.max.sm",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "power_default_w": "power.default_limit",
    "persistence": "persistence_mode",
    "mig": "mig.mode.current",
    "compute_mode": "compute_mode",
    "ecc": "ecc.mode.current",
    "throttle_reasons": "clocks_event_reasons.active",
}


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU. In a container the names of others' processes may be hidden."""

    pid: str
    name: str
    memory_mib: str


@dataclass(frozen=True)
class Gpu:
    """One GPU. MiB, MHz, degrees Celsius and watts; None where it does not tell."""

    index: int
    name: str | None = None
    driver: str | None = None
    memory_mib: float | None = None
    memory_used_mib: float | None = None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    persistence: str | None = None
    mig: str | None = None
    compute_mode: str | None = None
    ecc: str | None = None
    throttle_reasons: int | None = None
    processes: Sequence[GpuProcess] = ()


def read_gpus() -> list[Gpu]:
    """Every GPU that `nvidia-smi` lists; none where there is no such tool."""
    count = query_gpu(["count"])
    return [_read(index) for index in range((whole(count[0]) if count else None) or 0)]


def _read(index: int) -> Gpu:
    device = f"cuda:{index}"
    values = query_gpu(list(FIELDS.values()), device)
    if not values:  # one field that this driver does not know refuses them all
        values = [(query_gpu([name], device) or [""])[0] for name in FIELDS.values()]
    told = {field: value for field, value in zip(FIELDS, values, strict=True) if _is_told(field, value)}
    read: dict[str, Any] = {field: _value(field, text) for field, text in told.items()}
    return Gpu(index, processes=[GpuProcess(*row) for row in query_gpu_processes(device)], **read)


def _is_told(field: str, text: str) -> bool:
    """Whether it is an answer: not `[N/A]`, `[Not Supported]`, `[Unknown Error]`, `ERR!`. Of MIG, `[N/A]` says: none."""
    return (field, text) == ("mig", NO_MIG) or bool(text and not text.startswith("[") and text not in ("N/A", "ERR!"))


def _value(field: str, text: str) -> float | int | str | None:
    """A field's text as what `Gpu` holds; None for a number that is none."""
    if field == "throttle_reasons":
        return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text) else whole(text)
    return decimal(text) if field.endswith(("_mib", "_mhz", "_c", "_w")) else text
