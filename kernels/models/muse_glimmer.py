"""Muse Glimmer of Hugging Face (`model_type` muse_glimmer, transformers 5.15 to 5.24), text and vision.

Its code stays its own. What is replaced, each as an option: the rotation of queries and keys; both RMS norms and those without
a weight; the vision tower's layer norms; the activation of the MLP; and the way from the last hidden states to the loss, which
then needs no logits. In a decoder layer the norm before the MLP is computed in one kernel with the addition before it; the
other additions stand at the end of a layer, whose next norm is another module's. No norm works in place: the layer keeps its
input as the residual.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from types import ModuleType
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn

from frostline.kernels.models.loss import loss_on_logits, next_token_loss, output_of
from frostline.kernels.models.norms import add_and_norm, centred_rms_forward, layer_norm_forward, rms_forward
from frostline.kernels.models.patching import Patches, seeing
from frostline.kernels.rope import apply_rotary_pos_emb
from frostline.kernels.swiglu import swiglu

_MODULE = "transformers.models.muse_glimmer.modeling_muse_glimmer"
_LAYER_NORMED = ("MuseGlimmerVisionEncoderLayer", "MuseGlimmerVisionModel")
_SILU = ("silu", "swish")

_KEPT_AS = "_frostline_patches"  # on the patched module: its patches name it, so a table of ours would keep it alive

_on_classes = Patches()
_made_by_patched_classes: WeakSet[nn.Module] = WeakSet()


def apply_to_muse_glimmer(
    model: nn.Module | None = None,
    *,
    rope: bool = True,
    rms_norm: bool = True,
    layer_norm: bool = True,
    swiglu: bool = True,
    cross_entropy: bool = False,
    fused_linear_cross_entropy: bool = True,
) -> None:
    """Let Muse Glimmer run on this package's kernels. Applying again replaces what was applied before.

    In training with labels the model then returns no logits but `token_accuracy` and `predicted_tokens`; without labels, and in
    evaluation, full logits as before. Parameters stay where they are, and only the gradients that are asked for are computed:
    with a frozen base (LoRA) none of the head's or the norms'.

    Args:
        model: patch this one alone, also when PEFT has wrapped it; None: the classes, so all models there are and will be.
        rope: rotary embeddings of text and vision in one kernel for queries and keys.
        rms_norm: RMS norms, with a weight or without, and in the decoder layer together with the addition before one.
        layer_norm: the vision tower's layer norms.
        swiglu: silu(gate) * up of the MLP, where its activation is that.
        cross_entropy: the loss on full logits, whose memory its gradient takes over.
        fused_linear_cross_entropy: the loss without logits.

    Raises:
        ImportError: no transformers that has the model.
        ValueError: both losses, or a model of another kind.
        RuntimeError: an adapter on the head, which the loss without logits would leave out.
    """
    if cross_entropy and fused_linear_cross_entropy:
        raise ValueError(
            "cross_entropy: got True with fused_linear_cross_entropy, wanted one of them: the one works on full logits, which"
            " the other never forms; pass fused_linear_cross_entropy=False"
        )
    theirs = _theirs()
    options = {
        "rope": rope, "rms_norm": rms_norm, "layer_norm": layer_norm, "swiglu": swiglu, "cross_entropy": cross_entropy,
        "fused_linear_cross_entropy": fused_linear_cross_entropy,
    }  # fmt: skip
    if model is None:
        remove_from_muse_glimmer()
        _patch_classes(theirs, _on_classes, options)
        return
    base = _unwrapped(model)
    if getattr(getattr(base, "config", None), "model_type", None) not in ("muse_glimmer", "muse_glimmer_text"):
        raise ValueError(f"model: got {type(base).__name__}, wanted a Muse Glimmer of transformers")
    remove_from_muse_glimmer(base)
    _patch_model(theirs, base, _kept_patches(base), options)


def remove_from_muse_glimmer(model: nn.Module | None = None) -> None:
    """Give a model, or the classes, their own code back. Does nothing where nothing was applied."""
    if model is None:
        _on_classes.give_back()
        for module in list(_made_by_patched_classes):
            _give_back(module, f"{_KEPT_AS}_of_class")
        _made_by_patched_classes.clear()
        return
    _give_back(_unwrapped(model), _KEPT_AS)


def _kept_patches(module: nn.Module, name: str = _KEPT_AS) -> Patches:
    patches = vars(module)[name] = Patches()
    return patches


def _give_back(module: nn.Module, name: str) -> None:
    patches = vars(module).pop(name, None)
    if patches is not None:
        patches.give_back()


def _theirs() -> ModuleType:
    try:
        return importlib.import_module(_MODULE)
    except ImportError as error:
        raise ImportError(f"Muse Glimmer: {error}; wanted transformers >= 5.15: pip install 'frostline[muse]'") from error


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model of Hugging Face in what PEFT has made of it."""
    get = getattr(model, "get_base_model", None)
    return get() if callable(get) else model


def _patch_classes(theirs: ModuleType, patches: Patches, options: dict[str, bool]) -> None:
    if options["rope"]:
        patches.put(theirs, "apply_rotary_pos_emb", apply_rotary_pos_emb)
        patches.put(theirs, "apply_rotary_pos_emb_vision", _rotate_vision)
    for name, forward in _forwards(theirs, options).items():
        patches.put(getattr(theirs, name), "forward", forward)
    if options["cross_entropy"]:
        patches.put(theirs.MuseGlimmerForConditionalGeneration, "_loss_function", staticmethod(loss_on_logits))
    if options["layer_norm"]:
        for name in _LAYER_NORMED:
            kind = getattr(theirs, name)
            patches.put(kind, "__init__", _with_layer_norms(kind.__init__))


