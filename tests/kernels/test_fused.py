"""The product with the tile's work in its epilogue, in Triton's interpreter, against the product and the tile op in turn."""

from __future__ import annotations

import pytest
import torch

from frostline.kernels import linear_logprob
from frostline.kernels.lm_head import fused
from frostline.kernels.lm_head.output_tiles import workspace_size
from frostline.kernels.lm_head.plan import override
from frostline.kernels.lm_head.tiles import INACTIVE
from frostline.kernels.lm_head.transform import Transform
from frostline.kernels.matmul import target_device

if torch.cuda.is_available():
    pytest.skip("compiled, not interpreted, where there is a GPU: see test_gpu", allow_module_level=True)

ROWS, HIDDEN, WIDTH, START = 150, 72, 600, 1000  # more than one output tile each way, none of them full
TRANSFORMS = {
    "plain": Transform.of(),
    "temperature": Transform.of(temperature=0.6),
    "softcap": Transform.of(temperature=0.9, softcap=3.0, logit_scale=0.5),
}


@pytest.fixture(params=[("plain", False), ("plain", True), ("temperature", False), ("softcap", True)], ids=str)
def given(request):
    """(bias, transform): the interpreter is slow, so not every pair of them."""
    name, biased = request.param
    return torch.randn(WIDTH).half() if biased else None, TRANSFORMS[name]


class Problem:
    """Operands in fp16 (the interpreter's bf16 products are wrong), statistics as earlier tiles left them."""

    def __init__(self, bias, transform, *, moment=False, best=False):
        self.hidden = torch.randn(ROWS, HIDDEN).half()
        self.weight = torch.randn(WIDTH, HIDDEN).mul_(HIDDEN**-0.5).half()
        self.targets = torch.randint(START - 300, START + WIDTH + 300, (ROWS,))  # in this slice, before it or after it
        self.targets[::7] = INACTIVE
        self.hidden[::7] = float("nan")
        self.bias, self.scalars = bias, (transform.inner, transform.outer, transform.capped)
        self.reference, self.total = torch.randn(ROWS) * 2, torch.rand(ROWS) * 50
        self.moment = torch.randn(ROWS) if moment else None
        self.best = torch.stack([torch.randn(ROWS) * 2, torch.zeros(ROWS)]) if best else None  # of a tile before this one
        self.rescale = torch.empty(ROWS)
        self.workspace = torch.full((workspace_size(ROWS, WIDTH, best=best),), float("nan"))

    def state(self):
        figures = self.reference, self.total, self.moment, self.best, self.rescale
        return [None if t is None else t.clone() for t in figures]

    @property
    def operands(self):
        return self.hidden, self.weight, self.bias, self.targets

    @property
    def counted(self):
        return self.targets != INACTIVE


def close(found, wanted, problem, rtol=2e-5, atol=2e-5):
    for ours, theirs in zip(found, wanted, strict=True):
        if ours is not None:
            torch.testing.assert_close(by_row(ours)[problem.counted], by_row(theirs)[problem.counted], rtol=rtol, atol=atol)


def by_row(figures):
    return figures if figures.shape[0] == ROWS else figures.t()


@pytest.mark.parametrize("moment, limit", [(False, 6.0), (True, 0.5)], ids=["references stay", "references move"])
def test_fold(given, moment, limit):
    problem, results = Problem(*given, moment=moment, best=moment), []
    if limit == 6.0:
        problem.reference += 9.0
    for way in (fused._InTurn, None):
        state, p = problem.state(), torch.full((ROWS, 640), float("nan")).half()[:, :WIDTH]
        call = fused._InTurn.fold_logits if way else interpreted_op("fold_logits")
        call(*problem.operands, p, *state, problem.workspace, START, limit, *problem.scalars)
        results.append((state, p))
    (wanted, p_wanted), (found, p_found) = results
    moved = wanted[4][problem.counted] != 1
    assert moved.any() == (limit == 0.5)
    close(found, wanted, problem)
    torch.testing.assert_close(p_found.float(), p_wanted.float(), rtol=2e-3, atol=1e-6)
    assert (p_found[~problem.counted] == 0).all()


