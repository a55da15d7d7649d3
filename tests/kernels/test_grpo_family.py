"""Every loss of the GRPO family against a float64 reference written here, one completion at a time, from the papers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from frostline.kernels import FusedLinearGRPOLoss
from frostline.kernels.lm_head.plan import Strategy, override

BATCH, LENGTH, HIDDEN, VOCAB, LIMIT = 4, 5, 8, 70, 7
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
COMBINATIONS = [pair for pair in itertools.product(LOSS_TYPES, ("token", "sequence")) if pair != ("vespo", "sequence")]
GLOBAL = ("dapo", "cispo", "vespo")  # averaged over the tokens of all steps
SOFT = ("sapo", "vespo")


@dataclass
class Case:
    """A batch in the module's own names, and the leaves that may be trained."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    mask: Tensor
    advantages: Tensor
    more: dict = field(default_factory=dict)

    @property
    def leaves(self):
        return [self.hidden, self.weight, self.bias]

    def double(self):
        def copy(value):
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            return value.detach().double().requires_grad_(value.requires_grad)

        values = [copy(value) for name, value in vars(self).items() if name != "more"]
        return Case(*values, more={name: copy(value) for name, value in self.more.items()})

    def run(self, module, rows=slice(None), **more):
        more = {
            name: value[rows] if isinstance(value, Tensor) and name != "ref_weight" else value
            for name, value in self.more.items()
        } | more
        batch = (self.targets[rows], self.mask[rows], self.advantages[rows])
        return module(self.hidden[rows], self.weight, *batch, self.bias, **more)


def make_case(*, trained=False, bias=False, old=True, reference="logps", full=False):
    hidden = torch.randn(BATCH, LENGTH, HIDDEN).requires_grad_()
    weight = (torch.randn(VOCAB, HIDDEN) / 2).requires_grad_(trained)
    offset = torch.randn(VOCAB).requires_grad_(trained) if bias else None
    targets = torch.randint(VOCAB, (BATCH, LENGTH))
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    if not full:
        mask[0, 3:], mask[2], mask[3, 1:] = 0, 0, 0
    with torch.no_grad():
        logp = linear(hidden, weight, offset).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    more = {}
    if old:
        more["old_per_token_logps"] = logp + 0.3 * torch.randn(BATCH, LENGTH)
    if reference == "logps":
        more["ref_per_token_logps"] = logp + 0.5 * torch.randn(BATCH, LENGTH)
    elif reference == "head":
        more |= {"ref_input": torch.randn(BATCH, LENGTH, 5), "ref_weight": torch.randn(VOCAB, 5)}
    return Case(hidden, weight, offset, targets, mask, torch.tensor([1.3, -0.7, 0.5, -1.1]), more)


def module_of(loss_type, level="token", beta=0.1, use_ref_model=True, **more):
    high = 1.1 if loss_type == "cispo" else 0.2
    return FusedLinearGRPOLoss(
        beta=beta,
        use_ref_model=use_ref_model,
        epsilon_high=high,
        loss_type=loss_type,
        max_completion_length=LIMIT,
        importance_sampling_level=level,
        **more,
    )


# --- The reference ---------------------------------------------------------------------------------------------------------


def log_softmax(case, temperature):
    return (linear(case.hidden, case.weight, case.bias) / temperature).log_softmax(-1)


def objective(logp, ratio, whole, advantage, module):
    """Of one token: `ratio` of its level, `whole` the ratio of its completion for vespo."""
    options = module.options
    if options.loss_type == "cispo":
        return -min(float(ratio.detach()), options.epsilon_high) * advantage * logp
    if options.loss_type == "sapo":
        temperature = options.sapo_temperatures[0 if advantage > 0 else 1]
        return -4 / temperature / (1 + (-temperature * (ratio - 1)).exp()) * advantage
    if options.loss_type == "vespo":
        k, rate = options.vespo_positive if advantage >= 0 else options.vespo_negative
        return -(whole**k) * math.exp(rate * (1 - whole)) * advantage * logp
    clipped = ratio.clamp(1 - options.epsilon_low, 1 + options.epsilon_high)
    free = ratio if options.delta is None else ratio.clamp(max=options.delta)
    return -torch.minimum(free * advantage, clipped * advantage)


