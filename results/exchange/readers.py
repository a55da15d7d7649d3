"""The forms of other programs' result files that are understood, each by what is in it and not by its name.

Sources: pytest-benchmark's `--benchmark-json`; Google Benchmark's `--benchmark_format=json`; asv's result files of API
version 2 with `benchmarks.json` beside the machines' folders; the CSV of Liger-Kernel's `benchmark/data`; our own JSON of
published tables.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from frostline.results.exchange.figures import Figure, Figures, imported, metric_of, number, scalar
from frostline.results.record import Imported, Status, UsageError

PUBLISHED = "published"  # the word that stands for the tables that come with frostline
PUBLISHED_FOLDER = Path(__file__).parents[1] / PUBLISHED
FORMS = "pytest-benchmark JSON, Google Benchmark JSON, asv results, Liger-Kernel's benchmark CSV or a frostline-figures JSON"
_LIGER = ("kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "metric_unit", "x_name", "x_value",
          "y_value_50", "extra_benchmark_config_str", "gpu_name", "timestamp", "liger_version")  # fmt: skip


def read_file(path: Path, command: str) -> list[Imported]:
    """Every session in a file, in a folder of asv results, or in the tables that come with frostline (`published`).

    Raises:
        UsageError: nothing there, nothing readable, a form that is not known, or a file that breaks the rules of its form.
    """
    if str(path) == PUBLISHED and not path.exists():
        return [one for file in sorted(PUBLISHED_FOLDER.glob("*.json")) for one in read_file(file, command)]
    if path.is_dir():
        files = sorted(one for one in path.rglob("*.json") if one.name not in ("benchmarks.json", "machine.json"))
        if not files:
            raise UsageError(f"FILE: no asv results in the folder {path}; wanted machines' folders beside a benchmarks.json")
        return [one for file in files for one in read_file(file, command)]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"FILE: cannot read {path}: {problem}; wanted {FORMS}") from None
    try:
        form, found = _read(text, path)
        return [imported(one, f"{form} {path.name}", command) for one in found]
    except UsageError as problem:
        raise UsageError(f"FILE: {path}: {str(problem).removeprefix('FILE: ')}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        told = f"{type(problem).__name__}: {problem}"
        raise UsageError(f"FILE: {path} is not what it looks like ({told}); wanted {FORMS}") from None


def _read(text: str, path: Path) -> tuple[str, list[Figures]]:
    first = text.lstrip("\ufeff").partition("\n")[0]
    if set(_LIGER) <= set(next(csv.reader([first]), [])):
        return "Liger-Kernel benchmark CSV", liger(text.lstrip("\ufeff"))
    try:
        data = json.loads(text)
    except json.JSONDecodeError as problem:
        raise UsageError(
            f"neither JSON ({problem}) nor a CSV with the columns {', '.join(_LIGER[:3])}, ...; wanted {FORMS}"
        ) from None
    if isinstance(data, dict):
        if data.get("format") == "frostline-figures":
            return "published tables", published(data)
        if "machine_info" in data and "benchmarks" in data:
            return "pytest-benchmark", pytest_benchmark(data)
        if "context" in data and "benchmarks" in data:
            return "Google Benchmark", google_benchmark(data)
        if "commit_hash" in data and "results" in data:
            return "asv", asv(data, _benchmarks_beside(path))
    raise UsageError(f"JSON of no known form; wanted {FORMS}")


def published(data: Mapping[str, Any]) -> list[Figures]:
    """Tables of our own form, version 1: see `results/published/`."""
    if data.get("version") != 1:
        raise UsageError(f"version: got {data.get('version')!r}, wanted 1")
    return [_table(one) for one in data["tables"]]


def _table(table: Mapping[str, Any]) -> Figures:
    figures = [
        Figure(one["implementation"], PUBLISHED, {**table["fixed"], **one["params"]},
               {name: [number(value, name)] for name, value in one["values"].items()},
               Status(one.get("status", Status.OK)), "as published" if one.get("status") else "")
        for one in table["figures"]
    ]  # fmt: skip
    detail = {name: table[name] for name in ("title", "source", "method")}
    return Figures(table["suite"], table["machine"], table["device"], table["units"], figures, table["baseline"], "", detail)


def pytest_benchmark(data: Mapping[str, Any]) -> list[Figures]:
    """A suite for each test function; its parameters are the axes, its rounds the samples (in seconds)."""
    info, commit = data["machine_info"], data.get("commit_info") or {}
    source = str(commit.get("id") or "pytest-benchmark")[:12]
    found: dict[str, list[Figure]] = {}
    for one in data["benchmarks"]:
        suite, _, rest = one["fullname"].partition("[")
        params = one.get("params") or ({"param": rest.removesuffix("]")} if rest else {})
        params = {name: scalar(value) for name, value in params.items()}
        stats = one["stats"]
        readings = [number(value, "stats.data") for value in stats.get("data") or [stats["median"]]]
        detail = {"extra_info": one.get("extra_info", {}), "group": one.get("group")}
        found.setdefault(suite, []).append(Figure("default", source, params, {"step_time": readings}, detail=detail))
    brand = info.get("cpu") or {}
    machine = {"cpu": brand.get("brand_raw") or info.get("machine"), "cores": brand.get("count"), "node": info.get("node"),
               "os": info.get("system"), "python": info.get("python_version")}  # fmt: skip
    return _by_suite(found, machine, "cpu", {"step_time": "s"}, str(data.get("datetime") or ""), {"commit": dict(commit)})


def google_benchmark(data: Mapping[str, Any]) -> list[Figures]:
    """A suite for each benchmark's function; the rest of its name are the axes, its repetitions processes."""
    context = data["context"]
    raw = [one for one in data["benchmarks"] if one.get("run_type", "iteration") == "iteration"]
    chosen = raw or [one for one in data["benchmarks"] if one.get("aggregate_name") == "median"]
    found: dict[tuple[str, str], list[Figure]] = {}
    for one in chosen:
        suite, *parts = one.get("run_name", one["name"]).split("/")
        params = dict(_named(part, place) for place, part in enumerate(parts))
        source = Path(str(context.get("executable") or "google-benchmark")).name
        if one.get("error_occurred"):
            figure = Figure("default", source, params, {}, Status.ERROR, str(one.get("error_message", "")))
            unit = "ns"
        else:
            unit = one.get("time_unit", "ns")
            figure = Figure("default", source, params, {"step_time": [number(one["real_time"], "real_time")]})
        found.setdefault((suite, unit), []).append(figure)
    machine = {
        "cpu": f"{context.get('mhz_per_cpu', '?')} MHz",
        "cores": context.get("num_cpus"),
        "node": context.get("host_name"),
    }
    return [
        made
        for (suite, unit), figures in found.items()
        for made in _by_suite({suite: figures}, machine, "cpu", {"step_time": unit}, str(context.get("date") or ""), {})
    ]


