"""The `gpu` marker, a record of the plans that ran, and a tracker of live tensor bytes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from frostline.kernels.lm_head.plan import Plan, Strategy, make_plan


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):  # threads of two processes that spin while they wait only slow each other
        torch.set_num_threads(1)
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


class LiveBytes(TorchDispatchMode):
    """Peak bytes of the storages that operators made, and the sizes of all of them. Works on real and on fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.sizes: list[int] = []
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def ignore(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self._seen.add(tensor.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.ignore(*(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage() not in self._seen:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        size = storage.nbytes()
        self._seen.add(storage)
        self.sizes.append(size)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, size)

    def _drop(self, size: int) -> None:
        self.live -= size


@pytest.fixture
def strategies(monkeypatch: pytest.MonkeyPatch) -> list[Strategy]:
    """The strategies of the plans that the head follows in the test, in the order of their making."""
    chosen: list[Strategy] = []

    def recorded(*args: Any, **kwargs: Any) -> Plan:
        plan = make_plan(*args, **kwargs)
        chosen.append(plan.strategy)
        return plan

    for module in ("known_loss", "logprob"):
        monkeypatch.setattr(f"frostline.kernels.lm_head.{module}.make_plan", recorded)
    return chosen


@pytest.fixture
def live_bytes() -> Callable[[], LiveBytes]:
    return LiveBytes


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
