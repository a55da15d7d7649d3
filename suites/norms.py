"""What does freezing a norm's parameters save in its backward? Backwards alone, of RMS norm, layer norm and fused-add RMS norm.

`unpruned` computes all gradients of the package's own norm whatever is frozen, `pruned` only what is asked for; `torch` is
torch's own norm, `torch_compile` the same compiled, `liger` Liger-Kernel's. `bound` adds tensors of the shape: it moves the
bytes that the backward of a frozen norm cannot do without, and is no norm.

On a GPU one backward has three times, each a metric of its own: `kernel_time`, of the kernels alone; `cold_step_time`, between
events, as most tables of norms have it; `host_time` (of the smallest shape), what the host takes to call it, the longest there.
Tensors that runs take turns on exceed the L2 cache for the first, and it is overwritten for the second.

The table of frozen shapes has both columns of published tables: all gradients (`unpruned`) and frozen (`pruned`). How others
do with trained parameters is compared where the bars are, or at every shape by the preset `full`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch

from frostline.harness import Bar, Preset, Share, Step, suite
from frostline.harness.declare import Value
from frostline.kernels.matmul import target_device
from frostline.kernels.norm.tiles import TRAFFIC
from frostline.suites import norm_backward
from frostline.suites.norm_backward.problem import FUSED_ADD, OPS, Backward, Inputs, Problem, make_inputs, named
from frostline.suites.norm_backward.sides import bound_of, norm_of, torch_norm

_OWN = ("unpruned", "pruned", "torch")
_PEERS = ("torch_compile", "liger")
_PLAIN = [op for op in OPS if op != FUSED_ADD]
_SMALL = (2048, 4096)
# Rows and columns of at least 2^25 elements: from there on a norm is bound by bandwidth alone.
_LARGE = ((4096, 8192), (8192, 4096), (8192, 8192))
# The shapes that frozen norms were published with, and many short rows.
_SHAPES = (_SMALL, (4096, 4096), *_LARGE, (65536, 256))
_PUBLISHED: Mapping[str, Value] = {"dtype": "bfloat16"}  # what the bars are for


def _parts(parameters: str, shapes: Sequence[tuple[int, int]], ops: Sequence[str]) -> list[Mapping[str, Sequence[Value]]]:
    return [{"op": list(ops), "rows": [rows], "columns": [columns], "parameters": [parameters]} for rows, columns in shapes]


_PRESETS = {
    # About five minutes on an H200 with --isolation fork, which `make bench-norms` asks for.
    "paper": Preset(
        rounds=3,
        shares={
            "liger": Share(rounds=2),
            "torch_compile": Share(rounds=2, axes={"op": _PLAIN, "rows": [_SMALL[0]], "parameters": ["frozen"]}),
        },
        parts=[
            *_parts("frozen", _SHAPES, _PLAIN),
            *_parts("trainable", _LARGE, _PLAIN),
            *_parts("frozen", [_LARGE[1]], [FUSED_ADD]),
        ],
    ),
    # About a quarter of an hour: every side at every shape, frozen and trained.
    "full": Preset(
        rounds=3,
        parts=[part for parameters in ("frozen", "trainable") for part in _parts(parameters, _SHAPES, OPS)],
    ),
    "small": Preset(
        {"rows": [512], "columns": [1024], "dtype": ["float32"], "parameters": ["frozen", "trainable"]},
        rounds=6,
        implementations=(*_OWN, "bound"),
    ),
}


def _bars() -> list[Bar]:
    bars = []
    for rows, columns in _LARGE:
        for parameters, most in (("frozen", 1.10), ("trainable", 1.30)):
            place: dict[str, Value] = {**_PUBLISHED, "rows": rows, "columns": columns, "parameters": parameters}
            says = f"({rows:,}, {columns:,}), {parameters}: kernel time over the frozen bound"
            bars.append(Bar(says, "pruned", "kernel_time", most, where=place, against="bound"))
    for other in ("torch", "liger", "torch_compile"):
        bars.append(Bar(f"kernel time over that of {other}", "pruned", "kernel_time", 1.0, where=_PUBLISHED, against=other))
    place = {**_PUBLISHED, "rows": _SMALL[0], "columns": _SMALL[1]}
    says = f"({_SMALL[0]:,}, {_SMALL[1]:,}): host time"
    return [
        *bars,
        Bar(f"{says} over torch's", "pruned", "host_time", 1.8, where=place, against="torch"),
        Bar(f"{says} of Liger-Kernel over it", "liger", "host_time", at_least=2.5, where=place, against="pruned"),
    ]


def _step(run: Callable[[], Any], alike: Callable[[], Callable[[], Any]], problem: Problem, **more: Any) -> Step:
    return Step(run=run, alike=alike, times=_times(problem), **more)


def _times(problem: Problem) -> Sequence[str]:
    """The host's time does not depend on the shape: it is read where it is most of what a backward takes."""
    if not problem.device.startswith("cuda"):
        return ("step_time",)
    small = problem.rows * problem.columns <= _SMALL[0] * _SMALL[1]
    return ("kernel_time", "cold_step_time", *(("host_time",) if small else ()))


@suite(
    axes={
        "op": list(OPS),
        "rows": [_SMALL[0]],
        "columns": [_SMALL[1]],
        "parameters": ["frozen", "trainable"],
        "dtype": ["bfloat16"],
    },
    choices={"dtype": ["bfloat16", "float16", "float32"]},
    implementations=[*_OWN, *_PEERS, "bound"],
    baseline="unpruned",
    compared="pruned",
    presets=_PRESETS,
    targets=["frostline.kernels"],
    sources=[norm_backward],
    target_device=target_device,
    traffic=lambda: TRAFFIC,
    bars=_bars(),
)
def norms(implementation: str, device: str, *, op: str, rows: int, columns: int, parameters: str, dtype: str) -> Step:
    """One backward of a norm of [rows, columns], or an addition of as many tensors of that shape as it reads."""
    problem = Problem(op, rows, columns, getattr(torch, dtype), parameters == "trainable", device)
    inputs = make_inputs(problem)
    if implementation == "bound":
        return _step(bound_of(inputs), lambda: bound_of(make_inputs(problem)), problem)
    norm = norm_of(implementation, problem)

    def backward(inputs: Inputs) -> Backward:
        if implementation == "unpruned":
            for parameter in inputs.parameters:
                parameter.requires_grad_()
        return Backward(norm, inputs)

    plain = Inputs(inputs.leaves, [one.detach().requires_grad_(problem.trained) for one in inputs.parameters], inputs.upstream)
    run = backward(inputs)
    if implementation == "torch_compile":  # compiled at the first call: a process that checks outputs does without
        return _step(run, lambda: backward(make_inputs(problem)), problem, omit=("flops", "operators"))
    run.prepare()
    return _step(
        run,
        lambda: backward(make_inputs(problem)),
        problem,
        outputs=lambda: named(problem, run()[: len(plain.asked())]),
        reference=lambda: named(problem, Backward(torch_norm(op), plain.doubles())()),
        yardstick=lambda: named(problem, Backward(torch_norm(op), plain)()),
        detail={"liger-kernel": version("liger-kernel")} if implementation == "liger" else {},
    )