def _named(part: str, place: int) -> tuple[str, int | float | str | bool]:
    name, colon, value = part.rpartition(":")
    text = value if colon else part
    return (name if colon else f"arg{place}"), (int(text) if text.lstrip("-").isdigit() else text)


def asv(data: Mapping[str, Any], benchmarks: Mapping[str, Any]) -> list[Figures]:
    """A suite for each benchmark, with asv's parameters (texts) as axes: null is a failure, NaN was skipped."""
    columns, source = data["result_columns"], data["commit_hash"][:12]
    made = []
    for name, row in data["results"].items():
        about = benchmarks.get(name, {})
        entry = dict(zip(columns, row, strict=False))
        values = entry.get("result")
        params = entry.get("params") or []
        unit = about.get("unit", "seconds")
        metric = metric_of(unit, name)
        names = about.get("param_names") or [f"param{place}" for place in range(len(params))]
        points = list(itertools.product(*params))
        values = [None] * len(points) if values is None else values
        figures = [
            _asv_figure(source, dict(zip(names, map(scalar, point), strict=True)), metric, value)
            for point, value in zip(points, values, strict=True)
        ]
        machine = {
            key: value
            for key, value in data.get("params", {}).items()
            if key in ("cpu", "os", "ram", "machine", "num_cpu", "arch")
        }
        began = _when(entry.get("started_at"))
        made += _by_suite({name: figures}, machine, "cpu", {metric: unit}, began, {"environment": data.get("env_name", "")})
    return made


