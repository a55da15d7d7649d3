"""Each tile against float64, in torch and (where there is no GPU) in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from frostline.kernels.lm_head import tiles_torch
from frostline.kernels.lm_head.tiles import INACTIVE
from frostline.kernels.lm_head.transform import Transform

VOCAB, SPLIT = 1000, 700  # no power of two, more than one tile, the last one narrower
TARGETS = torch.tensor([3, 699, 700, INACTIVE, 999, 1000])  # the last is out of range: its log-prob is NaN
COUNTED = TARGETS != INACTIVE
TRANSFORMS = {
    "plain": Transform.of(),
    "temperature": Transform.of(temperature=0.6),
    "softcap 1": Transform.of(softcap=1.0),
    "softcap 30": Transform.of(temperature=0.9, softcap=30.0, logit_scale=0.2),
}


@pytest.fixture(params=["torch", "triton"])
def tiles(request):
    if request.param == "torch":
        return tiles_torch
    if torch.cuda.is_available():
        pytest.skip("compiled, not interpreted, where there is a GPU: see test_gpu")
    from frostline.kernels.lm_head import tiles_triton

    return tiles_triton


@pytest.fixture(params=list(TRANSFORMS), ids=list(TRANSFORMS))
def transform(request):
    return TRANSFORMS[request.param]


@pytest.fixture(params=[False, True], ids=["no bias", "bias"])
def bias(request):
    return torch.randn(VOCAB) if request.param else None


def scalars(transform):
    return transform.inner, transform.outer, transform.capped


def exact(x, bias, transform):
    """(z, log_z, logp, entropy, slope) in float64."""
    raw = x.double() if bias is None else x.double() + bias.double()
    tanh = torch.tanh(transform.inner * raw)
    z = transform.outer * (tanh if transform.capped else raw)
    log_z = z.logsumexp(1)
    log_p = z - log_z[:, None]
    entropy = -torch.where(log_p.exp() > 0, log_p.exp() * log_p, 0).sum(1)
    padded = torch.cat([log_p, torch.full((len(x), 1), float("nan"))], 1)
    slope = transform.inner * transform.outer * (1 - tanh**2) if transform.capped else torch.full_like(z, transform.outer)
    return z, log_z, padded.gather(1, TARGETS.clamp(min=0)[:, None])[:, 0], entropy, slope


def columns():
    return [slice(0, SPLIT), slice(SPLIT, VOCAB)]


def part(bias, tile):
    return None if bias is None else bias[tile].contiguous()


def begun(x, bias, transform):
    """(target_logit, reference, total, moment) before the first tile."""
    z = exact(x, bias, transform)[0]
    padded = torch.cat([z, torch.full((len(x), 1), float("nan"))], 1)
    target = padded.gather(1, TARGETS.clamp(min=0)[:, None])[:, 0].float()
    return target, target.clamp(min=torch.finfo(torch.float32).min), torch.zeros(len(x)), torch.zeros(len(x))


def finished(target, reference, total, moment):
    """(log_z, logp, entropy) from the statistics of the other columns and the target's logit, in float64."""
    target, reference, total, moment = (t.double() for t in (target, reference, total, moment))
    ahead = target - reference
    everything = total + ahead.exp()
    entropy = everything.log() - (moment + torch.where(ahead.exp() > 0, ahead.exp() * ahead, 0)) / everything
    return reference + everything.log(), ahead - everything.log(), entropy


def reduced(tiles, x, bias, transform, best=None):
    target, reference, total, moment = begun(x, bias, transform)
    for tile in columns():
        tiles.reduce_tile(
            x[:, tile], part(bias, tile), TARGETS, reference, total, moment, best, tile.start, *scalars(transform)
        )  # fmt: skip
    return target, reference, total, moment


def no_best_yet(rows):
    return torch.stack([torch.full((rows,), -torch.inf), torch.zeros(rows)])


def check_best(best, z):
    torch.testing.assert_close(best[0, COUNTED].double(), z.amax(1)[COUNTED], rtol=1e-5, atol=1e-5)
    assert best[1, COUNTED].long().tolist() == z.float().argmax(1)[COUNTED].tolist()


def test_target_logits(tiles, transform, bias):
    hidden, weight = torch.randn(len(TARGETS), 70).half(), torch.randn(VOCAB, 70).half()
    out = torch.empty(len(TARGETS))
    tiles.target_logits(hidden, weight, bias, TARGETS, out, *scalars(transform))
    wanted = begun((hidden.double() @ weight.double().t()), bias, transform)[0]
    torch.testing.assert_close(out[COUNTED], wanted[COUNTED], rtol=1e-5, atol=1e-5, equal_nan=True)
    assert out[~COUNTED].tolist() == [0.0]