def was_clipped(ratio, advantage, options):
    if options.loss_type in SOFT:
        return False
    low, high = 1 - options.epsilon_low, 1 + options.epsilon_high
    if options.loss_type == "cispo":
        low, high = -math.inf, options.epsilon_high
    return bool((ratio < low and advantage < 0) or (ratio > high and advantage > 0))


def correction_of(given, i, t):
    """(factor of this token, log factor of its completion)."""
    if given is None:
        return 1.0, 0.0
    if given.ndim == 1 or given.shape[1] == 1:
        one = float(given.reshape(-1)[i])
        return one, math.log(one)
    return float(given[i, t]), None


def eager(case, module, items=None, highest=None):
    """(loss, metrics) in float64. `highest`: which tokens the policy gradient is taken of, [B, T] bool."""
    options = module.options
    log_p = log_softmax(case, module.temperature)
    logp = log_p.gather(-1, case.targets[..., None])[..., 0]
    entropy = -(log_p.exp() * log_p).sum(-1)
    old = case.more.get("old_per_token_logps", logp.detach())
    sampling = case.more.get("sampling_per_token_logps", old)
    reference = case.more.get("ref_per_token_logps", logp.detach())
    if "ref_input" in case.more:
        ref_log_p = linear(case.more["ref_input"], case.more["ref_weight"], case.more.get("ref_bias")) / module.temperature
        reference = ref_log_p.log_softmax(-1).gather(-1, case.targets[..., None])[..., 0].detach()
    if not module.use_ref_model:
        reference = logp.detach()
    given = case.more.get("vllm_is_ratio")
    tokens = [(i, t) for i in range(BATCH) for t in range(LENGTH) if case.mask[i, t]]
    sums, kls, clips = [logp.sum() * 0 for _ in range(BATCH)], [], []
    for i, t in tokens:
        mine = [u for j, u in tokens if j == i]
        moved = (logp[i] - old[i])[mine]
        ratio = (moved[mine.index(t)] if options.level == "token" else moved.mean()).exp()
        factor, log_factor = correction_of(given, i, t)
        if log_factor is None:
            log_factor = float(given[i, mine].log().sum())
        advantage = float(case.advantages[i] if case.advantages.ndim == 1 else case.advantages[i, t])
        whole = math.exp(float(moved.detach().sum()) + log_factor)
        value = objective(logp[i, t], ratio, whole, advantage, module)
        if options.loss_type != "vespo":
            value = value * factor
        if options.off_policy_threshold is not None and advantage < 0:
            known = (sampling - logp.detach())[i, mine].nan_to_num()
            value = value * float(known.mean() <= options.off_policy_threshold)
        if highest is not None:
            value = value * float(highest[i, t])
        if options.beta:
            d = reference[i, t] - logp[i, t]
            kls.append((d.exp() - d - 1) * (ratio if options.bias_correction else 1))
            value = value + options.beta * kls[-1]
        clips.append(float(was_clipped(ratio, advantage, options)))
        sums[i] = sums[i] + value
    count = max(len(tokens), 1)
    lengths = case.mask.sum(1).clamp(min=1)
    if options.loss_type in ("grpo", "sapo"):
        loss = sum(s / n for s, n in zip(sums, lengths, strict=True)) / BATCH
    else:
        divisor = {"bnpo": count, "dr_grpo": BATCH * LIMIT, "luspo": BATCH}.get(options.loss_type, items or count)
        loss = sum(sums) / divisor
    if options.entropy_coef:
        chosen = [entropy[i, t] for i, t in tokens if highest is None or highest[i, t]]
        share = count / items if items and options.loss_type in GLOBAL else 1.0
        loss = loss - options.entropy_coef * share * sum(chosen) / max(len(chosen), 1)
    metrics = ([sum(kls) / count] if options.beta else []) + [torch.tensor(sum(clips) / count)]
    if options.entropy:
        metrics.append(sum(entropy[i, t] for i, t in tokens) / count)
    return loss, metrics


