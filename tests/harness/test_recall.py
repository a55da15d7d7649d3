"""What the fake mode remembers is what torch would work out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.library import Library

from frostline.harness.meters.dispatch import OperatorWatch, tensors_in
from frostline.harness.meters.recall import Recall
from frostline.harness.meters.shapes import fake_tensors


def other() -> Tensor:
    return torch.ones(5, 6)


def resized(x: Tensor) -> Tensor:
    return torch.mul(x.detach(), 2, out=torch.empty(0))


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "product": lambda x: x @ other().t(),
    "views": lambda x: [x[2:, 1:], x.t(), x.view(-1), x[:, None].expand(8, 3, 6), x.view(torch.int32), x.detach()],
    "views of views": lambda x: [x[row:].t()[1:] for row in range(4)],
    "in place": lambda x: x.clone().mul_(2).add_(x),
    "to a tensor": lambda x: torch.mm(x.detach(), other().t(), out=torch.empty(8, 5)),
    "to one that is too small": resized,
    "several": lambda x: [*x.split(3), *x.unbind(1), *x.max(1), *torch.chunk(other(), 2)],
    "norm": lambda x: torch.native_layer_norm(x, [6], other()[0], other()[1], 1e-5),
    "several in place": lambda x: torch._foreach_add_([x.clone(), other().clone()], 1.0),
    "places": lambda x: [x[torch.arange(3), torch.arange(3)], x.clone().index_add_(0, torch.arange(2), x[:2])],
    "whole and broken numbers": lambda x: [x.int() * 2, x.int() * 2.0, x.int() * True],
    "other dtypes": lambda x: [x.to(torch.bfloat16), x > 0, x.sum(0, dtype=torch.float64), x.bfloat16().float()],
    "gaps": lambda x: [torch.empty_strided((2, 3), (8, 1)), torch.empty_strided((2, 3), (8, 1)) + 1, x.new_empty(0)],
    "another shape for an argument": lambda x: x.clone().t_().unsqueeze_(0) + 1,
    "complex": lambda x: [torch.view_as_complex(x.view(8, 3, 2)).conj() * 2, torch.fft.rfft(x).imag * 2],
    "one tensor twice": lambda x: [x.clone() + x, x * x, (y := x.clone()).add_(y)],
    "a constant": lambda x: x * torch.tensor(3.0),
}


def seen(value: Any) -> list[Any]:
    """All that can be told of the fake tensors in a value, and which of them share a storage."""
    tensors = [one for one in tensors_in(value) if isinstance(one, FakeTensor)]
    storages = [id(tensor.untyped_storage()) for tensor in tensors]
    told: list[Any] = [storages.index(storage) for storage in storages]
    for one in tensors:
        told.append((one.shape, one.stride(), one.storage_offset(), one.dtype, one.device, one.layout, one.requires_grad))
        told += [one.untyped_storage().nbytes(), str(torch._C._dispatch_keys(one)), one.is_conj(), one.is_neg()]
        told.append({name: value for name, value in one.__dict__.items() if name not in ("fake_mode", "constant")})
        told.append(one.fake_mode is tensors[0].fake_mode)
    return told if tensors else [value]


def results(run: Callable[[Tensor], Any], times: int, **given: Any) -> list[list[Any]]:
    """What the operators of a call returned, each time that it was called in one fake mode."""
    found = []
    with fake_tensors():
        x = torch.ones(8, 6, **given)
        for _ in range(times):
            told: list[Any] = []
            with OperatorWatch(call=lambda _, args, __, result, told=told: told.append(seen([*tensors_in(args), result]))):
                told.append(seen(run(x)))
            found.append(told)
    return found


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operators that torch worked out, from nothing remembered."""
    names: list[str] = []
    call = Recall.call

    def counted(self: Recall, operator: Any, types: Any, args: Any, kwargs: Any, work_out: Any) -> Any:
        def work(*given: Any) -> Any:
            names.append(str(operator))
            return work_out(*given)

        return call(self, operator, types, args, kwargs, work)

    monkeypatch.setattr(Recall, "call", counted)
    monkeypatch.setattr(Recall, "_of_torch", {})
    return names


@pytest.mark.parametrize("given", [{}, {"requires_grad": True}], ids=["plain", "trained"])
@pytest.mark.parametrize("run", CALLS.values(), ids=CALLS.keys())
def test_remembered_is_as_worked_out(
    run: Callable[..., Any], given: dict[str, Any], worked_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered = results(run, 3, **given)
    assert remembered[0] == remembered[1] == remembered[2]
    monkeypatch.setattr(Recall, "call", lambda *given: given[-1](*given[1:-1]))
    assert remembered[0] == results(run, 1, **given)[0]


def test_torchs_operators_are_worked_out_once(worked_out: list[str]) -> None:
    run = CALLS["product"]
    results(run, 1)
    first = len(worked_out)
    results(run, 5)
    assert first and worked_out[first:] == []


def test_a_constant_can_be_read() -> None:
    with fake_tensors():
        for number in (3.0, 4.0):
            assert (torch.tensor(number) + 1).item() == number + 1


def test_what_decides_besides_the_arguments(worked_out: list[str]) -> None:
    with fake_tensors():
        assert torch.zeros(2).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.zeros(2).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        with torch.inference_mode():
            assert torch.zeros(2).is_inference()
        assert not torch.zeros(2).is_inference()


def test_operators_of_others_are_asked_anew_in_each_mode() -> None:
    sizes = [3]
    library = Library("frostline_test_recall", "DEF")
    library.define("make(Tensor x) -> Tensor")
    library.impl("make", lambda x: x.new_empty(sizes[0]), "Meta")
    try:
        for size in (3, 4):
            sizes[0] = size
            with fake_tensors():
                x = torch.ones(2)
                made = [torch.ops.frostline_test_recall.make(x) for _ in range(2)]
            assert [one.shape for one in made] == [(size,), (size,)]
    finally:
        library._destroy()
