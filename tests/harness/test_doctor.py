"""`frostline doctor` as people meet it, and what it reads of software, databases and `nvidia-smi`."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from frostline.harness import commands, gpus
from frostline.harness.disturbances import Level, gpu_checks
from frostline.harness.doctor import checkup_json, checkup_table, examine
from frostline.harness.front.doctor import measure_noise
from frostline.harness.gpus import Gpu, GpuProcess, read_gpus
from frostline.harness.progress import Progress
from frostline.harness.software import read_database, read_software, telling_variables
from frostline.results.flags import SAME_CODE
from frostline.results.noise import load_self_comparison
from frostline.results.record import Outcome
from frostline.results.schema import known_migrations
from frostline.results.store import Store

QUIET = Progress(Console(file=io.StringIO()))
SMI = """#!{python}
import sys
query = next(a for a in sys.argv if a.startswith("--query-"))
fields = query.partition("=")[2].split(",")
if "clocks_event_reasons.active" in fields and {old}:
    sys.exit("Field is not a valid field to query.")
known = {{
    "count": "1", "name": "NVIDIA H200", "driver_version": "570.86", "memory.total": "143771", "memory.used": "4",
    "clocks.sm": "345", "clocks.max.sm": "1980", "temperature.gpu": "31", "power.draw": "76.5", "power.limit": "500.00",
    "power.default_limit": "700.00", "persistence_mode": "Enabled", "mig.mode.current": "[N/A]", "compute_mode": "Default",
    "ecc.mode.current": "Enabled", "clocks_event_reasons.active": "0x0000000000000001",
    "pid": "77", "process_name": "/usr/bin/python3", "used_memory": "512",
}}
print(", ".join(known[field] for field in fields))
"""


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put a machine's `nvidia-smi` on the path: a current one, or one that does not know a field."""

    def install(*, old=False):
        file = tmp_path / "bin" / "nvidia-smi"
        file.parent.mkdir()
        file.write_text(SMI.format(python=sys.executable, old=old))
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")

    return install