def assert_same(case, module, tolerance=2e-5, wanted=None, **more):
    """Loss, metrics and every gradient."""
    double = case.double()
    value, metrics = case.run(module, **more)
    loss, wanted_metrics = eager(double, module, **(wanted or {}))
    value.backward()
    loss.backward()
    torch.testing.assert_close(value.double(), loss, rtol=tolerance, atol=tolerance)
    assert len(metrics) == len(wanted_metrics) and not any(metric.requires_grad for metric in metrics)
    for found, expected in zip(metrics, wanted_metrics, strict=True):
        torch.testing.assert_close(found.double(), expected.detach().double(), rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(case.leaves, double.leaves, strict=True):
        assert (getattr(ours, "grad", None) is None) == (getattr(theirs, "grad", None) is None)
        if ours is not None and ours.grad is not None:
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=10 * tolerance, atol=tolerance)


# --- The family ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [True, False], ids=["old", "on policy"])
@pytest.mark.parametrize("reference", ["head", "logps", None])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "trainable"])
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_loss_metrics_and_gradients(loss_type, level, trained, bias, reference, old):
    case = make_case(trained=trained, bias=bias, old=old, reference=reference)
    assert_same(case, module_of(loss_type, level, use_ref_model=reference is not None))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_formed_in_the_forward(monkeypatch, loss_type, level, trained):
    """Nothing masked, or a count that only the device knows: whole completions go through the engine in blocks."""
    monkeypatch.setattr("frostline.kernels.lm_head.rows.is_readable", lambda _: False)
    monkeypatch.delattr("frostline.kernels.lm_head.grpo.logprob_of_rows")
    with override(row_block=LENGTH, vocab_tile=64):
        assert_same(make_case(trained=trained, bias=True), module_of(loss_type, level))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_bias_corrected_kl(loss_type, level, trained):
    case = make_case(trained=trained, bias=True)
    assert_same(case, module_of(loss_type, level, use_bias_correction_kl=True))


@pytest.mark.parametrize("shape", [(BATCH,), (BATCH, 1), (BATCH, LENGTH)], ids=str)
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_the_samplers_ratio(loss_type, level, shape):
    case = make_case(trained=True)
    case.more["vllm_is_ratio"] = torch.rand(shape) + 0.5
    assert_same(case, module_of(loss_type, level))


@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_advantages_per_token(loss_type, level):
    case = make_case()
    case.advantages = torch.randn(BATCH, LENGTH)
    assert_same(case, module_of(loss_type, level))


@pytest.mark.parametrize("loss_type", GLOBAL)
@pytest.mark.parametrize("items", [30, 30.0, torch.tensor(30)], ids=["int", "float", "tensor"])
def test_items_of_the_whole_batch(loss_type, items):
    assert_same(make_case(), module_of(loss_type), wanted={"items": 30}, num_items_in_batch=items)


@pytest.mark.parametrize(
    "loss_type, changes",
    [
        ("sapo", {"sapo_temperature_pos": 3.0}),
        ("sapo", {"sapo_temperature_neg": 0.3}),
        ("vespo", {"vespo_k_pos": 1.0}),
        ("vespo", {"vespo_lambda_pos": 1.0}),
        ("vespo", {"vespo_k_neg": 1.0}),
        ("vespo", {"vespo_lambda_neg": 5.0}),
        ("cispo", {"epsilon_high": 0.9}),
        ("luspo", {"delta": 0.9}),
        ("grpo", {"epsilon_low": 0.01}),
        ("dapo", {"temperature": 0.7}),
    ],
)
def test_every_number_takes_effect(loss_type, changes):
    case = make_case()
    before = case.run(module_of(loss_type))[0].detach()
    module = FusedLinearGRPOLoss(**({"beta": 0.1, "loss_type": loss_type, "epsilon_high": 0.2} | changes))
    assert_same(case, module)
    assert not torch.allclose(before, case.run(module)[0], rtol=1e-4)


@pytest.mark.parametrize("loss_type", ["cispo", "sapo", "vespo"])
def test_delta_belongs_to_the_clipped_losses(loss_type):
    case = make_case()
    assert torch.equal(case.run(module_of(loss_type, delta=0.5))[0], case.run(module_of(loss_type))[0])


