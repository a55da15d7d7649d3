"""Against TRL 1.16 itself: its log-prob function, its `GRPOTrainer`'s loss, and a training run with and without the adapter."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import linear

from frostline.kernels import FusedLinearGRPOLoss, trl_adapter

BATCH, LENGTH, HIDDEN, VOCAB, LIMIT = 4, 5, 8, 70, 7
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
COMBINATIONS = [pair for pair in itertools.product(LOSS_TYPES, ("token", "sequence")) if pair != ("vespo", "sequence")]
# TRL and PEFT call what transformers 5 has renamed.
quiet = pytest.mark.filterwarnings("ignore::FutureWarning:transformers")


def test_without_trl_installing_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl.trainer.utils", None)
    with pytest.raises(RuntimeError, match=r"trl: got .*, wanted TRL 1\.16"):
        trl_adapter.install()


def test_another_trl_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(__version__="0.9"))
    monkeypatch.setitem(sys.modules, "trl.trainer", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "trl.trainer.utils", SimpleNamespace())
    with pytest.raises(RuntimeError, match=r"trl: got TRL 0\.9, wanted one that has trl\.trainer\.utils\._Chunked"):
        trl_adapter.install()
    trl_adapter.uninstall()


class Theirs:
    """TRL's function as a caller sees it, where TRL is missing."""

    @staticmethod
    def apply(*args):
        return args


@pytest.mark.parametrize("zero3, outputs", [(False, ("entropy", "is_top1")), (True, ("entropy",))])
def test_what_is_left_to_trl(monkeypatch, zero3, outputs):
    integration = SimpleNamespace(is_deepspeed_zero3_enabled=lambda: zero3)
    monkeypatch.setitem(sys.modules, "transformers.integrations.deepspeed", integration)
    arguments = (torch.randn(3, 4), torch.randn(9, 4), None, torch.tensor([1, 2, 3]), 1.0, 8, None, 1.0, outputs)
    assert trl_adapter.LinearLogProb(Theirs).apply(*arguments) == arguments


def test_install_and_uninstall(monkeypatch):
    utils = SimpleNamespace(_ChunkedLogProbFunction=Theirs)
    monkeypatch.setitem(sys.modules, "trl.trainer.utils", utils)
    trl_adapter.install()
    trl_adapter.install(entropy_in_loss=True)
    assert utils._ChunkedLogProbFunction == trl_adapter.LinearLogProb(Theirs, entropy_in_loss=True)
    trl_adapter.uninstall()
    trl_adapter.uninstall()
    assert utils._ChunkedLogProbFunction is Theirs


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_weight_in_another_dtype_is_cast_as_trl_casts_it(weight_dtype):
    hidden, weight = torch.randn(6, 4, dtype=torch.bfloat16), torch.randn(9, 4, dtype=weight_dtype, requires_grad=True)
    ours = trl_adapter.LinearLogProb(Theirs).apply(hidden, weight, None, torch.arange(6), 1.0, 8, outputs=())
    ours[0].sum().backward()
    assert ours[1:] == (None,) * 4 and weight.grad.dtype == weight_dtype


# --- Against the real one --------------------------------------------------------------------------------------------------


@pytest.fixture
def trl():
    found = pytest.importorskip("trl", reason="TRL is not installed")
    if not found.__version__.startswith("1.16."):
        pytest.skip(f"TRL {found.__version__} is installed, 1.16 is what is compared")
    return found


@pytest.fixture
def installed(trl):
    trl_adapter.install()
    yield
    trl_adapter.uninstall()


