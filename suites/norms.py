"""What does freezing a norm's parameters save in its backward? Backwards alone, of RMS norm and layer norm.

`unpruned` computes all gradients of the package's own norm whatever is frozen, `pruned` only what is asked for; `torch` is
torch's own norm, `torch_compile` the same compiled, `liger` Liger-Kernel's. `bound` adds two tensors of the shape: it moves the
bytes that the backward of a frozen norm cannot do without, and is no norm.

A step is `backwards` backwards, each on tensors of its own, so that on a GPU nothing is left in the L2 cache from one to the
next. How they are timed is an axis, as the two are different figures: `called`, through autograd, is what a training step
waits for, where the host may take longer than the GPU; `graph` replays a CUDA graph of them, the time of the kernels alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from frostline.harness import Bar, Preset, Share, Step, skip, suite
from frostline.harness.declare import Value
from frostline.kernels.matmul import target_device
from frostline.kernels.norm import layer_norm, rms_norm

Norm: TypeAlias = Callable[..., Tensor]

_EPS = 1e-6
_OWN = ("unpruned", "pruned", "torch")
_PEERS = ("torch_compile", "liger")
_OPS = ("rms_norm", "layer_norm")
_LARGE = ((4096, 8192), (8192, 4096), (8192, 8192))  # rows and columns from which on a norm is bound by bandwidth alone
_SMALL = (2048, 4096)
_UNSEEN_IN_A_GRAPH = ("peak_allocated", "peak_above_inputs", "flops", "operators")

# The shapes that frozen norms were published with, and many short rows.
_PARTS: Sequence[Mapping[str, Sequence[Value]]] = [
    {"rows": [2048, 4096, 8192], "columns": [4096], "timed": ["graph"]},
    {"rows": [4096, 8192], "columns": [8192], "timed": ["graph"]},
    {"rows": [65536], "columns": [256], "timed": ["graph"]},
    {"rows": [_SMALL[0]], "columns": [_SMALL[1]], "timed": ["called"]},
]
_PRESETS = {
    "paper": Preset(rounds=3, shares=dict.fromkeys(_PEERS, Share(rounds=2)), parts=_PARTS),
    "small": Preset(
        {"rows": [512], "columns": [1024], "backwards": [1], "dtype": ["float32"]},
        rounds=6,
        implementations=(*_OWN, "bound"),
    ),
}


def _bars() -> list[Bar]:
    bars = []
    for op in _OPS:
        for rows, columns in _LARGE:
            for parameters, most in (("frozen", 1.10), ("trainable", 1.30)):
                place: dict[str, Value] = {"op": op, "rows": rows, "columns": columns, "parameters": parameters}
                says = f"{op}, ({rows:,}, {columns:,}), {parameters}: kernel time over the bound"
                bars.append(Bar(says, "pruned", "step_time", most, where={**place, "timed": "graph"}, against="bound"))
        place = {"op": op, "rows": _SMALL[0], "columns": _SMALL[1], "parameters": "frozen"}
        for timed, most in (("graph", 1.0), ("called", 1.8)):
            says = f"{op}, ({_SMALL[0]:,}, {_SMALL[1]:,}), frozen, {timed}: time over torch's"
            bars.append(Bar(says, "pruned", "step_time", most, where={**place, "timed": timed}, against="torch"))
    return bars


@dataclass(frozen=True)
class _Inputs:
    """Everything that one backward needs: what is normalised, its upstream gradient, and the [columns] parameters."""

    x: Tensor
    dy: Tensor
    parameters: list[Tensor]

    def asked(self) -> list[Tensor]:
        """The tensors whose gradients are asked for."""
        return [self.x, *(parameter for parameter in self.parameters if parameter.requires_grad)]


def _make_inputs(device: str, op: str, shape: tuple[int, int], trained: bool, dtype: torch.dtype, number: int) -> list[_Inputs]:
    parameters = [torch.randn(shape[1], device=device).to(dtype).requires_grad_(trained) for _ in range(1 + (op != "rms_norm"))]
    return [
        _Inputs(
            torch.randn(shape, device=device).to(dtype).requires_grad_(),
            torch.randn(shape, device=device).to(dtype),
            parameters,
        )
        for _ in range(number)
    ]


def _own(op: str) -> Norm:
    if op == "rms_norm":
        return lambda x, weight: rms_norm(x, weight, _EPS)
    return lambda x, weight, bias: layer_norm(x, weight, bias, _EPS)


def _torch(op: str) -> Norm:
    if op == "rms_norm":
        return lambda x, weight: functional.rms_norm(x, x.shape[-1:], weight, _EPS)
    return lambda x, weight, bias: functional.layer_norm(x, x.shape[-1:], weight, bias, _EPS)


def _compiled(op: str, inputs: _Inputs) -> Norm:
    if not inputs.x.is_cuda:
        skip("torch_compile is compared on a GPU alone")
    from torch._functorch import config

    config.donated_buffer = False  # the graph of a forward serves many backwards here
    return torch.compile(_torch(op), dynamic=False)


def _liger(op: str, inputs: _Inputs) -> Norm:
    if not inputs.x.is_cuda:
        skip("Liger-Kernel's norms run on CUDA alone")
    if importlib.util.find_spec("liger_kernel") is None:
        skip("liger-kernel is not installed: pip install 'frostline[peers]'")
    if op == "rms_norm":
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        # Not in place, as it is by default: that would write over the upstream gradient, which is used again.
        return lambda x, weight: LigerRMSNormFunction.apply(x, weight, _EPS, 0.0, "llama", False)
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, _EPS)


def _norm_of(implementation: str, op: str, inputs: _Inputs) -> Norm:
    if implementation == "torch_compile":
        return _compiled(op, inputs)
    if implementation == "liger":
        return _liger(op, inputs)
    return _torch(op) if implementation == "torch" else _own(op)


def _gradients(norm: Norm, inputs: _Inputs) -> tuple[Tensor, ...]:
    return torch.autograd.grad(norm(inputs.x, *inputs.parameters), inputs.asked(), inputs.dy)


def _named(gradients: Sequence[Tensor]) -> dict[str, Tensor]:
    return dict(zip(("d_x", "d_weight", "d_bias"), gradients, strict=False))


def _exact(op: str, inputs: _Inputs) -> dict[str, Tensor]:
    """The gradients in float64, by torch's own norm."""
    x, *parameters = (t.detach().double().requires_grad_(t.requires_grad) for t in (inputs.x, *inputs.parameters))
    return _named(_gradients(_torch(op), _Inputs(x, inputs.dy.double(), parameters)))


