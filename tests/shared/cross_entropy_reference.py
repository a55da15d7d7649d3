"""Cross entropy of a head as a formula, and how far off something is: for tests with a GPU and without."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product

import torch
from torch import Tensor
from torch.nn.functional import linear

from frostline.kernels import CrossEntropyOutput, linear_cross_entropy

RETURNS = ("return_z_loss", "return_token_accuracy", "return_predicted_tokens")
EVERYTHING = dict.fromkeys(RETURNS, True)
# What the eager form may be right about by luck: a loss is one number, and fp64 has no yardstick but itself.
LUCK = {torch.float64: 1e-11, torch.float32: 2e-6, torch.float16: 2e-5, torch.bfloat16: 2e-5}


def eager(
    hidden,
    weight,
    targets,
    bias=None,
    *,
    ce_weight=None,
    ignore_index=-100,
    lse_square_scale=0.0,
    label_smoothing=0.0,
    reduction="mean",
    softcap=None,
    use_token_scaling=False,
    logit_scale=1.0,
    dtype=torch.float64,
):
    """Everything that can be asked for, as people write it: logits in the dtype of the inputs, the rest in `dtype`."""
    flat = targets.reshape(-1)
    counts = flat != ignore_index
    chosen = flat[counts].long()
    z = transformed(linear(hidden.reshape(-1, hidden.shape[-1])[counts], weight, bias).to(dtype), softcap, logit_scale)
    lse, picked = z.logsumexp(-1), z.gather(-1, chosen[:, None])[:, 0]
    weights = torch.ones(len(weight), dtype=dtype, device=z.device) if ce_weight is None else ce_weight.to(dtype)
    own = weights[chosen]
    loss = (1 - label_smoothing) * own * (lse - picked)
    if label_smoothing:  # 0 times the infinite loss of a token that is forbidden is not 0
        loss = loss + label_smoothing / len(weight) * (weights * (lse[:, None] - z)).sum(-1)
    z_loss = lse_square_scale * lse.square()
    if reduction == "mean":
        loss, z_loss = loss / own.sum(), z_loss / max(len(chosen), 1)
    loss = loss + z_loss
    if use_token_scaling:
        scale = (picked - lse).exp().detach()
        loss, z_loss = loss * scale, z_loss * scale
    predicted = z.argmax(-1) if len(chosen) else chosen
    right = (predicted == chosen).to(dtype)

    def shaped(values, fill=0):
        return torch.full_like(flat, fill, dtype=values.dtype).masked_scatter(counts, values).reshape(targets.shape)

    return CrossEntropyOutput(
        loss=shaped(loss) if reduction == "none" else loss.sum(),
        z_loss=(shaped(z_loss) if reduction == "none" else z_loss.sum()).detach(),
        token_accuracy=shaped(right) if reduction == "none" else right.sum() / max(len(chosen), 1),
        predicted_tokens=shaped(predicted, -1),
    )


def transformed(x, softcap=None, logit_scale=1.0):
    """The logits of products `x`."""
    z = x * logit_scale
    return z if softcap is None else softcap * torch.tanh(z / softcap)


@dataclass(frozen=True)
class Outcome:
    """What a call returned, and the gradients of hidden, weight and bias."""

    output: CrossEntropyOutput
    gradients: tuple[Tensor | None, ...]

    def numbers(self) -> dict[str, Tensor]:
        """All that is compared by its error."""
        named = {"loss": self.output.loss, "z_loss": self.output.z_loss}
        named |= dict(zip(("d_hidden", "d_weight", "d_bias"), self.gradients, strict=True))
        return {name: value.detach() for name, value in named.items() if value is not None}


class Problem:
    """Inputs of a call, and what float64 and eager code in the same dtype make of them.

    Args:
        shape: of the labels. width, vocab: H and V.
        needs: which of hidden, weight and bias are trained.
        ignored: the share of labels that are `ignore_index`. right: of the others, the share that the head predicts.
        options: of the call; `ce_weight=True` stands for random weights of the classes.
    """

    def __init__(
        self,
        shape=(3, 6),
        width=12,
        vocab=300,
        dtype=torch.float32,
        *,
        needs=(True, True, True),
        bias=True,
        ignored=0.0,
        right=0.4,
        device="cpu",
        **options,
    ):
        self.hidden = torch.randn(*shape, width, device=device).to(dtype)
        self.weight = torch.randn(vocab, width, device=device).mul_(width**-0.5 * 2).to(dtype)
        self.bias = torch.randn(vocab, device=device).to(dtype) if bias else None
        self.targets = torch.randint(vocab, shape, device=device)
        if options.get("ce_weight") is True:
            options["ce_weight"] = torch.rand(vocab, device=device) + 0.1
        self.needs, self.options = needs, options
        if right:
            chosen = torch.rand(shape, device=device) < right
            self.targets = torch.where(chosen, self.logits(self.hidden).argmax(-1), self.targets)
        self.targets[torch.rand(shape, device=device) < ignored] = self.ignore_index
        self.upstream = torch.randn(shape, device=device) if options.get("reduction") == "none" else torch.tensor(0.7)
        self.upstream = self.upstream.to(device)

    def logits(self, hidden):
        """[..., V] float64."""
        bias = None if self.bias is None else self.bias.double()
        given = {name: self.options[name] for name in ("softcap", "logit_scale") if name in self.options}
        return transformed(linear(hidden.double(), self.weight.double(), bias), **given)

    @property
    def ignore_index(self):
        return self.options.get("ignore_index", -100)

    @property
    def counted(self):
        return self.targets != self.ignore_index

    def leaves(self, dtype=None):
        """(hidden, weight, bias), fresh, with the gradients that are asked for."""
        given = (self.hidden, self.weight, self.bias)
        return tuple(
            None if t is None else t.detach().to(dtype or t.dtype, copy=True).requires_grad_(need)
            for t, need in zip(given, self.needs, strict=True)
        )

    def outcome(self, function, dtype=None, **more):
        """`function` of the inputs, as they are or in `dtype`, and a backward through its loss where anything is trained."""
        hidden, weight, bias = leaves = self.leaves(dtype)
        found = function(hidden, weight, self.targets, bias, **self.options, **more)
        if any(leaf is not None and leaf.requires_grad for leaf in leaves):
            found.loss.backward(self.upstream.to(found.loss.dtype))
        return Outcome(found, tuple(None if leaf is None else leaf.grad for leaf in leaves))

    def ours(self, **more):
        return self.outcome(linear_cross_entropy, **EVERYTHING, **more)

    def exact(self):
        return self.outcome(eager, torch.float64)

    def plain(self):
        """In the dtype of the inputs, as models do it: logits rounded to it, the loss in fp32 at least."""
        return self.outcome(partial(eager, dtype=torch.promote_types(self.hidden.dtype, torch.float32)))

    def check(self, found: Outcome | None = None, *, times=1.5, luck=None):
        """Every number as close to float64 as eager code's in the same dtype; the rest exactly as it should be."""
        found, exact, plain = found or self.ours(), self.exact(), self.plain()
        wide = torch.promote_types(self.hidden.dtype, torch.float32)
        assert found.output.loss.dtype == found.output.z_loss.dtype == wide
        wanted, yardstick, ours = exact.numbers(), plain.numbers(), found.numbers()
        assert ours.keys() == wanted.keys()
        luck = LUCK[self.hidden.dtype] if luck is None else luck
        for name, right in wanted.items():
            assert ours[name].shape == right.shape, name
            allowed = times * (yardstick[name] - right).norm() + luck * right.norm()
            error = (ours[name] - right).norm()
            assert error <= allowed, f"{name} is off by {float(error):.3g}, allowed {float(allowed):.3g}"
        for gradient, leaf in zip(found.gradients, (self.hidden, self.weight, self.bias), strict=True):
            assert gradient is None or gradient.dtype == leaf.dtype
        self.check_predictions(found.output)
        return found

    def check_predictions(self, output: CrossEntropyOutput):
        """Each is a largest logit, as far as the precision of the logits tells them apart; the accuracy is theirs."""
        predicted, counted = output.predicted_tokens, self.counted
        assert predicted.dtype == torch.int64 and predicted.shape == self.targets.shape
        assert (predicted[~counted] == -1).all()
        z = self.logits(self.hidden[counted])
        largest, chosen = z.amax(-1), z.gather(-1, predicted[counted][:, None])[:, 0]
        assert (largest - chosen <= 1e-6 * z.abs().amax(-1)).all()
        right = (predicted == self.targets) & counted
        each = self.options.get("reduction") == "none"
        wanted = right if each else right.sum() / counted.sum().clamp(min=1)
        torch.testing.assert_close(output.token_accuracy.double(), wanted.double(), rtol=1e-6, atol=0)


def covering(factors: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Points of the factors' product in which every two values of any two factors meet: always the same few.

    Greedy: of a number of random points, the one that brings most new pairs together.
    """
    names, draw = list(factors), random.Random(0)
    pairs = {
        ((a, i), (b, j)) for a, b in combinations(names, 2) for i, j in product(range(len(factors[a])), range(len(factors[b])))
    }
    points = []
    while pairs:
        first = min(pairs)
        candidates = [dict(first) | _rest(factors, dict(first), draw) for _ in range(40)]
        best = max(candidates, key=lambda point: len(_met(point, names) & pairs))
        pairs -= _met(best, names)
        points.append({name: factors[name][best[name]] for name in names})
    return points


def _rest(factors, chosen, draw):
    return {name: draw.randrange(len(values)) for name, values in factors.items() if name not in chosen}


def _met(point, names):
    return set(combinations([(name, point[name]) for name in names], 2))