def _asv_figure(source: str, params: Mapping[str, Any], metric: str, value: object) -> Figure:
    if value is None:
        return Figure("default", source, params, {}, Status.ERROR, "asv: failed")
    if isinstance(value, float) and math.isnan(value):
        return Figure("default", source, params, {}, Status.SKIPPED, "asv: skipped")
    return Figure("default", source, params, {metric: [number(value, metric)]})


def _when(milliseconds: object) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat() if isinstance(milliseconds, int | float) else ""


def _benchmarks_beside(path: Path) -> Mapping[str, Any]:
    for folder in (path.parent, *path.parents[1:3]):
        try:
            return {
                name: one for name, one in json.loads((folder / "benchmarks.json").read_text()).items() if isinstance(one, dict)
            }
        except FileNotFoundError:
            continue
    raise UsageError("an asv result without its benchmarks.json, which has the units; wanted it beside the machine's folder")


def liger(text: str) -> list[Figures]:
    """A session for each kernel, GPU and release. A provider is a side, `mode` an axis; of rows alike the last counts.

    Its `MB` are 2^20 bytes: it divides by that.
    """
    latest: dict[tuple[Any, ...], tuple[tuple[str, ...], Mapping[str, str], Mapping[str, Any]]] = {}
    for place, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        if None in row.values() or None in row:
            raise UsageError(
                f"record {place}: got {len([v for v in row.values() if v is not None])} cells, not those of the header"
            )
        value = float(row["y_value_50"])
        if math.isnan(value):
            continue
        number(value, f"record {place}, y_value_50")
        more = json.loads(row["extra_benchmark_config_str"] or "{}")
        x = float(row["x_value"]) if _is_figure(row["x_value"]) else row["x_value"]
        x = int(x) if isinstance(x, float) and x.is_integer() else x
        params = {row["x_name"]: x, **{name: scalar(one) for name, one in more.items()}, "mode": row["kernel_operation_mode"]}
        table = (row["kernel_name"], row["gpu_name"], row["liger_version"])
        key = (*table, row["kernel_provider"], json.dumps(params, sort_keys=True), row["metric_name"])
        if key not in latest or latest[key][1]["timestamp"] <= row["timestamp"]:
            latest[key] = (table, row, params)
    tables: dict[Any, dict[Any, Any]] = {}
    for key, (of_table, last, point) in latest.items():
        sides = tables.setdefault(of_table, {})
        sides.setdefault((last["kernel_provider"], key[4]), []).append((last, point))
    return [_liger_table(table, list(sides.values())) for table, sides in tables.items()]


def _liger_table(table: Sequence[str], points: Iterable[Sequence[tuple[Mapping[str, str], Mapping[str, Any]]]]) -> Figures:
    kernel, gpu, version = table
    units, figures, times = {}, [], []
    for rows in points:
        values = {}
        for row, _ in rows:
            unit = {"MB": "MiB"}.get(row["metric_unit"], row["metric_unit"])
            metric = metric_of(unit, row["metric_name"])
            values[metric], units[metric] = [float(row["y_value_50"])], unit
            times.append(row["timestamp"])
        figures.append(Figure(rows[0][0]["kernel_provider"], f"liger {version}", rows[0][1], values))
    began = f"{max(times).replace(' ', 'T')}+00:00"
    return Figures(kernel, {"gpu": gpu, "liger_kernel": version}, "cuda", units, figures, "huggingface", began)


def _is_figure(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _by_suite(
    found: Mapping[str, Sequence[Figure]],
    machine: Mapping[str, Any],
    device: str,
    units: Mapping[str, str],
    when: str,
    detail: Mapping[str, Any],
) -> list[Figures]:
    return [Figures(suite, machine, device, units, figures, "", when, detail) for suite, figures in found.items()]