def _backwards(norm: Norm, sets: Sequence[_Inputs], timed: str) -> Callable[[], list[tuple[Tensor, ...]]]:
    """What is timed: the backward of every set, whose forwards are done here. It returns the gradients, set by set."""
    graphed = timed == "graph"
    stream = torch.cuda.Stream() if graphed else None
    with torch.cuda.stream(stream):  # autograd runs a backward on its forward's stream, which is the one that is captured
        results = [norm(inputs.x, *inputs.parameters) for inputs in sets]

    def run() -> list[tuple[Tensor, ...]]:
        return [
            torch.autograd.grad(result, inputs.asked(), inputs.dy, retain_graph=True)
            for result, inputs in zip(results, sets, strict=True)
        ]

    return run if stream is None else _graph_of(run, stream)


def _graph_of(run: Callable[[], Any], stream: torch.cuda.Stream) -> Callable[[], Any]:
    """A CUDA graph of `run`: each call replays it, into the same tensors, and returns those."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # compiles, and fills caches
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = run()

    def replay() -> Any:
        graph.replay()
        return found

    return replay


def _bound_step(sets: Sequence[_Inputs], timed: str) -> Step:
    """Two tensors read and one written for each set, by torch's addition."""
    outs = [torch.empty_like(inputs.dy) for inputs in sets]

    def run() -> None:
        for inputs, out in zip(sets, outs, strict=True):
            torch.add(inputs.x.detach(), inputs.dy, out=out)

    if timed == "graph":
        return Step(run=_graph_of(run, torch.cuda.Stream()), omit=_UNSEEN_IN_A_GRAPH)
    return Step(run=run)


def _refuse_what_cannot_be(timed: str, device: str, inputs: _Inputs) -> None:
    if timed == "graph" and isinstance(inputs.x, FakeTensor):
        skip("a CUDA graph is measured, not predicted: set timed=called")
    if timed == "graph" and not device.startswith("cuda"):
        skip("a CUDA graph needs a GPU: set timed=called")


@suite(
    axes={
        "op": list(_OPS),
        "rows": [_SMALL[0]],
        "columns": [_SMALL[1]],
        "parameters": ["frozen", "trainable"],
        "timed": ["called"],
        "backwards": [8],
        "dtype": ["bfloat16"],
    },
    choices={"timed": ["called", "graph"], "dtype": ["bfloat16", "float16", "float32"]},
    implementations=[*_OWN, *_PEERS, "bound"],
    baseline="unpruned",
    compared="pruned",
    presets=_PRESETS,
    targets=["frostline.kernels"],
    target_device=target_device,
    bars=_bars(),
)
def norms(
    implementation: str,
    device: str,
    *,
    op: str,
    rows: int,
    columns: int,
    parameters: str,
    timed: str,
    backwards: int,
    dtype: str,
) -> Step:
    """`backwards` backwards of a norm of [rows, columns], or as many additions of two tensors of that shape."""
    sets = _make_inputs(device, op, (rows, columns), parameters == "trainable", getattr(torch, dtype), backwards)
    _refuse_what_cannot_be(timed, device, sets[0])
    if implementation == "bound":
        return _bound_step(sets, timed)
    asked = len(sets[0].asked())
    if implementation == "unpruned":
        for parameter in sets[0].parameters:  # which all sets share
            parameter.requires_grad_()
    run = _backwards(_norm_of(implementation, op, sets[0]), sets, timed)
    plain = _Inputs(sets[0].x, sets[0].dy, [p.detach().requires_grad_(parameters == "trainable") for p in sets[0].parameters])
    return Step(
        run=run,
        outputs=lambda: _named(run()[0][:asked]),
        reference=lambda: _exact(op, plain),
        yardstick=lambda: _named(_gradients(_torch(op), plain)),
        detail={"liger-kernel": version("liger-kernel")} if implementation == "liger" else {},
        omit=_UNSEEN_IN_A_GRAPH if timed == "graph" else (),
    )