@pytest.mark.parametrize("transform", [(0.7, None, 1.0), (1.0, 20.0, 0.3)], ids=str)
@pytest.mark.parametrize(
    "outputs, with_entropy_gradient",
    [(("log_probs",), False), (("log_probs", "entropy"), False), (("log_probs", "entropy"), True)],
    ids=["log-probs", "entropy", "gradient of the entropy"],
)
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_function(trl, dtype, trained, outputs, transform, with_entropy_gradient):
    from trl.kernels import ChunkedLogProbFunction

    temperature, softcap, scale = transform
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2}[dtype]  # TRL's logits are bf16 there, ours fp32
    leaves = [torch.randn(11, 8, dtype=dtype), torch.randn(130, 8, dtype=dtype), torch.randn(130, dtype=dtype)]
    targets, found = torch.randint(130, (11,)), []
    for function in (trl_adapter.LinearLogProb(ChunkedLogProbFunction), ChunkedLogProbFunction):
        hidden, weight, bias = (leaf.clone().requires_grad_() for leaf in leaves)
        weight.requires_grad_(trained)
        bias.requires_grad_(trained)
        result = function.apply(hidden, weight, bias, targets, temperature, 64, softcap, scale, outputs)
        loss = result[0].sum()
        if with_entropy_gradient:
            loss = loss + 3 * result[1].square().sum()
        loss.backward()
        found.append([*result, hidden.grad, weight.grad, bias.grad])
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            torch.testing.assert_close(
                ours, theirs, rtol=tolerance, atol=tolerance * max(1.0, float(theirs.detach().abs().max()))
            )


def trl_loss(trl, options, logp, entropy, batch, items):
    """`GRPOTrainer._compute_loss` on log-probs that are given: (loss, its metrics)."""
    from trl import GRPOTrainer

    arguments = SimpleNamespace(
        use_bias_correction_kl=options.bias_correction, delta=options.delta, steps_per_generation=1,
        sapo_temperature_pos=options.sapo_temperatures[0], sapo_temperature_neg=options.sapo_temperatures[1],
        vespo_k_pos=options.vespo_positive[0], vespo_lambda_pos=options.vespo_positive[1],
        vespo_k_neg=options.vespo_negative[0], vespo_lambda_neg=options.vespo_negative[1],
    )  # fmt: skip

    def same(values, **_):
        return values

    alone = SimpleNamespace(num_processes=1, sync_gradients=True, reduce=same, gather=same, pad_across_processes=same)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, entropy, None), accelerator=alone, aux_loss_enabled=False,
        args=arguments, beta=options.beta, loss_type=options.loss_type, epsilon_low=options.epsilon_low,
        epsilon_high=options.epsilon_high, importance_sampling_level=options.level, max_completion_length=LIMIT,
        off_policy_mask_threshold=options.off_policy_threshold, top_entropy_quantile=options.top_entropy,
        entropy_coef=options.entropy_coef, _entropy_bonus_enabled=options.entropy_trained, use_adaptive_entropy=False,
        use_vllm="importance_sampling_ratio" in batch, vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=1, model=SimpleNamespace(training=True), _metrics={"train": defaultdict(list)},
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask, get_gamma_weights=GRPOTrainer.get_gamma_weights,
    )  # fmt: skip
    trainer.get_high_entropy_mask = lambda *given: GRPOTrainer.get_high_entropy_mask(trainer, *given)
    mask = batch["completion_mask"]
    inputs = batch | {
        "prompt_ids": mask[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": mask,
        "num_items_in_batch": items,
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs), trainer._metrics["train"]


EXTRAS = {
    "plain": {},
    "bias-corrected": {"use_bias_correction_kl": True, "delta": 1.15},
    "off-policy": {"off_policy_mask_threshold": 0.1},
    "highest entropies": {"top_entropy_quantile": 0.4, "entropy_coef": 0.2},
    "entropy bonus": {"entropy_coef": 0.2},
    "sampler's ratio": {"ratio": (BATCH, LENGTH)},
    "one ratio a completion": {"ratio": (BATCH, 1)},
}


@pytest.mark.parametrize("extra", list(EXTRAS))
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_the_loss_of_its_trainer(trl, loss_type, level, extra):
    more = dict(EXTRAS[extra])
    shape = more.pop("ratio", None)
    module = FusedLinearGRPOLoss(
        beta=0.1, epsilon_high=1.1 if loss_type == "cispo" else 0.2, loss_type=loss_type, max_completion_length=LIMIT,
        importance_sampling_level=level, **more,
    )  # fmt: skip
    hidden, weight = torch.randn(BATCH, LENGTH, HIDDEN, requires_grad=True), torch.randn(VOCAB, HIDDEN)
    targets, mask = torch.randint(VOCAB, (BATCH, LENGTH)), torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, 3:], mask[3, 1:] = 0, 0
    log_p = linear(hidden, weight).log_softmax(-1)
    logp, entropy = log_p.gather(-1, targets[..., None])[..., 0], -(log_p.exp() * log_p).sum(-1)
    advantages = torch.tensor([1.3, -0.7, 0.5, -1.1])
    old, reference = logp.detach() + 0.3 * torch.randn(BATCH, LENGTH), logp.detach() + 0.5 * torch.randn(BATCH, LENGTH)
    batch = {
        "completion_mask": mask, "advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": reference,
        "sampling_per_token_logps": old + 0.1,
    }  # fmt: skip
    if shape is not None:  # as TRL makes it: 1 where there is padding
        batch["importance_sampling_ratio"] = torch.where(mask == 1, torch.rand(BATCH, LENGTH) + 0.5, 1.0)[:, : shape[1]]
    wanted, logged = trl_loss(trl, module.options, logp, entropy, batch, mask.sum())
    wanted.backward()
    theirs, hidden.grad = hidden.grad, None
    found, metrics = module(
        hidden, weight, targets, mask, advantages, None, reference, old, vllm_is_ratio=batch.get("importance_sampling_ratio"),
        num_items_in_batch=mask.sum(), sampling_per_token_logps=batch["sampling_per_token_logps"],
    )  # fmt: skip
    found.backward()
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(hidden.grad, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(float(metrics[0]), logged["kl"][0], rtol=1e-4, atol=1e-5)
    if module.options.entropy:
        torch.testing.assert_close(float(metrics[2]), logged["entropy"][0], rtol=1e-4, atol=1e-5)
    clipped = {"cispo": "cispo_clip_ratio", "sapo": None, "vespo": None}.get(loss_type, "clip_ratio/region_mean")
    if clipped is not None and level == "token" and module.options.delta is None:
        torch.testing.assert_close(float(metrics[1]), logged[clipped][0], rtol=1e-4, atol=1e-5)


def tiny_trainer(trl, tmp_path, name, **more):
    """A GRPOTrainer on a model and a tokenizer made on the spot, with a LoRA adapter."""
    import transformers
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<eos>", *(f"w{index}" for index in range(62))]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = {"vocab_size": len(words), "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **tokens))
    config = trl.GRPOConfig(
        output_dir=str(tmp_path / name), use_cpu=True, bf16=False, max_steps=3, per_device_train_batch_size=4,
        num_generations=4, max_completion_length=6, report_to=[], logging_steps=1, learning_rate=1e-2, beta=0.1,
        save_strategy="no", seed=0, disable_tqdm=True, **more,
    )  # fmt: skip

    def reward(completion_ids, **_):
        return [float(sum(token % 2 for token in tokens)) for tokens in completion_ids]

    return trl.GRPOTrainer(
        model, reward, config, train_dataset=Dataset.from_dict({"prompt": ["w1 w2 w3"] * 12}), processing_class=tokenizer,
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
    )  # fmt: skip


