"""The GPU's path, in Triton's interpreter, on what is hard on it: layouts that a tensor map must not see, values that are not
numbers, forbidden tokens, and the smallest sizes. Against float64."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import linear

from frostline.kernels import linear_logprob
from frostline.kernels.lm_head import autograd, engine, fused, tiles
from frostline.kernels.lm_head import rows as chosen_rows
from frostline.kernels.lm_head.head import Onto, Wants
from frostline.kernels.lm_head.plan import Needs, Strategy, make_plan, override
from frostline.kernels.lm_head.rows import Rows
from frostline.kernels.lm_head.transform import Transform
from frostline.kernels.matmul import target_device

if torch.cuda.is_available():
    pytest.skip("compiled, not interpreted, where there is a GPU: see test_gpu", allow_module_level=True)

BLOCKS = ["blocks", "kept blocks"]
WAYS = ["stream", "recompute", "blocks"]


@contextmanager
def gpu(*, tiles_too=False, **sizes):
    """Every branch and fused kernel of a GPU, and its other kernels where `tiles_too`; nothing is read from the device."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (chosen_rows, autograd):
            patched.setattr(module, "is_readable", lambda _: False)
        also = tiles.interpreted() if tiles_too else nullcontext()
        with target_device("cuda"), fused.interpreted(), override(**sizes), also:
            yield


class Head:
    """Operands, and what float64 makes of them."""

    def __init__(self, rows, width, vocab, *, bias=None):
        self.hidden = torch.randn(rows, width).half()
        self.weight = torch.randn(vocab, width).mul_(width**-0.5).half()
        self.targets, self.bias = torch.randint(vocab, (rows,)), bias
        self.upstream = torch.randn(rows)

    def exact(self):
        """(logp, d hidden, d weight)."""
        hidden, weight = self.hidden.double().requires_grad_(), self.weight.double().requires_grad_()
        logits = linear(hidden, weight, None if self.bias is None else self.bias.double())
        logp = logits.log_softmax(-1).gather(1, self.targets[:, None]).squeeze(1)
        return logp.detach(), *torch.autograd.grad(logp, (hidden, weight), self.upstream.double())

    def leaves(self, way):
        return self.hidden.detach().requires_grad_(), self.weight.detach().requires_grad_(way != "stream")

    def run(self, way, *, tiles_too=False, **sizes):
        """The same from the fused kernels."""
        with gpu(tiles_too=tiles_too, **sizes):
            if way in BLOCKS:
                return self._in_blocks(keep=way == "kept blocks")
            hidden, weight = self.leaves(way)
            logp = linear_logprob(hidden, weight, self.targets, self.bias)
            logp.backward(self.upstream)
            return logp.detach(), hidden.grad, weight.grad

    def _in_blocks(self, *, keep):
        """By the plan of a bf16 head: in fp16, which the interpreter multiplies rightly, no loss is formed in the forward."""
        targets = Rows(len(self.targets)).targets(self.targets, len(self.weight))
        head = autograd.make_head(self.hidden, self.weight, self.bias, targets, Transform.of(), False)
        needs = Needs(hidden=True, weight=True)
        problem = autograd.problem_of(head, needs, None, Wants(), loss_known=True)
        plan = replace(
            make_plan(replace(problem, dtype=torch.bfloat16)), problem=problem, tile_dtype=torch.float16, keep_tiles=keep
        )
        assert plan.strategy is Strategy.BLOCKS and plan.fused
        found, gradients, kept = engine.blocks(head, plan, needs, lambda _found, rows: Onto(self.upstream[rows]))
        assert (kept is not None) == keep
        d_weight = engine.weight_gradient(head, plan, kept, torch.tensor(1.0)) if keep else gradients.weight
        return found.logp, gradients.hidden, d_weight

    def check(self, way, rows=slice(None), *, parameters=True, tiles_too=False):
        """Compare, on some rows, in tiles of 128 x 256."""
        found, wanted = self.run(way, tiles_too=tiles_too, row_block=128, vocab_tile=256), self.exact()
        torch.testing.assert_close(found[0][rows].double(), wanted[0][rows], rtol=1e-5, atol=1e-5)
        assert found[1].shape == wanted[1].shape
        self._close(found[1][rows], wanted[1][rows])
        assert (found[2] is None) == (way == "stream")
        if found[2] is not None and parameters:
            self._close(found[2], wanted[2])
        return found

    @staticmethod
    def _close(found, wanted):
        assert (found.double() - wanted).abs().max() <= 2e-3 * wanted.abs().max()


