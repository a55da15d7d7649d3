"""What state a device was in: clock, temperature, power and throttle reasons on a GPU; load, clock and throttling on a CPU.

Read by the session before and after a round, outside the measured processes, and stored with each of its processes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from frostline.harness.surroundings import ROOT, fastest_clock, hot_count, throttled_count

GPU_FIELDS = {
    "clock_sm_mhz": "clocks.sm",
    "clock_memory_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "throttle_reasons": "clocks_event_reasons.active",
}


def read_telemetry(device: str, root: Path = ROOT) -> dict[str, float | str]:
    """The state of `device` now. Fields that the machine does not tell are absent. `root` is that of the file system."""
    return _gpu(device) if device.startswith("cuda") else _cpu(root)


def query_gpu(fields: list[str], device: str = "cuda") -> list[str]:
    """The values of `nvidia-smi` query fields for a GPU; empty where there is none or the tool is missing."""
    rows = _ask_nvidia_smi("query-gpu", fields, device)
    return rows[0] if rows else []


def query_gpu_processes(device: str = "cuda") -> list[list[str]]:
    """The processes that compute on a GPU: pid, name and MiB of its memory, as `nvidia-smi` prints them."""
    return _ask_nvidia_smi("query-compute-apps", ["pid", "process_name", "used_memory"], device)


def _ask_nvidia_smi(query: str, fields: list[str], device: str) -> list[list[str]]:
    """The rows of an answer with all the fields that were asked for."""
    index = device.partition(":")[2] or "0"
    command = ["nvidia-smi", f"--{query}={','.join(fields)}", "--format=csv,noheader,nounits", f"--id={index}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[value.strip() for value in line.split(",")] for line in answer.stdout.strip().splitlines()]
    return [row for row in rows if len(row) == len(fields)]


def _gpu(device: str) -> dict[str, float | str]:
    values = query_gpu(list(GPU_FIELDS.values()), device)
    return {name: _number(value) for name, value in zip(GPU_FIELDS, values, strict=False) if "N/A" not in value}


def _cpu(root: Path) -> dict[str, float | str]:
    state: dict[str, float | str] = {"load_1min": os.getloadavg()[0]}
    clock = fastest_clock(root)
    if clock is not None:
        state["clock_mhz"] = clock / 1000
    counts = {"core_throttle_count": hot_count(root), "cgroup_throttled_count": throttled_count(root)}
    return state | {name: count for name, count in counts.items() if count is not None}


def _number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value
