"""GRPO with a LoRA adapter on a CPU, end to end: sample, reward, loss, step. The head is frozen and gets no gradient.

A tiny Llama with random weights, made here, learns to write even tokens. Each step samples a group of completions for every
prompt, compares their rewards within the group, and takes two optimizer steps on the same samples, so that importance ratios
move away from 1. The KL penalty is to the model without its adapter, whose hidden states the loss takes as a reference head.

    pip install peft transformers
    python examples/grpo_lora.py
    python examples/grpo_lora.py --implementation torch     # the same losses from full logits

Both print the same curve. Watch the reward: advantages are relative to their own group, so losses compare only within a step,
where the second is to be the lower one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

from frostline.kernels import FusedLinearGRPOLoss, head_parameters

VOCAB, END = 64, 1  # a completion ends with the token END
PROMPTS, GROUP, LENGTH = 4, 8, 10
BETA, EPSILON = 0.02, 0.2

FUSED_LOSS = FusedLinearGRPOLoss(beta=BETA, epsilon_low=EPSILON, epsilon_high=EPSILON, loss_type="dapo")


@dataclass(frozen=True)
class Batch:
    """Sampled completions. tokens [B, prompt + LENGTH], mask [B, LENGTH], advantages [B], old log-probs [B, LENGTH]."""

    tokens: Tensor
    mask: Tensor
    advantages: Tensor
    old: Tensor
    reward: float

    @property
    def completions(self) -> Tensor:
        """[B, LENGTH]."""
        return self.tokens[:, -LENGTH:]


@dataclass
class Curve:
    """What a run leaves: one value per step, and how the head ended up."""

    rewards: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    kls: list[float] = field(default_factory=list)
    head_gradient: Tensor | None = None
    head_moved: bool = False


Loss = Callable[[Tensor, Tensor, Batch, Tensor], tuple[Tensor, Tensor]]


def frostline_loss(hidden: Tensor, weight: Tensor, batch: Batch, reference: Tensor) -> tuple[Tensor, Tensor]:
    """(loss, KL) without the logits. `reference` are the hidden states [B, LENGTH, H] of the model without its adapter."""
    loss, (kl, _clipped) = FUSED_LOSS(
        hidden,
        weight,
        batch.completions,
        batch.mask,
        batch.advantages,
        old_per_token_logps=batch.old,
        ref_input=reference,
        ref_weight=weight,
    )
    return loss, kl


def torch_loss(hidden: Tensor, weight: Tensor, batch: Batch, reference: Tensor) -> tuple[Tensor, Tensor]:
    """The same from full logits, in plain torch."""
    logp, ref = logprobs(hidden, weight, batch.completions), logprobs(reference, weight, batch.completions)
    ratio, advantages = (logp - batch.old).exp(), batch.advantages.unsqueeze(1)
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages)
    kl = (ref - logp).exp() - (ref - logp) - 1
    tokens = batch.mask.sum()
    return ((BETA * kl - surrogate) * batch.mask).sum() / tokens, ((kl * batch.mask).sum() / tokens).detach()


LOSSES: dict[str, Loss] = {"frostline": frostline_loss, "torch": torch_loss}


def make_model(dtype: torch.dtype) -> PeftModel:
    """A random Llama whose projections have LoRA adapters; all else is frozen."""
    shape = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, eos_token_id=END, tie_word_embeddings=False, **shape))
    nn.init.normal_(model.lm_head.weight, std=0.3)  # logits of some size: a flat policy learns slowly
    adapter = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")  # PEFT leaves the head out of "all-linear"
    return get_peft_model(model.to(dtype), adapter)


def head_of(model: PeftModel) -> Tensor:
    """The weight of the head [V, H]; a head with an adapter on it is refused: its weight alone would leave the adapter out."""
    weight, _ = head_parameters(model.get_base_model().get_output_embeddings())
    return weight


def hidden_states(model: PeftModel, tokens: Tensor) -> Tensor:
    """What the head sees where it predicts the completion: [B, LENGTH, H]."""
    body = model.get_base_model().model  # PEFT puts its layers inside, so the adapter is in it
    states: Tensor = body(tokens).last_hidden_state
    return states[:, -LENGTH - 1 : -1]


def logprobs(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """[B, LENGTH] from full logits."""
    return linear(hidden, weight).log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def sample(model: PeftModel, prompts: Tensor) -> Batch:
    """GROUP completions of every prompt, with advantages within the group."""
    tokens = prompts.repeat_interleave(GROUP, 0)
    for _ in range(LENGTH):
        logits = model.get_base_model()(tokens, use_cache=False).logits[:, -1]
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], 1)
    completions = tokens[:, -LENGTH:]
    ended = (completions == END).long().cumsum(1)
    mask = ((ended == 0) | ((ended == 1) & (completions == END))).long()
    rewards = ((completions % 2 == 0) * mask).sum(1) / LENGTH
    groups = rewards.view(-1, GROUP)
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    old = logprobs(hidden_states(model, tokens), head_of(model), completions)
    return Batch(tokens, mask, advantages.flatten(), old, float(rewards.mean()))


def steps_of(model: PeftModel, batch: Batch, loss_of: Loss, optimizer: torch.optim.Optimizer) -> Iterator[tuple[float, float]]:
    """Two optimizer steps on one batch: (loss, KL) of each."""
    with torch.no_grad(), model.disable_adapter():
        reference = hidden_states(model, batch.tokens)
    for _ in range(2):
        loss, kl = loss_of(hidden_states(model, batch.tokens), head_of(model), batch, reference)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield float(loss.detach()), float(kl)


def train(implementation: str = "frostline", *, steps: int = 25, dtype: torch.dtype = torch.float32, seed: int = 0) -> Curve:
    """Train, and return the curve. The same seed samples the same completions, whichever implementation gives the loss."""
    torch.manual_seed(seed)
    model, curve = make_model(dtype), Curve()
    before = head_of(model).detach().clone()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3)
    prompts = torch.randint(2, VOCAB, (PROMPTS, 3))
    for _ in range(steps):
        batch = sample(model, prompts)
        curve.rewards.append(batch.reward)
        for loss, kl in steps_of(model, batch, LOSSES[implementation], optimizer):
            curve.losses.append(loss)
            curve.kls.append(kl)
    curve.head_gradient, curve.head_moved = head_of(model).grad, not torch.equal(head_of(model), before)
    return curve


def main() -> None:
    """Print the curve: the mean reward of the samples, and the losses of the two steps on them."""
    parser = argparse.ArgumentParser(description="GRPO with a LoRA adapter on a CPU")
    parser.add_argument("--implementation", choices=list(LOSSES), default="frostline")
    parser.add_argument("--steps", type=int, default=25)
    given = parser.parse_args()
    torch.set_num_threads(1)  # the model is too small to share
    curve = train(given.implementation, steps=given.steps)
    for step, reward in enumerate(curve.rewards):
        first, second = curve.losses[2 * step : 2 * step + 2]
        print(f"step {step:3d}   reward {reward:.3f}   loss {first:+.4f} {second:+.4f}   KL {curve.kls[2 * step + 1]:.4f}")
    print(f"gradient of the head: {curve.head_gradient}")


if __name__ == "__main__":
    main()
