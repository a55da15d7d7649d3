"""`frostline cost --fits`: many searches at once, on processes that are made up here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from frostline.harness import fitting
from frostline.harness.plan import Plan
from frostline.harness.side import Side, Source
from frostline.results.record import Case, Status

INSTALLED = Source("installed", "installed", "some code")


def test_a_search_goes_no_further_once_the_command_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = threading.Event()
    late: list[int] = []

    class Predictors:
        def __init__(self, *_: Any) -> None: ...
        def __enter__(self) -> Predictors:
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, asked: Sequence[tuple[Side, Case]]) -> Iterator[Future[Any]]:
            ((side, case),) = asked
            size = case.params["seq_len"]
            assert isinstance(size, int)
            if side.implementation == "long":
                interrupted.wait(10.0)
                late.append(size)
                time.sleep(0.02)
            done: Future[Any] = Future()
            figures = {"peak_allocated": float(size) ** 1.5, "operators": 1}
            done.set_result(SimpleNamespace(status=Status.OK, reply={"measurements": figures, "cost": {"products_in": []}}))
            return iter([done])

    class Progress:
        def __enter__(self) -> Progress:
            return self

        def __exit__(self, *_: object) -> None: ...
        def begin(self, *_: Any) -> None: ...
        def step(self, *_: Any) -> None:
            interrupted.set()
            raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "Predictors", Predictors)
    sides = [Side(at, name, INSTALLED, at == 0) for at, name in enumerate(("short", "long"))]
    plan = Plan("bench.py::toy", [Case("toy", "1", {"seq_len": 16})], sides, 8, "cuda", 1)
    progress: Any = Progress()
    with pytest.raises(KeyboardInterrupt):
        fitting.largest_sizes(plan, fitting.Fitting(10**9), progress)
    assert len(late) <= 2, "one was under way, and one more may have begun before the searches were told"
