"""`FusedLinearGRPOLoss` against an eager float64 loss written here from the papers."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from frostline.kernels import FusedLinearGRPOLoss
from frostline.kernels.lm_head.plan import Strategy, override
from frostline.kernels.lm_head.tiles import interpreted
from frostline.kernels.matmul import target_device

BATCH, LENGTH, HIDDEN, VOCAB, LIMIT = 3, 6, 12, 300, 9
LOSS_TYPES, LEVELS = ["grpo", "bnpo", "dr_grpo", "dapo"], ["token", "sequence"]
MANY_TILES = {"row_block": LENGTH, "vocab_tile": 128}  # more than one tile, and 300 is no multiple


@dataclass
class Case:
    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    mask: Tensor
    advantages: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None
    correction: Tensor | None = None

    @property
    def gradients(self):
        return [None if leaf is None else leaf.grad for leaf in (self.hidden, self.weight, self.bias)]

    def double(self):
        def copy(tensor):
            if tensor is None or not tensor.is_floating_point():
                return tensor
            return tensor.detach().double().requires_grad_(tensor.requires_grad)

        return Case(*(copy(value) for value in vars(self).values()))

    def run(self, module, **more):
        return module(
            self.hidden, self.weight, self.targets, self.mask, self.advantages, self.bias,
            ref_per_token_logps=self.reference, old_per_token_logps=self.old, vllm_is_ratio=self.correction, **more,
        )  # fmt: skip


def make_case(dtype=torch.float32, trained=False, bias=False, old=True, masked=True):
    hidden = torch.randn(BATCH, LENGTH, HIDDEN, dtype=dtype).requires_grad_()
    weight = (torch.randn(VOCAB, HIDDEN) / 2).to(dtype).requires_grad_(trained)
    offset = torch.randn(VOCAB, dtype=dtype).requires_grad_(trained) if bias else None
    targets = torch.randint(VOCAB, (BATCH, LENGTH))
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    if masked:
        mask[0, 4:] = 0
        mask[2] = 0
    with torch.no_grad():
        logp = linear(hidden, weight, offset).float().log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    return Case(
        hidden, weight, offset, targets, mask, torch.randn(BATCH),
        logp + 0.3 * torch.randn(BATCH, LENGTH) if old else None, logp + 0.5 * torch.randn(BATCH, LENGTH),
    )  # fmt: skip


def eager(
    case, *, loss_type, level="token", beta=0.1, low=0.2, high=0.2, temperature=1.0, delta=None, corrected=False, items=None
):
    """Loss and metrics in float64, in the order in which the papers say it."""
    logits = linear(case.hidden, case.weight, case.bias) / temperature
    logp = logits.log_softmax(-1).gather(-1, case.targets[..., None])[..., 0]
    mask = case.mask.double()
    old = logp.detach() if case.old is None else case.old
    log_ratio = logp - old
    if level == "sequence":
        log_ratio = ((log_ratio * mask).sum(1) / mask.sum(1).clamp(min=1))[:, None].expand_as(logp)
    ratio = log_ratio.exp()
    advantages = case.advantages if case.advantages.ndim == 2 else case.advantages[:, None].expand_as(logp)
    capped = ratio if delta is None else ratio.clamp(max=delta)
    loss = -torch.min(capped * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if case.correction is not None:
        loss = loss * case.correction
    metrics = []
    if beta:
        reference = logp.detach() if case.reference is None else case.reference
        kl = (reference - logp).exp() - (reference - logp) - 1
        if corrected:
            kl = kl * ratio
        loss = loss + beta * kl
        metrics.append((kl * mask).sum() / mask.sum().clamp(min=1))
    clipped = ((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))
    metrics.append((clipped * mask).sum() / mask.sum().clamp(min=1))
    total = (loss * mask).sum()
    if loss_type == "grpo":
        value = ((loss * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()
    elif loss_type == "dr_grpo":
        value = total / (BATCH * LIMIT)
    else:
        value = total / (mask.sum().clamp(min=1) if items is None else items)
    return value, metrics


def module_of(loss_type="dapo", level="token", beta=0.1, **more):
    return FusedLinearGRPOLoss(
        beta=beta, loss_type=loss_type, importance_sampling_level=level, max_completion_length=LIMIT, **more
    )


def compare(case, module, wanted_kwargs, tolerance=1e-5, **more):
    """Loss, metrics and every gradient, of a loss scaled by 2 as a gradient scaler would."""
    double = case.double()
    value, metrics = case.run(module, **more)
    wanted, wanted_metrics = eager(double, **wanted_kwargs)
    (2 * value).backward()
    (2 * wanted).backward()
    torch.testing.assert_close(value.double(), wanted, rtol=tolerance, atol=tolerance)
    assert len(metrics) == len(wanted_metrics) and not any(metric.requires_grad for metric in metrics)
    for found, expected in zip(metrics, wanted_metrics, strict=True):
        torch.testing.assert_close(found.double(), expected.detach(), rtol=tolerance, atol=tolerance)
    for found, expected in zip(case.gradients, double.gradients, strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found.double(), expected, rtol=10 * tolerance, atol=tolerance)


@pytest.fixture(params=[{}, MANY_TILES], ids=["one tile", "many tiles"])
def tiling(request):
    with override(**request.param):
        yield


@pytest.mark.parametrize("prune", [True, False])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.usefixtures("tiling")
def test_loss_and_gradients(loss_type, level, trained, bias, prune):
    case = make_case(trained=trained, bias=bias)
    compare(case, module_of(loss_type, level, prune=prune), {"loss_type": loss_type, "level": level})


@pytest.mark.parametrize("keep_tiles", [True, False])
@pytest.mark.parametrize("trained", [(True, False), (False, True)], ids=["weight", "bias"])
def test_one_parameter_alone(trained, keep_tiles):
    case = make_case(bias=True)
    case.weight.requires_grad_(trained[0])
    case.bias.requires_grad_(trained[1])
    with override(row_block=4, vocab_tile=128, keep_tiles=keep_tiles):
        compare(case, module_of(), {"loss_type": "dapo"})


def test_head_alone():
    """Hidden states that need no gradient, as when the body is frozen and the head is trained."""
    case = make_case(trained=True, bias=True)
    case.hidden.requires_grad_(False)
    compare(case, module_of(), {"loss_type": "dapo"})


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_options(level, trained):
    case = make_case(trained=trained)
    case.correction = torch.rand(BATCH, 1) + 0.5
    module = module_of(
        "dapo", level, temperature=0.7, delta=1.1, use_bias_correction_kl=True, epsilon_low=0.05, epsilon_high=0.15
    )
    wanted = {"temperature": 0.7, "delta": 1.1, "corrected": True, "low": 0.05, "high": 0.15, "items": 40}
    compare(case, module, {"loss_type": "dapo", "level": level, **wanted}, num_items_in_batch=40)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("trained", [False, True])
def test_advantages_per_token_and_no_old_log_probs(trained, level):
    case = make_case(trained=trained, old=False)
    case.advantages = torch.randn(BATCH, LENGTH)
    compare(case, module_of("grpo", level), {"loss_type": "grpo", "level": level})


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("trained", [False, True])
def test_sequences_longer_than_a_block(monkeypatch, level, trained):
    """A completion that does not fit a block: log-probs first, then the loss, then the gradients."""
    monkeypatch.setattr("frostline.kernels.lm_head.grpo.forms_in_forward", lambda problem: problem.group == 1)
    with override(row_block=4, vocab_tile=128):
        compare(make_case(trained=trained, bias=True), module_of("grpo", level), {"loss_type": "grpo", "level": level})


@pytest.mark.parametrize("bias", [False, True])
def test_reference_model(bias):
    """One more product without a gradient gives what reference log-probs would."""
    case = make_case(masked=False)
    hidden, weight = torch.randn(BATCH, LENGTH, 5), torch.randn(VOCAB, 5, requires_grad=True)
    offset = torch.randn(VOCAB) if bias else None
    logits = linear(hidden, weight, offset) / 0.8
    case.reference = logits.log_softmax(-1).gather(-1, case.targets[..., None])[..., 0].detach()
    given = case.run(module_of(temperature=0.8))
    case.reference = None
    computed = case.run(module_of(temperature=0.8), ref_input=hidden, ref_weight=weight, ref_bias=offset)
    torch.testing.assert_close(computed, given)
    computed[0].backward()
    assert weight.grad is None


def test_reference_is_not_looked_at_without_kl():
    case = make_case()
    case.reference = torch.full((7,), float("nan"))
    value, metrics = case.run(module_of(beta=0.0))
    assert torch.isfinite(value) and len(metrics) == 1


def test_own_reference_without_a_reference_model():
    case = make_case()
    value, metrics = case.run(module_of(use_ref_model=False))
    assert metrics[0] == 0
    torch.testing.assert_close(value, case.run(module_of(beta=0.0))[0])


@pytest.mark.parametrize("prune", [True, False])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("declared", [None, 10, 14, BATCH * LENGTH])
@pytest.mark.usefixtures("tiling")
def test_padding_holds_garbage(monkeypatch, level, trained, prune, declared):
    """Old log-probs of -inf, NaN or 200 away, hidden states of NaN, targets of -100: nothing of it gets out."""
    monkeypatch.setattr("frostline.kernels.lm_head.rows.is_readable", lambda _: False)
    case = make_case(trained=trained, bias=True)
    clean = make_case(trained=trained, bias=True)
    for name, value in vars(clean).items():
        setattr(
            clean, name, getattr(case, name).detach().clone().requires_grad_(value.requires_grad) if value is not None else None
        )
    padded = case.mask == 0
    with torch.no_grad():
        case.hidden[padded] = float("nan")
    case.targets[padded] = -100
    case.old[padded] = torch.tensor([-float("inf"), float("nan"), 200.0, -200.0]).repeat(2)
    case.reference[padded] = float("nan")
    case.correction = torch.where(padded, float("inf"), 1.0)
    module = module_of("grpo", level, prune=prune)
    value, metrics = case.run(module, active_rows=declared)
    wanted, wanted_metrics = clean.run(module_of("grpo", level))
    value.backward()
    wanted.backward()
    torch.testing.assert_close((value, metrics), (wanted, wanted_metrics))
    assert torch.equal(case.hidden.grad[padded], torch.zeros_like(case.hidden.grad[padded]))
    for found, expected in zip(case.gradients, clean.gradients, strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss_type, level, trained", list(itertools.product(LOSS_TYPES, LEVELS, [False, True])))
def test_all_rows_masked(loss_type, level, trained):
    """A finite 0 whose backward still reaches the parameters, or distributed training hangs."""
    case = make_case(trained=trained, bias=True)
    case.mask.zero_()
    value, metrics = case.run(module_of(loss_type, level))
    value.backward()
    assert value == 0 and all(metric == 0 for metric in metrics)
    for gradient in case.gradients[: 3 if trained else 1]:
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("trained", [False, True])
def test_zero_advantages(trained):
    case = make_case(trained=trained)
    case.advantages.zero_()
    value, metrics = case.run(module_of(beta=0.0))
    value.backward()
    assert value == 0 and metrics[-1] == 0
    assert torch.equal(case.hidden.grad, torch.zeros_like(case.hidden))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_empty_batch(loss_type, trained):
    hidden = torch.randn(0, LENGTH, HIDDEN, requires_grad=True)
    weight = torch.randn(VOCAB, HIDDEN, requires_grad=trained)
    none = torch.zeros(0, LENGTH)
    value, _ = module_of(loss_type, beta=0.0)(hidden, weight, none.long(), none, torch.zeros(0))
    value.backward()
    assert value == 0 and (weight.grad is not None) == trained


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("keep_tiles", [False, True])
def test_backward_twice_gives_the_same(trained, keep_tiles):
    case = make_case(trained=trained, bias=True)
    leaves = [leaf for leaf in (case.hidden, case.weight, case.bias) if leaf.requires_grad]
    with override(keep_tiles=keep_tiles, row_block=4):
        value, _ = case.run(module_of())
    first = torch.autograd.grad(value * 3, leaves, retain_graph=True)
    second = torch.autograd.grad(value * 3, leaves)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_frozen_and_unpruned_hidden_gradients_agree():
    """Bit for bit where the strategy is the same; within rounding across strategies."""
    found = {}
    for trained, prune in itertools.product([False, True], repeat=2):
        torch.manual_seed(0)
        case = make_case(trained=trained, bias=True)
        case.run(module_of(prune=prune))[0].backward()
        assert (case.weight.grad is not None) == (case.bias.grad is not None) == trained
        found[trained, prune] = case.hidden.grad
    assert torch.equal(found[True, True], found[True, False]) and torch.equal(found[False, False], found[True, True])
    torch.testing.assert_close(found[False, True], found[True, True], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "trained, grad, prune, wanted",
    [
        (False, True, True, Strategy.STREAM),
        (True, True, True, Strategy.BLOCKS),
        (False, True, False, Strategy.BLOCKS),
        (True, False, True, Strategy.FORWARD),
        (True, False, False, Strategy.FORWARD),
    ],
)
def test_work_that_is_done(strategies, trained, grad, prune, wanted):
    case = make_case(trained=trained)
    with torch.set_grad_enabled(grad):
        value, _ = case.run(module_of(prune=prune))
    assert strategies == [wanted] and value.requires_grad == grad


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_no_worse_than_plain_torch(dtype, trained, level):
    """Through a loss scale of 2^14, as fp16 needs it."""
    case = make_case(dtype, trained=trained)
    exact, plain = case.double(), make_case(dtype, trained=trained)
    plain.hidden, plain.weight = (t.detach().clone().requires_grad_(t.requires_grad) for t in (case.hidden, case.weight))
    plain.targets, plain.mask, plain.advantages = case.targets, case.mask, case.advantages
    plain.old, plain.reference = case.old, case.reference
    (case.run(module_of("grpo", level))[0] * 2**14).backward()
    (eager(exact, loss_type="grpo", level=level)[0] * 2**14).backward()
    (eager(plain, loss_type="grpo", level=level)[0] * 2**14).backward()
    for ours, theirs, wanted in zip(case.gradients, plain.gradients, exact.gradients, strict=True):
        if ours is not None:
            assert (ours - wanted).norm() <= 1.5 * (theirs - wanted).norm() + 1e-3 * wanted.norm()


@pytest.mark.parametrize("keep_tiles", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("triton", [False, True])
def test_branches_of_a_gpu(triton, trained, keep_tiles):
    """bf16 tiles beside fp32 logits, with either tiles; the interpreter runs the Triton ones."""
    if torch.cuda.is_available():
        pytest.skip("interpreter only")
    case = make_case(torch.bfloat16, trained=trained, bias=True)
    exact = case.double()
    with contextlib.ExitStack() as stack:
        stack.enter_context(target_device("cuda"))
        stack.enter_context(override(row_block=4, vocab_tile=128, keep_tiles=keep_tiles))
        if triton:
            stack.enter_context(interpreted())
        value, _ = case.run(module_of())
        value.backward()
    wanted, _ = eager(exact, loss_type="dapo")
    wanted.backward()
    torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-5)
    for found, expected in zip(case.gradients, exact.gradients, strict=True):
        assert (found is None) == (expected is None)
        if found is not None:  # the interpreter truncates to bf16 where a GPU rounds
            assert (found - expected).norm() < 1e-2 * expected.norm()


def test_autocast():
    case = make_case(trained=True, bias=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, _ = case.run(module_of())
    value.backward()
    low = make_case(torch.float32, trained=True, bias=True)
    low.hidden, low.weight, low.bias = (t.detach().bfloat16().requires_grad_() for t in (case.hidden, case.weight, case.bias))
    low.targets, low.mask, low.advantages, low.old, low.reference = (
        case.targets, case.mask, case.advantages, case.old, case.reference,
    )  # fmt: skip
    wanted, _ = low.run(module_of())
    wanted.backward()
    torch.testing.assert_close(value, wanted)
    for found, expected in zip(case.gradients, low.gradients, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected.float())


def test_compiled_around_gives_the_same():
    case = make_case(trained=True)
    module = module_of()
    case.run(module)[0].backward()
    wanted, case.hidden.grad = case.hidden.grad, None
    torch.compile(lambda: case.run(module)[0] * 1.0, backend="aot_eager")().backward()
    torch.testing.assert_close(case.hidden.grad, wanted)


CONSTRUCTOR = (
    "beta compiled use_ref_model chunk_size epsilon_low epsilon_high loss_type max_completion_length importance_sampling_level"
    " sapo_temperature_pos sapo_temperature_neg temperature delta use_bias_correction_kl vespo_k_pos vespo_lambda_pos"
    " vespo_k_neg vespo_lambda_neg"
)
FORWARD = (
    "_input lin_weight selected_token_ids attention_mask advantages bias ref_per_token_logps old_per_token_logps ref_input"
    " ref_weight ref_bias vllm_is_ratio num_items_in_batch"
)
DEFAULTS = (0.04, True, True, 1, 0.2, 0.2, "dapo", None, "token", 1.0, 1.05, 1.0, None, False, 2.0, 3.0, 3.0, 2.0)


def test_signature_is_that_of_liger():
    """Liger-Kernel 0.8.5's names, order and defaults; ours come behind, by keyword only."""
    for function, names, own in (
        (
            FusedLinearGRPOLoss.__init__,
            CONSTRUCTOR,
            "prune off_policy_mask_threshold top_entropy_quantile entropy_coef report_entropy memory_budget",
        ),
        (FusedLinearGRPOLoss.forward, FORWARD, "active_rows sampling_per_token_logps"),
    ):
        parameters = list(inspect.signature(function).parameters.values())[1:]
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positional == names.split()
        assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == own.split()
    defaults = inspect.signature(FusedLinearGRPOLoss.__init__).parameters.values()
    assert tuple(p.default for p in defaults if p.kind is p.POSITIONAL_OR_KEYWORD)[1:] == DEFAULTS


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"loss_type": "nope"}, "loss_type: got 'nope', wanted one of grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo, vespo"),
        (
            {"loss_type": "vespo", "importance_sampling_level": "sequence"},
            "importance_sampling_level: got 'sequence' with loss_type 'vespo', wanted 'token'",
        ),
        ({"loss_type": "dr_grpo", "max_completion_length": None}, "max_completion_length: got None"),
        ({"importance_sampling_level": "word"}, "importance_sampling_level: got 'word'"),
        ({"temperature": 0}, "temperature: got 0"),
        ({"delta": -1.0}, "delta: got -1.0"),
        ({"sapo_temperature_pos": 0.0}, "sapo_temperature_pos: got 0.0"),
        ({"sapo_temperature_neg": -1.0}, "sapo_temperature_neg: got -1.0"),
        ({"off_policy_mask_threshold": 0.0}, "off_policy_mask_threshold: got 0.0, wanted a positive number or None"),
        ({"top_entropy_quantile": 1.5}, "top_entropy_quantile: got 1.5, wanted a share from 0 to 1"),
    ],
)
def test_constructor_errors_name_the_argument(changes, words):
    with pytest.raises(ValueError, match=words):
        FusedLinearGRPOLoss(**changes)