@pytest.mark.parametrize("way", [*WAYS, "kept blocks"])
@pytest.mark.parametrize("rows, width, vocab", [(1, 8, 2), (1, 8, 257), (7, 72, 3), (129, 8, 2), (3, 16, 513)])
def test_smallest_sizes(way, rows, width, vocab):
    """With a last slice, and a last row block, of one."""
    Head(rows, width, vocab).check(way, tiles_too=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_no_number_spoils_itself_alone(way, value):
    head = Head(140, 16, 300)
    bad = torch.zeros(140, dtype=torch.bool)
    bad[[3, 130]] = True
    head.hidden[3, 5], head.hidden[130] = value, value
    found = head.check(way, ~bad, parameters=False)
    assert found[0][bad].isnan().all() and found[1][bad].isnan().any(1).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", [-5, -1, 300, 10**9])
def test_a_target_out_of_range_is_nan_and_reads_nothing(way, target):
    head = Head(140, 16, 300)
    others = torch.arange(140) != 9
    with pytest.MonkeyPatch.context() as patched:
        wanted = head.exact()
        patched.setattr(head, "exact", lambda: wanted)
        head.targets[9] = target
        found = head.check(way, others, parameters=False)
    assert found[0][9].isnan() and found[1][9].isnan().any()


@pytest.mark.parametrize("way", WAYS)
def test_forbidden_tokens(way):
    """By a bias of -inf: a whole slice of them, and all but the target."""
    bias = torch.zeros(600).half()
    bias[:256] = -torch.inf  # the first slice has no token at all
    head = Head(20, 16, 600, bias=bias)
    head.targets = 256 + head.targets % 344
    head.check(way)
    only = torch.full((600,), -torch.inf).half()
    only[300] = 0.0
    head.bias, head.targets = only, torch.full((20,), 300)
    logp, d_hidden, d_weight = head.run(way, row_block=128, vocab_tile=256)
    assert (logp == 0).all() and (d_hidden == 0).all() and (d_weight is None or (d_weight == 0).all())


@pytest.mark.parametrize("way", ["stream", "recompute"])
def test_a_forbidden_target(way):
    """Its log-prob is -inf, and the rest of its row as in plain torch."""
    bias = torch.zeros(600).half()
    bias[7], bias[400] = -torch.inf, -torch.inf
    head = Head(20, 16, 600, bias=bias)
    head.targets %= 7
    head.targets[:2] = torch.tensor([7, 400])
    found = head.check(way)
    assert (found[0][:2] == -torch.inf).all() and found[0][2:].isfinite().all()


def padded(tensor, columns=24):
    """The same values in rows that lie further apart."""
    wide = torch.full((tensor.shape[0], tensor.shape[1] + columns), float("nan"), dtype=tensor.dtype)
    wide[:, : tensor.shape[1]] = tensor
    return wide[:, : tensor.shape[1]]


LAYOUTS = {
    "weight with padded rows": lambda head: setattr(head, "weight", padded(head.weight)),
    "hidden with padded rows": lambda head: setattr(head, "hidden", padded(head.hidden)),
    "transposed weight": lambda head: setattr(head, "weight", head.weight.t().contiguous().t()),
    "one hidden state for all rows": lambda head: setattr(head, "hidden", head.hidden[:1].expand(len(head.hidden), -1)),
    "one row of an expanded tensor": lambda head: (
        head.__init__(1, 16, 300) or setattr(head, "hidden", head.hidden.expand(5, -1)[:1])
    ),
    "one target for all rows": lambda head: setattr(head, "targets", head.targets[:1].expand(len(head.targets))),
    "every other row": lambda head: setattr(head, "hidden", head.hidden.repeat_interleave(2, 0)[::2]),
    "one upstream for all rows": lambda head: setattr(head, "upstream", torch.tensor(0.7).expand(len(head.targets))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(way, layout):
    head = Head(140, 16, 300)
    LAYOUTS[layout](head)
    head.check(way)


def test_no_tensor_map_has_a_stride_of_zero():
    """A single row is contiguous to torch whatever its stride."""
    row = torch.randn(8).half().as_strided((1, 8), (0, 1))
    assert row.is_contiguous() and row.stride(0) == 0
    made = autograd.make_head(row, row, None, torch.zeros(1).long(), Transform.of(), False)
    assert made.hidden.stride() == made.weight.stride() == (8, 1) and torch.equal(made.hidden, row)


@pytest.mark.parametrize("way", ["stream", "recompute"])
def test_calls_do_not_share_anything(way):
    """A backward twice, and another call of other sizes between forward and backward."""
    head, other = Head(140, 16, 300), Head(70, 24, 520)
    hidden, weight = head.leaves(way)
    leaves = [leaf for leaf in (hidden, weight) if leaf.requires_grad]
    with gpu(row_block=128, vocab_tile=256):
        logp = linear_logprob(hidden, weight, head.targets)
        other.run(way)
        first = torch.autograd.grad(logp, leaves, head.upstream, retain_graph=True)
        other.run(way)
        second = torch.autograd.grad(logp, leaves, head.upstream, retain_graph=True)
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(first, second, strict=True))
