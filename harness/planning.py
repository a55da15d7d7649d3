"""The plan of the code measured, as plain data: what `frostline plan` asks of a suite's hook, and what the hook answers.

The harness never imports what it measures, so a suite that has a plan to print supplies a function from a `PlanQuestion` to a
`PlanAnswer`. A worker calls it; both travel as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from frostline.results.record import UsageError

_CHOICES = {
    "lm_head": ("frozen", "trainable"),
    "loss": ("known", "cross_entropy", "unknown"),
    "dtype": ("bfloat16", "float16", "float32"),
    "device": ("cuda", "cpu"),
}
_UNITS = {"B": 1} | {f"{prefix}iB": 1024**i for i, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}B": 1000**i for i, prefix in enumerate(("k", "M", "G", "T"), 1)}


@dataclass(frozen=True)
class PlanQuestion:
    """A problem of a head, in the words of the command line.

    Attributes:
        tokens, hidden, vocab: the shapes: hidden states [tokens, hidden], weight [vocab, hidden].
        lm_head: "frozen" or "trainable". bias: whether there is one, trained with the weight.
        loss: "known" when the forward runs (a fused policy loss), "cross_entropy" (known as well, and never put together from
            several rows), or "unknown" (log-probs with any loss on top).
        dtype: of hidden states and weight.
        entropy: whether the loss has a gradient through entropies. masked: whether some tokens do not count.
        group: tokens that the loss judges together: 1, or the length of a completion.
        label_smoothing, token_accuracy: whether a cross entropy has the one and tells the other (or predicted tokens).
        memory_budget: bytes above the inputs that may be used, or None.
        device: whose branches are taken.
    """

    tokens: int
    hidden: int
    vocab: int
    lm_head: str = "frozen"
    bias: bool = False
    loss: str = "known"
    dtype: str = "bfloat16"
    entropy: bool = False
    masked: bool = False
    group: int = 1
    memory_budget: int | None = None
    device: str = "cuda"
    label_smoothing: bool = False
    token_accuracy: bool = False

    def __post_init__(self) -> None:
        for name, words in _CHOICES.items():
            if getattr(self, name) not in words:
                raise UsageError(f"--{name.replace('_', '-')}: got {getattr(self, name)!r}, wanted {' or '.join(words)}")
        for name in ("tokens", "hidden", "vocab", "group"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name}: got {getattr(self, name)}, wanted a whole number from 1 on")
        for name in ("label_smoothing", "token_accuracy"):
            if getattr(self, name) and self.loss != "cross_entropy":
                raise UsageError(f"--{name.replace('_', '-')}: got --loss {self.loss}, wanted cross_entropy with it")
        if self.loss == "cross_entropy" and (self.entropy or self.group > 1):
            given = "--entropy" if self.entropy else f"--group {self.group}"
            raise UsageError(f"{given}: a cross entropy has neither entropies nor groups; leave it out, or take another --loss")
        if self.tokens % self.group:
            raise UsageError(f"--group: got {self.group}, wanted a divisor of the {self.tokens} tokens")

    def __str__(self) -> str:
        parts = {
            ", with entropies": self.entropy,
            ", with label smoothing": self.label_smoothing,
            ", with token accuracy": self.token_accuracy,
            ", some tokens masked": self.masked,
        }
        loss = "cross entropy" if self.loss == "cross_entropy" else f"loss {self.loss}"
        loss += "".join(part for part, there in parts.items() if there)
        group = f", judged in groups of {self.group:,}" if self.group > 1 else ""
        return (
            f"{self.tokens:,} tokens{group}, hidden {self.hidden:,}, vocab {self.vocab:,}, {self.dtype}, lm_head {self.lm_head}"
            f"{' with bias' if self.bias else ''}, {loss}, on {self.device}"
        )


@dataclass(frozen=True)
class PlanOption:
    """One way that was weighed. What cannot be has no figures, and a note that says why.

    Attributes:
        name: what the way is called.
        note: why it was chosen or not.
        row_block, vocab_tile: the shape of its tiles.
        products: matrix products of the problem's size. flops: floating-point operations.
        peak_bytes: predicted peak above the inputs, bytes.
    """

    name: str
    note: str
    row_block: int | None = None
    vocab_tile: int | None = None
    products: int | None = None
    flops: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class PlanAnswer:
    """The options, the preferred first, and one sentence that says why one of them runs."""

    options: Sequence[PlanOption]
    why: str
    notes: Sequence[str] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PlanAnswer:
        """The inverse of `to_json`."""
        return PlanAnswer([PlanOption(**option) for option in data["options"]], data["why"], tuple(data["notes"]))


def parse_bytes(text: str, option: str) -> int:
    """Bytes of `512MiB`, `1.5 GiB`, `2GB` or `1000000`.

    Raises:
        UsageError: naming `option`, for anything else and for less than a byte.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    unit = {name.lower(): size for name, size in _UNITS.items()}.get((found[2] or "B").lower()) if found else None
    if found is None or unit is None or float(found[1]) * unit < 1:
        raise UsageError(f"{option}: got {text!r}, wanted a size like 512MiB, 1.5GiB or 1000000 (bytes)")
    return int(float(found[1]) * unit)