@pytest.mark.parametrize("moment, keep", [(False, False), (True, True)])
def test_reduce(given, moment, keep):
    problem, results = Problem(*given, moment=moment, best=moment), []
    for call in (fused._InTurn.reduce_logits, interpreted_op("reduce_logits")):
        state, x = problem.state()[:4], torch.full((ROWS, 640), float("nan"))[:, :WIDTH] if keep else None
        call(*problem.operands, x, *state, problem.workspace, START, *problem.scalars)
        results.append((state, x))
    (wanted, x_wanted), (found, x_found) = results
    close(found, wanted, problem)
    close([x_found], [x_wanted], problem)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradient(given, with_entropy):
    problem, results = Problem(*given), []
    log_total, at_target, onto_p = 6 + torch.rand(ROWS), torch.rand(ROWS), torch.randn(ROWS)
    pair = (torch.randn(ROWS), torch.rand(ROWS) * 5) if with_entropy else (None, None)
    for call in (fused._InTurn.gradient_logits, interpreted_op("gradient_logits")):
        out = torch.full((ROWS, 640), float("nan")).half()[:, :WIDTH]
        call(*problem.operands, problem.reference, log_total, at_target, onto_p, *pair, out, START, *problem.scalars)
        results.append(out)
    torch.testing.assert_close(results[1].float(), results[0].float(), rtol=4e-3, atol=2e-6)
    assert (results[1][~problem.counted] == 0).all()


def interpreted_op(name):
    def call(*args):
        with fused.interpreted():
            getattr(torch.ops.frostline, name)(*args)

    return call


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("jump", [0.0, 300.0], ids=["ordinary", "a logit far above the reference"])
def test_whole_head(trained, jump):
    """From the public function: forward, backward, several row blocks and tiles, against float64."""
    rows, hidden, vocab = 200, 64, 700
    states = torch.randn(rows, hidden).half()
    weight = torch.randn(vocab, hidden).mul_(hidden**-0.5).half()
    states[5] *= 1 + jump
    targets, upstream = torch.randint(vocab, (rows,)), torch.randn(rows)
    ours = [states.clone().requires_grad_(), weight.clone().requires_grad_(trained)]
    doubles = [states.double().requires_grad_(), weight.double().requires_grad_(trained)]
    with target_device("cuda"), fused.interpreted(), override(row_block=128, vocab_tile=256):
        logp, entropy = linear_logprob(*ours, targets, return_entropy=True, entropy_in_loss=trained)
        (logp * upstream).sum().backward()
    log_p = (doubles[0] @ doubles[1].t()).log_softmax(-1)
    wanted = log_p.gather(1, targets[:, None]).squeeze(1)
    (wanted * upstream.double()).sum().backward()
    torch.testing.assert_close(logp.double(), wanted, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(entropy.double(), -(log_p.exp() * log_p).sum(1), rtol=1e-5, atol=1e-5)
    for found, exact in zip(ours, doubles, strict=True):
        assert (found.grad is None) == (exact.grad is None)
        if found.grad is not None:
            assert (found.grad.double() - exact.grad).norm() <= 1e-3 * exact.grad.norm()


def test_takes_what_the_hardware_can_read():
    def taken(hidden, weight, kind="cuda"):
        with target_device(kind):
            return fused.fusable(hidden, weight)

    hidden, weight = torch.zeros(4, 64).half(), torch.zeros(10, 64).half()
    assert taken(hidden, weight) and taken(hidden.bfloat16(), weight.bfloat16())
    assert not taken(hidden, weight, "cpu") and not taken(hidden.float(), weight.float())
    assert not taken(torch.zeros(4, 60).half(), torch.zeros(10, 60).half())  # rows of 120 bytes
    assert not taken(torch.zeros(4, 72).half()[:, 4:68], weight) and not taken(hidden[:0], weight)