def test_reduce(tiles, transform, bias):
    x = torch.randn(len(TARGETS), VOCAB) * 5
    before = x.clone()
    z, log_z, logp, entropy, _ = exact(x, bias, transform)
    best = no_best_yet(len(x))
    found = finished(*reduced(tiles, x, bias, transform, best))
    assert torch.equal(x, before)
    if not (transform.capped and transform.outer <= 1):  # there many logits saturate at the cap in fp32
        check_best(best, z)
    counted = COUNTED & (TARGETS < VOCAB)
    for ours, theirs in zip(found, (log_z, logp, entropy), strict=True):
        torch.testing.assert_close(ours[counted], theirs[counted], rtol=1e-5, atol=2e-5)
        assert ours[TARGETS == VOCAB].isnan().all()


@pytest.mark.parametrize("dtype, limit", [(None, 0.5), (None, 40.0), (torch.bfloat16, 40.0), (torch.float16, 8.0)])
@pytest.mark.parametrize("with_moment", [False, True])
def test_fold(tiles, transform, bias, dtype, limit, with_moment):
    x = torch.randn(len(TARGETS), VOCAB) * 3
    x[:, SPLIT:] += 4  # the second tile exceeds the first, by more than the smaller limit
    z, log_z, logp, entropy, slope = exact(x, bias, transform)
    target, reference, total, moment = begun(x, bias, transform)
    best = no_best_yet(len(x)) if with_moment else None
    rescale, probabilities = torch.full((len(x),), float("nan")), torch.empty(len(x), 0, dtype=torch.float64)
    for tile in columns():
        scratch = x[:, tile].clone()
        p = None if dtype is None else torch.empty(scratch.shape, dtype=dtype)
        tiles.fold_tile(
            scratch, part(bias, tile), TARGETS, p, reference, total, moment if with_moment else None, best,
            rescale, tile.start, limit, *scalars(transform),
        )  # fmt: skip
        probabilities = torch.cat([probabilities * rescale.double()[:, None], (scratch if p is None else p).double()], 1)
    if best is not None and not (transform.capped and transform.outer <= 1):
        check_best(best, z)
    counted = COUNTED & (TARGETS < VOCAB)
    found = finished(target, reference, total, moment)
    for ours, theirs in list(zip(found, (log_z, logp, entropy), strict=True))[: 3 if with_moment else 2]:
        torch.testing.assert_close(ours[counted], theirs[counted], rtol=1e-5, atol=5e-5)
    everything = total.double() + (target - reference).double().exp()
    wanted = torch.exp(z - log_z[:, None]) * slope / transform.steepest
    wanted[counted] = wanted[counted].scatter(1, TARGETS[counted][:, None], 0.0)
    # The interpreter truncates to bf16 where a GPU rounds: a whole unit in the last place.
    tolerance = {None: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    torch.testing.assert_close((probabilities / everything[:, None])[counted], wanted[counted], rtol=tolerance, atol=1e-6)
    assert rescale[~COUNTED].tolist() == [1.0] and (probabilities[~COUNTED] == 0).all()


@pytest.mark.parametrize("beside", ["nothing", "entropy", "all", "all, weighted"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_gradient(tiles, transform, bias, dtype, beside):
    x = torch.randn(len(TARGETS), VOCAB) * 3
    z, log_z, _, entropy, slope = exact(x, bias, transform)
    at_target, onto_p, grad_entropy, onto_all = torch.randn(4, len(x))
    column_weight = torch.rand(VOCAB) if beside == "all, weighted" else None
    p = torch.exp(z - log_z[:, None])
    one_hot = torch.zeros(len(x), VOCAB + 1, dtype=torch.bool).scatter_(1, TARGETS.clamp(min=0)[:, None], True)[:, :VOCAB]
    wanted = torch.where(one_hot, at_target[:, None].double(), onto_p[:, None] * p)
    if beside == "entropy":
        wanted -= grad_entropy[:, None] * p * (p.log() + entropy[:, None])
    if beside.startswith("all"):
        wanted += onto_all[:, None] * (1 if column_weight is None else column_weight)
    wanted = wanted * slope
    wanted[~COUNTED] = 0
    x[~COUNTED] = float("nan")
    pair = (grad_entropy, entropy.float()) if beside == "entropy" else (None, None)
    reference = z.amax(1).float()
    for tile in columns():
        scratch = x[:, tile].clone()
        out = None if dtype is None else torch.empty(scratch.shape, dtype=dtype)
        every = onto_all if beside.startswith("all") else None, part(column_weight, tile)
        tiles.gradient_tile(
            scratch, part(bias, tile), TARGETS, reference, (log_z - reference.double()).float(), at_target, onto_p, *pair,
            *every, out, tile.start, *scalars(transform),
        )  # fmt: skip
        found = (scratch if out is None else out).double()
        torch.testing.assert_close(found, wanted[:, tile], rtol=1e-4 if dtype is None else 2**-7, atol=1e-5)
        assert torch.equal(found[~COUNTED], torch.zeros_like(found[~COUNTED]))


@pytest.mark.parametrize("weighted", [False, True])
def test_spread(tiles, transform, bias, weighted):
    x = torch.randn(len(TARGETS), VOCAB) * 3
    z = exact(x, bias, transform)[0]
    x[~COUNTED] = float("nan")
    target, column_weight = begun(x, bias, transform)[0], torch.rand(VOCAB) if weighted else None
    spread = torch.zeros(len(x))
    for tile in columns():
        tiles.spread_tile(
            x[:, tile], part(bias, tile), TARGETS, target, part(column_weight, tile), spread, tile.start, *scalars(transform)
        )
    wanted = ((z - target.double()[:, None]) * (torch.ones(VOCAB) if column_weight is None else column_weight)).sum(1)
    counted = COUNTED & (TARGETS < VOCAB)
    torch.testing.assert_close(spread[counted].double(), wanted[counted], rtol=1e-5, atol=1e-2)
    assert (spread[~COUNTED] == 0).all()


def test_the_first_of_equal_columns_is_the_best(tiles):
    x = torch.randn(len(TARGETS), VOCAB).clamp(max=1.0)
    x[:, [5, 600, 650, 720]] = 2.0
    x[1, 5], x[2, [5, 600, 650]] = 0.0, 0.0
    x[4] = -torch.inf
    best = no_best_yet(len(x))
    reduced(tiles, x, None, Transform(), best)
    assert best[1, COUNTED].tolist() == [5, 600, 720, 0, 5]


def test_rescale(tiles):
    values, factor = torch.randn(4, 70), torch.tensor([1.0, 0.5, 1.0, 0.0])
    wanted = values * factor[:, None]
    tiles.rescale_rows(values, factor)
    assert torch.equal(values, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_finish(tiles, dtype):
    rows, width = len(TARGETS), 70
    mean, weight = torch.randn(rows, width), torch.randn(VOCAB, width).to(dtype)
    onto_target, onto_mean = torch.randn(rows), torch.rand(rows)
    mean[~COUNTED], onto_mean[~COUNTED] = float("nan"), float("inf")
    wanted = onto_target[:, None] * weight[TARGETS.clamp(0, VOCAB - 1)].float() - onto_mean[:, None] * mean
    wanted[~COUNTED] = 0
    out = torch.full((rows, width), float("nan"), dtype=dtype)
    tiles.finish_rows(mean, weight, TARGETS, onto_target, onto_mean, out)
    torch.testing.assert_close(out.float(), wanted, rtol=2**-7 if dtype == torch.bfloat16 else 1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scaled(tiles, dtype):
    values, factor = torch.randn(4, 70).to(dtype), torch.tensor([1.0, 0.3, -2.0, 0.0])
    for factors in (factor, torch.tensor(0.3).expand(4)):
        out = torch.empty_like(values)
        tiles.scaled_rows(values, factors, out)
        torch.testing.assert_close(out, (values.float() * factors[:, None]).to(dtype), rtol=2**-7, atol=0)


@pytest.mark.parametrize("value", [-1e4, 1e4, -3e38])
def test_far_away_logits_keep_every_digit(tiles, value):
    """All logits strongly negative: log-probs are those of a uniform row, never NaN or above 0."""
    _, logp, entropy = finished(*reduced(tiles, torch.full((len(TARGETS), VOCAB), value), None, Transform()))
    counted, uniform = COUNTED & (TARGETS < VOCAB), torch.tensor(float(VOCAB)).log().double()
    torch.testing.assert_close(logp[counted], -uniform.expand(counted.sum()), rtol=1e-6, atol=0)
    torch.testing.assert_close(entropy[counted], uniform.expand(counted.sum()), rtol=1e-6, atol=0)


def test_forbidden_tokens_have_no_probability(tiles):
    """A bias of -inf forbids a token: a first tile of -inf alone must not poison the row, nor a forbidden target."""
    bias = torch.zeros(VOCAB)
    bias[:SPLIT] = -float("inf")
    x = torch.randn(len(TARGETS), VOCAB)
    log_z, logp, entropy = finished(*reduced(tiles, x, bias, Transform()))
    counted = COUNTED & (TARGETS < VOCAB)
    torch.testing.assert_close(log_z[counted], x[counted, SPLIT:].double().logsumexp(1), rtol=1e-5, atol=1e-5)
    assert (logp[counted & (TARGETS < SPLIT)] == -torch.inf).all() and torch.isfinite(entropy[counted]).all()


def test_a_tile_too_wide_to_fold_is_refused():
    if torch.cuda.is_available():
        pytest.skip("interpreter only")
    from frostline.kernels.lm_head import tiles_triton

    state = [torch.empty(1) for _ in range(2)]
    with pytest.raises(ValueError, match="at most 32768"):
        tiles_triton.fold_tile(
            torch.empty(1, 32769), None, TARGETS[:1], None, *state, None, None, state[0], 0, 40.0, 1.0, 1.0, False
        )