@pytest.mark.parametrize(
    "changes, error, words",
    [
        ({"hidden": torch.randn(BATCH * LENGTH, HIDDEN)}, ValueError, "selected_token_ids: got shape"),
        ({"weight": torch.randn(VOCAB, HIDDEN + 1)}, ValueError, "_input: got shape .* lin_weight"),
        ({"weight": torch.empty(0)}, RuntimeError, "lin_weight: got shape .* empty storage"),
        ({"mask": torch.ones(BATCH, LENGTH + 1)}, ValueError, "attention_mask: got shape"),
        ({"advantages": torch.randn(BATCH + 1)}, ValueError, r"advantages: got shape \(4,\), wanted \(3,\)"),
        ({"old": torch.randn(BATCH, 2)}, ValueError, "old_per_token_logps: got shape"),
        ({"correction": torch.randn(BATCH, 2)}, ValueError, r"vllm_is_ratio: got shape \(3, 2\), wanted \(3,\) or \(3, 1\)"),
        ({"reference": None}, ValueError, "ref_per_token_logps: got None with use_ref_model=True"),
    ],
)
def test_forward_errors_name_the_argument(changes, error, words):
    case = make_case()
    for name, value in changes.items():
        setattr(case, name, value)
    with pytest.raises(error, match=words):
        case.run(module_of())


def test_dtensor_is_refused():
    class DTensor(Tensor):
        pass

    case = make_case()
    case.weight = case.weight.detach().as_subclass(DTensor)
    with pytest.raises(RuntimeError, match=r"lin_weight: got a DTensor"):
        case.run(module_of())