@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_padding_never_changes_a_loss(loss_type, level):
    """More padding, and anything in it: -inf, NaN, hidden states of NaN, targets of -100."""
    case = make_case(trained=True, bias=True)
    case.more |= {
        "vllm_is_ratio": torch.rand(BATCH, LENGTH) + 0.5,
        "sampling_per_token_logps": case.more["old_per_token_logps"] + 0.1,
    }
    module = module_of(loss_type, level, off_policy_mask_threshold=0.05, report_entropy=True)
    value, metrics = case.run(module)
    wanted = torch.autograd.grad(value, case.leaves)
    garbage = torch.tensor([float("nan"), float("inf"), -float("inf"), 200.0])
    wide = Case(*(case.hidden.detach(), case.weight, case.bias, case.targets, case.mask, case.advantages), {})

    def padded(values, fill):
        rows = torch.cat([values, values.new_zeros(BATCH, 4, *values.shape[2:])], 1)
        outside = torch.cat([case.mask, torch.zeros(BATCH, 4, dtype=torch.long)], 1) == 0
        rows[outside] = fill if not isinstance(fill, Tensor) else fill.repeat(int(outside.sum()))[: int(outside.sum())]
        return rows

    wide.hidden = padded(wide.hidden, float("nan")).requires_grad_()
    wide.targets, wide.mask = padded(case.targets, -100), padded(case.mask, 0)
    wide.more = {name: padded(values, garbage) for name, values in case.more.items()}
    found, found_metrics = wide.run(module)
    found.backward()
    torch.testing.assert_close((found, found_metrics), (value, metrics))
    torch.testing.assert_close(wide.hidden.grad[:, :LENGTH], wanted[0])
    assert torch.equal(wide.hidden.grad[wide.mask == 0], torch.zeros_like(wide.hidden.grad[wide.mask == 0]))
    torch.testing.assert_close([wide.weight.grad, wide.bias.grad], list(wanted[1:]))


@pytest.mark.parametrize("shape", [(BATCH,), (BATCH, 1)], ids=str)
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_garbage_for_a_completion_without_tokens(loss_type, level, shape):
    case = make_case(trained=True)
    case.more["vllm_is_ratio"] = torch.ones(shape)
    case.more["vllm_is_ratio"][2] = float("nan")
    case.advantages[2] = float("nan")
    value, metrics = case.run(module_of(loss_type, level))
    value.backward()
    assert all(torch.isfinite(x).all() for x in (value, *metrics, case.hidden.grad, case.weight.grad))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("more", [{}, {"entropy_coef": 0.1}, {"top_entropy_quantile": 0.5}], ids=str)
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_all_rows_masked(loss_type, level, more, trained):
    """A finite 0 whose backward still reaches the parameters, or distributed training hangs."""
    case = make_case(trained=trained, bias=True)
    case.mask.zero_()
    value, metrics = case.run(module_of(loss_type, level, **more))
    value.backward()
    assert value == 0 and all(metric == 0 for metric in metrics)
    for leaf in case.leaves[: 3 if trained else 1]:
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))


@pytest.mark.parametrize("more", [{}, {"entropy_coef": 0.2}], ids=str)
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_gradient_accumulation(loss_type, level, more):
    """The same tokens over 1, 2 or 4 micro-batches. Losses over local means are divided by the steps, as a trainer does."""
    found = []
    for parts in (1, 2, 4):
        torch.manual_seed(0)
        case = make_case(trained=True, full=loss_type not in GLOBAL)  # a local mean weights micro-batches alike
        module = module_of(loss_type, level, **more)
        for rows in torch.arange(BATCH).chunk(parts):
            items = case.mask.sum() if loss_type in GLOBAL else None
            value, _ = case.run(module, rows, num_items_in_batch=items)
            (value if loss_type in GLOBAL else value / parts).backward()
        found.append([case.hidden.grad, case.weight.grad])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss_type", GLOBAL)
