"""A side that did not run its own code is an error, whatever it measured."""

from __future__ import annotations

import hashlib
import importlib
import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from frostline.harness import session as sessions
from frostline.harness.describe import Request, plan_compare
from frostline.harness.progress import Progress
from frostline.harness.provenance import imported_modules, violation
from frostline.harness.side import Source
from frostline.results.record import Module, Role, Status
from frostline.results.store import Store

SUITE = """
from frostline.harness import suite
@suite(axes={"n": [1]}, targets=["measured"])
def toy(implementation, device, *, n):
    %s
    return lambda: None
"""


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Measure one round of two sides that each provide `measured`; the suite does what the test says inside its function."""
    monkeypatch.setattr("frostline.harness.plan.ROUND_NS", 1e6)

    def measure(body: str, rounds: int = 1):
        for side in ("old", "new"):
            (tmp_path / side).mkdir()
            (tmp_path / side / "measured.py").write_text(f"SIDE = {side!r}\n")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "measured.py").write_text("SIDE = 'elsewhere'\n")
        (tmp_path / "bench.py").write_text(SUITE % body.format(folder=tmp_path))
        sources = [Source(side, "git", side, tmp_path / side, ("measured",)) for side in ("old", "new")]
        plan = plan_compare(Request(f"{tmp_path}/bench.py", rounds=rounds), lambda _: sources, looks=1)
        store = Store.open(tmp_path / "test.db")
        measure.stores = [store]
        session = sessions.open_session(plan, store, "test", {})
        sessions.measure(plan, store, session, Progress(Console(file=io.StringIO())))
        return {item.position: item for item in store.processes(session.id, role=Role.MEASURE) if item.attempt == 0}

    return measure


def test_each_side_proves_its_own_code(records):
    found = records("import measured")
    assert [found[at].status for at in (0, 1)] == [Status.OK, Status.OK]
    assert [Path(found[at].modules[0].file).parent.name for at in (0, 1)] == ["old", "new"]
    assert found[0].code_id != found[1].code_id


def test_a_side_that_loads_nothing_of_its_own_is_an_error(records):
    found = records("pass")
    assert found[1].status is Status.ERROR
    assert found[1].reason == "the step imported nothing of measured: the side's code was not measured"


def test_a_side_that_does_not_run_its_code_is_tried_once_more_and_left_out(records):
    records("pass", rounds=3)
    (store,) = records.stores
    found = store.processes(store.session().id, role=Role.MEASURE)
    assert sorted((item.position, item.round, item.attempt) for item in found) == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]


def test_a_side_that_loads_another_copy_is_an_error(records):
    found = records("import sys; sys.path.insert(0, '{folder}/elsewhere'); import measured")
    assert found[0].status is Status.ERROR and "elsewhere/measured.py, which is not of this side" in found[0].reason


def test_what_a_step_starts_loads_its_sides_code_too(records):
    child = "'import measured, sys; sys.exit(measured.SIDE != ' + repr(measured.SIDE) + ')'"
    found = records(f"import measured, subprocess, sys; subprocess.run([sys.executable, '-c', {child}], check=True)")
    assert [found[at].status for at in (0, 1)] == [Status.OK, Status.OK], [found[at].reason for at in (0, 1)]


def test_a_path_that_only_looks_alike_is_outside():
    module = Module("measured", "/cache/side-2/measured.py", "0")
    assert violation([module], Path("/cache/side"), ("measured",))
    assert not violation([module], Path("/cache/side-2"), ("measured",))
    assert not violation([], None, ("measured",))


def test_a_file_is_read_again_when_its_module_was_imported_again(tmp_path, monkeypatch):
    def of_the_file():
        return hashlib.sha256(file.read_bytes()).hexdigest()

    file = tmp_path / "reread.py"
    file.write_text("SIDE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("reread")
    (first,) = imported_modules(["reread"])
    assert (first.name, first.file, first.sha256) == ("reread", str(file), of_the_file())
    file.write_text("SIDE = 12\n")
    assert imported_modules(["reread"]) == [first]  # what has been imported still runs
    importlib.reload(module)
    (second,) = imported_modules(["reread"])
    assert second.sha256 == of_the_file() != first.sha256
    monkeypatch.delitem(sys.modules, "reread")
    assert imported_modules(["reread"]) == []