def test_doctor_prints_what_there_is_and_what_may_disturb(frostline, tmp_path):
    file = tmp_path / "doctor.json"
    done = frostline("doctor", "--db", tmp_path / "f.db", "--json", file, env={"TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("frostline doctor: ", "python", "torch", "peers", "other processes", "TRITON_INTERPRET=1", "not there yet"):
        assert said in done.stdout, said
    found = json.loads(file.read_text())
    assert found["exit_code"] == 0 and {check["level"] for check in found["checks"]} <= set(Level)
    assert found["read"]["software"]["versions"]["torch"]
    assert not (tmp_path / "f.db").exists(), "a check-up leaves nothing behind"


def test_doctor_exits_1_where_something_fails(frostline, tmp_path):
    (tmp_path / "f.db").write_text("not a database" * 100)
    done = frostline("doctor", "--db", tmp_path / "f.db")
    assert done.returncode == 1 and "it cannot be read" in done.stdout and "name another file with --db" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds", "8"], "--device, --threads and --rounds are of --noise"),
        (["--noise", "--json", "x.json"], "--json"),
        (["--noise", "--device", "gpu"], "--device: expected cpu, cuda or cuda:N, got 'gpu'"),
        (["--noise", "--rounds", "0"], "--rounds: expected 1 to 1,000, got 0"),
        (["--noise", "--rounds", "2"], "--rounds: got 2, wanted 3 or more: an A/A of 2 looks needs 6 rounds in all"),
        (["--threads", "0"], "--device, --threads and --rounds are of --noise"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_2(frostline, tmp_path, arguments, said):
    done = frostline("doctor", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == [], "a mistake leaves no database behind"


def test_a_machine_that_tells_nothing_is_examined_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    checkup = examine(tmp_path / "f.db", root=tmp_path)
    levels = {finding.name: finding.level for finding in checkup.findings}
    for name in ("load", "other processes", "CPU governor", "CPU heat", "memory", "virtual machine", "power"):
        assert levels[name] is Level.UNKNOWN
    assert levels["tools"] is Level.WARN
    assert "not known here" in checkup_table(checkup).text() and json.loads(checkup_json(checkup))["read"]["gpus"] == []


@pytest.mark.parametrize("old", [False, True])
def test_gpus_are_read_field_by_field_where_one_is_not_known(nvidia_smi, old):
    nvidia_smi(old=old)
    (gpu,) = read_gpus()
    assert (gpu.name, gpu.memory_mib, gpu.clock_max_mhz, gpu.power_limit_w, gpu.mig) == (
        "NVIDIA H200",
        143771,
        1980,
        500,
        "[N/A]",
    )
    assert gpu.processes == [GpuProcess("77", "/usr/bin/python3", "512")]
    assert gpu.throttle_reasons == (None if old else 1)


@pytest.mark.parametrize("answer", ["[Not Supported]", "[Unknown Error]", "ERR!", "[N/A]"])
def test_what_a_gpu_cannot_tell_is_not_known(monkeypatch, answer):
    monkeypatch.setattr(gpus, "query_gpu", lambda fields, *_: ["1"] if fields == ["count"] else [answer] * len(fields))
    (gpu,) = read_gpus()
    assert replace(gpu, mig=None) == Gpu(0, processes=[])
    levels = {finding.level for finding in gpu_checks(replace(gpu, mig=None))}
    assert levels == {Level.UNKNOWN}


def test_a_gpu_has_its_area_and_its_checks(nvidia_smi, tmp_path):
    nvidia_smi()
    text = checkup_table(examine(tmp_path / "f.db")).text()
    assert "NVIDIA H200, driver 570.86" in text and "143,767 MiB free; ECC Enabled" in text
    assert "python3 (pid 77) 512 MiB" in text and "power capped at 500 W of 700" in text


def test_variables_that_only_say_where_things_are_change_nothing():
    places = {"CUDA_HOME": "/usr/local/cuda", "TRITON_CACHE_DIR": "/tmp", "PYTORCH_VERSION": "2.13", "OMP_NUM_THREADS": "4"}
    telling = {"CUDA_LAUNCH_BLOCKING": "1", "PYTHONMALLOC": "debug", "TORCH_LOGS_FORMAT": "x", "LD_PRELOAD": "libjemalloc.so"}
    assert telling_variables(places | telling | {"PATH": "/bin", "PYTHONPATH": "/x"}) == dict(sorted(telling.items()))


def test_software_names_hooks_and_the_compiler_that_cc_names(monkeypatch):
    found = read_software({"COVERAGE_PROCESS_START": "rc", "CC": "no-such-compiler"})
    assert "COVERAGE_PROCESS_START" in found.interpreter.hooks
    assert found.tools["C compiler"] is None
    assert found.versions["frostline"] and found.versions["sqlite"] == sqlite3.sqlite_version


def test_databases(tmp_path):
    new = read_database(tmp_path / "new.db")
    assert not new.exists and new.problem == ""
    with Store.open(tmp_path / "ours.db"):
        pass
    ours = read_database(tmp_path / "ours.db")
    assert ours.exists and ours.problem == "" and ours.schema == max(known_migrations()) and ours.size > 0
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t (x)")
    other.close()
    assert read_database(tmp_path / "other.db").problem == "it is a database of something else"
    assert read_database(tmp_path / "ours.db" / "below.db").problem.endswith("ours.db is no folder")
    assert read_database(Path("/proc/x.db")).problem.startswith("it cannot be made: /proc")


def test_a_database_of_a_newer_frostline_is_told(tmp_path):
    with Store.open(tmp_path / "f.db") as store:
        store._db.execute("INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('frostline', 'm999', '9')")
        store._db.conn.commit()
    assert "a newer frostline wrote it (m999)" in read_database(tmp_path / "f.db").problem


NAPS = """
import time
from frostline.harness import suite
from frostline.harness.declare import Preset

@suite(axes={"step": ["nap"]}, presets={"small": Preset()})
def noise(implementation, device, *, step):
    return lambda: time.sleep(0.001)
"""


def test_an_a_a_is_an_ordinary_session_of_the_same_code(tmp_path, monkeypatch):
    (tmp_path / "naps.py").write_text(NAPS)
    monkeypatch.setattr(commands, "NOISE_SUITE", str(tmp_path / "naps.py"))
    with Store.open(tmp_path / "f.db") as store:
        done = commands.measure_noise(commands.self_comparison("cpu", 1, 6), store, QUIET, "frostline doctor --noise")
        assert [side.source for side in store.sides(done.session.id)] == ["installed"] * 2
        assert all(SAME_CODE in verdict.flags for verdict in done.verdicts)
        found = load_self_comparison(store, store.session())
    assert found.decided and [step.name for step in found.steps] == ["nap"]
    assert found.session.plan["threads"] == 1 and found.session.command == "frostline doctor --noise"


def test_doctor_noise_says_what_too_few_rounds_cannot_tell(frostline, tmp_path, monkeypatch, capsys):
    """So few are refused when typed; processes that fail can still leave no more."""
    (tmp_path / "naps.py").write_text(NAPS)
    monkeypatch.setattr(commands, "NOISE_SUITE", str(tmp_path / "naps.py"))
    monkeypatch.setattr(commands, "LEAST_ROUNDS", 1)
    assert measure_noise("cpu", 1, 1, tmp_path / "f.db") == 3
    shown = capsys.readouterr().out
    for said in ("A/A on ", "nap", "Nothing can be said of this machine", "Kept in"):
        assert said in shown, shown
    with Store.open(tmp_path / "f.db", create=False) as store:
        found = load_self_comparison(store, store.session())
        assert [step.verdict.outcome for step in found.steps] == [Outcome.INCONCLUSIVE]
    report = frostline("report", "--db", tmp_path / "f.db")
    assert report.returncode == 0 and "noisy" not in report.stdout