@quiet
@pytest.mark.parametrize("more", [{}, {"entropy_coef": 0.1}], ids=str)
def test_a_training_run(trl, tmp_path, monkeypatch, more):
    """The same losses, KL, entropies and adapter with and without `install`, and the head gets no gradient."""
    for name in ("peft", "datasets", "tokenizers", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    calls, curves, adapters = [], [], []
    plain = trl_adapter.LinearLogProb.apply
    monkeypatch.setattr(trl_adapter.LinearLogProb, "apply", lambda *given: calls.append(1) or plain(*given))
    for name in ("trl", "frostline"):
        if name == "frostline":
            trl_adapter.install()
        try:
            trainer = tiny_trainer(trl, tmp_path, name, **more)
            trainer.train()
        finally:
            trl_adapter.uninstall()
        kept = ("loss", "kl", "entropy", "reward", "grad_norm")
        curves.append([[entry[key] for key in kept if key in entry] for entry in trainer.state.log_history])
        adapters.append({key: value for key, value in trainer.model.named_parameters() if value.requires_grad})
        assert trainer.model.get_base_model().lm_head.weight.grad is None
        assert bool(calls) == (name == "frostline")
    torch.testing.assert_close(curves[0], curves[1], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(adapters[0], adapters[1], rtol=1e-3, atol=1e-4)