def _patch_model(theirs: ModuleType, model: nn.Module, patches: Patches, options: dict[str, bool]) -> None:
    forwards = _forwards(theirs, options)
    if options["rope"]:
        forwards |= {
            "MuseGlimmerTextAttention": seeing(
                theirs.MuseGlimmerTextAttention.forward, apply_rotary_pos_emb=apply_rotary_pos_emb
            ),
            "MuseGlimmerVisionAttention": seeing(
                theirs.MuseGlimmerVisionAttention.forward, apply_rotary_pos_emb_vision=_rotate_vision
            ),
        }
    if options["cross_entropy"] and isinstance(model, theirs.MuseGlimmerForConditionalGeneration):
        patches.put(model, "_loss_function", loss_on_logits)
    by_type = {getattr(theirs, name): forward for name, forward in forwards.items()}
    for module in model.modules():
        forward = by_type.get(type(module))
        if forward is not None:
            patches.bind(module, "forward", forward)
        if options["layer_norm"] and type(module).__name__ in _LAYER_NORMED:
            _patch_layer_norms(module, patches)


def _forwards(theirs: ModuleType, options: dict[str, bool]) -> dict[str, Any]:
    """What takes the place of `forward`, by the name of the class."""
    found: dict[str, Any] = {}
    if options["rms_norm"]:
        found |= {
            "MuseGlimmerRMSNorm": rms_forward,
            "MuseGlimmerTextCenteredRMSNorm": centred_rms_forward,
            "MuseGlimmerTextDecoderLayer": _layer_forward(theirs),
        }
    if options["swiglu"]:
        found["MuseGlimmerTextMLP"] = _mlp_forward(theirs.MuseGlimmerTextMLP.forward)
    if options["fused_linear_cross_entropy"]:
        found["MuseGlimmerForConditionalGeneration"] = _forward_without_logits(theirs)
    return found


def _rotate_vision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q and k [1, S, heads, D], or without the first dimension."""
    if q.ndim == 3:
        rotated = apply_rotary_pos_emb(q[None], k[None], cos, sin, unsqueeze_dim=2)
        return rotated[0][0], rotated[1][0]
    return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)


def _layer_forward(theirs: ModuleType) -> Any:
    original, centred = theirs.MuseGlimmerTextDecoderLayer.forward, theirs.MuseGlimmerTextCenteredRMSNorm

    @functools.wraps(original)
    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        named = dict(zip(_layer_arguments(original), args, strict=False))
        residual = hidden_states
        hidden_states, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **named, **kwargs)
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states, residual = add_and_norm(residual, hidden_states, self.pre_feedforward_layernorm, centred)
        added: Tensor = self.post_feedforward_layernorm(self.mlp(hidden_states))
        return residual + added

    return forward


@functools.cache
def _layer_arguments(original: Any) -> tuple[str, ...]:
    """The names of a layer's arguments after its hidden states."""
    return tuple(inspect.signature(original).parameters)[2:]


def _mlp_forward(original: Any) -> Any:
    @functools.wraps(original)
    def forward(self: Any, x: Tensor) -> Tensor:
        if self.config.hidden_activation not in _SILU:
            return original(self, x)  # type: ignore[no-any-return]  # a function of transformers
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-any-return]  # a module's call

    return forward


def _with_layer_norms(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _patch_layer_norms(self, _kept_patches(self, f"{_KEPT_AS}_of_class"))
        _made_by_patched_classes.add(self)

    return init


def _patch_layer_norms(module: nn.Module, patches: Patches) -> None:
    for child in module.children():
        if type(child) is nn.LayerNorm and "forward" not in vars(child):  # the class's patch may be given back before a model's
            patches.bind(child, "forward", layer_norm_forward)


def _forward_without_logits(theirs: ModuleType) -> Any:
    kind = theirs.MuseGlimmerForConditionalGeneration
    original, signature, plain_loss = kind.forward, inspect.signature(kind.forward), _causal_loss()

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        given = {name: value for name, value in bound.arguments.items() if name not in ("self", "kwargs")}
        more: dict[str, Any] = bound.arguments.get("kwargs", {})
        labels, shifted = given.get("labels"), more.get("shift_labels")
        sliced = not isinstance(given.get("logits_to_keep", 0), int) or given.get("logits_to_keep", 0)
        if (labels is None and shifted is None) or not self.training or sliced or self.loss_function is not plain_loss:
            return original(self, *args, **kwargs)
        named = {name: value for name, value in given.items() if name not in ("labels", "logits_to_keep")}
        as_dict = more.pop("return_dict", None)
        inner = self.model(**named, **more, return_dict=True)
        config = self.config.text_config
        transform = {"softcap": config.final_logit_softcapping, "logit_scale": config.output_multiplier}
        found = next_token_loss(inner.last_hidden_state, self.lm_head, labels, more, **transform)
        output = output_of(theirs.MuseGlimmerCausalLMOutputWithPast, found, inner)
        return output if as_dict or (as_dict is None and self.config.return_dict) else output.to_tuple()

    return forward


def _causal_loss() -> Any:
    """transformers' own loss of next tokens; a model that was given another one keeps it."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    return ForCausalLMLoss