def test_world_size(monkeypatch, loss_type):
    """Data parallelism averages gradients over processes, so a process's share is scaled up by their number."""
    case = make_case()
    alone, _ = case.run(module_of(loss_type), num_items_in_batch=30)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    among_four, _ = case.run(module_of(loss_type), num_items_in_batch=120)
    torch.testing.assert_close(among_four, alone)


# --- What TRL has beyond Liger-Kernel --------------------------------------------------------------------------------------


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("sampling", [False, True])
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_off_policy_mask(loss_type, level, sampling, trained):
    """Completions of negative advantage that moved too far; a token that the sampler did not score says nothing."""
    case = make_case(trained=trained)
    case.advantages = torch.tensor([1.3, -0.7, -0.5, -1.1])
    old = case.more["old_per_token_logps"]
    old[1] += 1.0
    if sampling:
        case.more["sampling_per_token_logps"] = old + 0.2
        case.more["sampling_per_token_logps"][1, 0] = float("nan")
        case.more["sampling_per_token_logps"][3] += 5.0
    module = module_of(loss_type, level, off_policy_mask_threshold=0.5)
    assert_same(case, module)
    assert not torch.equal(case.run(module)[0], case.run(module_of(loss_type, level))[0])


def test_off_policy_mask_without_any_sampler_keeps_everything():
    case = make_case(old=False)
    torch.testing.assert_close(case.run(module_of("grpo", off_policy_mask_threshold=0.1))[0], case.run(module_of("grpo"))[0])


@pytest.mark.parametrize("items", [None, 30])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_entropy_bonus(loss_type, level, trained, items):
    case = make_case(trained=trained, bias=trained)
    assert_same(case, module_of(loss_type, level, entropy_coef=0.3), wanted={"items": items}, num_items_in_batch=items)


def highest_of(case, share):
    log_p = log_softmax(case.double(), 1.0).detach()
    entropy = -(log_p.exp() * log_p).sum(-1)
    return (entropy >= torch.quantile(entropy[case.mask == 1], 1 - share)) & (case.mask == 1)


@pytest.mark.parametrize("share, coefficient", [(0.0, 0.0), (0.3, 0.0), (0.6, 0.3)])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_tokens_of_highest_entropy(loss_type, level, trained, share, coefficient):
    case = make_case(trained=trained)
    module = module_of(loss_type, level, top_entropy_quantile=share, entropy_coef=coefficient)
    assert_same(case, module, wanted={"highest": highest_of(case, share)})


def test_highest_entropies_of_all_processes(monkeypatch):
    """Another process whose entropies are all higher: nothing here is among the highest half."""

    def gather(into, mine):
        into[0].copy_(mine)
        into[1].copy_(torch.where(mine.isnan(), mine, mine + 100))

    def enlarge(size, op):
        assert op is torch.distributed.ReduceOp.MAX
        size += 3

    for name, value in {
        "is_initialized": lambda: True, "get_world_size": lambda: 2, "all_gather": gather, "all_reduce": enlarge,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.distributed, name, value)
    case = make_case()
    value, _ = case.run(module_of("grpo", beta=0.0, top_entropy_quantile=0.4))
    assert value == 0


@pytest.mark.parametrize("prune", [True, False])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_entropy_is_reported(loss_type, level, trained, prune):
    case = make_case(trained=trained, bias=True)
    assert_same(case, module_of(loss_type, level, report_entropy=True, prune=prune))


@pytest.mark.parametrize(
    "trained, more, wanted",
    [
        (False, {"report_entropy": True}, Strategy.STREAM),
        (True, {"report_entropy": True}, Strategy.BLOCKS),
        (False, {"entropy_coef": 0.1}, Strategy.BLOCKS),  # two products: the weight gets none
        (True, {"entropy_coef": 0.1}, Strategy.BLOCKS),
        (False, {"top_entropy_quantile": 0.5}, Strategy.STREAM),
        (True, {"top_entropy_quantile": 0.5}, Strategy.RECOMPUTE),
    ],
)
def test_work_that_entropies_cost(strategies, trained, more, wanted):
    make_case(trained=trained).run(module_of("dapo", **more))[0].backward()
    assert strategies == [wanted]
