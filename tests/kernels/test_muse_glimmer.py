"""Patched Muse Glimmer against the unpatched one: outputs, gradients, what is computed, and what is given back."""

from __future__ import annotations

import copy
import gc
import inspect
import weakref

import pytest
import torch
from norm_reference import error
from tiny_muse import VOCAB, image_inputs, text_inputs, theirs, tiny_model, twin
from torch.utils._python_dispatch import TorchDispatchMode

from frostline.kernels.models import apply_to, apply_to_muse_glimmer, remove_from_muse_glimmer

PARTS = ["rope", "rms_norm", "layer_norm", "swiglu", "fused_linear_cross_entropy"]
ALONE = [{**dict.fromkeys(PARTS, False), part: True} for part in PARTS]
ALONE.append({**dict.fromkeys(PARTS, False), "cross_entropy": True})


@pytest.fixture(params=["classes", "instance"])
def patch(request):
    """Apply to a model, either way; the classes are given back."""

    def apply(model, **options):
        apply_to_muse_glimmer(model if request.param == "instance" else None, **options)
        return model if request.param == "instance" else rebuilt(model)

    yield apply
    remove_from_muse_glimmer()


def rebuilt(model):
    """The same model, made by classes that are patched now."""
    new = type(model)(model.config).to(next(model.parameters()).dtype)
    new.load_state_dict(model.state_dict())
    return new.train(model.training)


def gradients(model, inputs):
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("options", [{}, *ALONE], ids=lambda options: " ".join(k for k, on in options.items() if on) or "all")
@pytest.mark.parametrize("inputs", [text_inputs, image_inputs])
def test_loss_and_gradients_are_those_of_the_model(patch, options, inputs):
    plain, given = tiny_model(), inputs()
    patched = patch(twin(plain), **options)
    wanted, exact = gradients(plain, given)
    loss, found = gradients(patched, given)
    assert error(loss, wanted.double()) < 1e-6 and found.keys() == exact.keys()
    for name, gradient in exact.items():
        assert error(found[name], gradient.double()) < 2e-5, name


def test_in_bf16_it_is_as_near_to_fp32_as_the_model_is(patch):
    given = text_inputs()
    wanted, exact = gradients(tiny_model(), given)
    plain = tiny_model(torch.bfloat16)
    loss, rounded = gradients(plain, given)
    patched_loss, found = gradients(patch(twin(plain)), given)
    assert abs(patched_loss - wanted) <= 1.5 * abs(loss - wanted) + 1e-3 * abs(wanted)
    parts = "embed_tokens", "mlp.gate_proj", "mlp.down_proj", "input_layernorm", "language_model.norm"
    assert all(any(part in name for name in exact) for part in parts)  # the head's weight is the embedding's
    for key in exact:
        if any(part in key for part in parts):
            assert error(found[key], exact[key].double()) <= 1.5 * error(rounded[key], exact[key].double()), key


def test_thirty_steps_follow_the_same_curve():
    plain = tiny_model()
    patched = twin(plain)
    apply_to(patched)
    curves = []
    for model in (plain, patched):
        optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
        for step in range(30):
            loss = model(**text_inputs(seed=step % 3)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    assert curves[0][-1] < 0.8 * curves[0][0]
    torch.testing.assert_close(*map(torch.tensor, curves), rtol=2e-3, atol=0)


def test_what_is_returned(patch):
    model, given = patch(tiny_model()), text_inputs()
    trained = model(**given, output_hidden_states=True)
    assert trained.logits is None and trained.token_accuracy.ndim == 0 and len(trained.hidden_states) == 5
    assert trained.predicted_tokens.shape == given["labels"].shape
    unlabelled = model(input_ids=given["input_ids"])
    assert unlabelled.logits.shape == (2, 12, VOCAB) and unlabelled.loss is None
    assert isinstance(model(**given, return_dict=False), tuple)
    model.eval()
    judged = model(**given)
    assert judged.logits is not None and "token_accuracy" not in judged
    shown = judged.logits[:, :-1].argmax(-1)
    counted = given["labels"][:, 1:] != -100
    right = ((shown == given["labels"][:, 1:]) & counted).sum() / counted.sum()
    assert trained.token_accuracy == pytest.approx(float(right))
    assert torch.equal(trained.predicted_tokens[:, :-1][counted], shown[counted])


def test_what_the_loss_is_told(patch):
    plain, given = tiny_model(), text_inputs()
    patched = patch(twin(plain))
    shifted = torch.nn.functional.pad(given["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    for more in ({"num_items_in_batch": 7}, {"num_items_in_batch": torch.tensor(5)}, {"shift_labels": shifted}):
        assert patched(**given, **more).loss.item() == pytest.approx(plain(**given, **more).loss.item(), rel=1e-5)


def test_a_model_with_a_loss_of_its_own_keeps_it(patch):
    model = patch(tiny_model())
    model.loss_function = lambda logits, *_, **__: logits.sum() * 0 + 5
    assert model(**text_inputs()).loss == 5


def test_logits_are_never_formed(patch):
    model = patch(tiny_model())
    shapes = []

    class Shapes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            shapes.extend(
                tuple(x.shape) for x in (result if isinstance(result, tuple) else (result,)) if isinstance(x, torch.Tensor)
            )
            return result

    with Shapes():
        model(**text_inputs()).loss.backward()
    assert (2, 12, VOCAB) not in shapes


def frozen_but(model, trained):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)


def products(model, given):
    """The shapes of the results of all matrix products of a step."""
    found = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            if name in ("mm", "addmm", "bmm", "baddbmm", "mm_wide", "norm_backward"):
                outs = [x for x in (*args, kwargs or {}) if isinstance(x, torch.Tensor)] if name == "mm_wide" else [result]
                found.extend((name, tuple(x.shape)) for x in (outs[-1] if isinstance(outs[-1], tuple) else (outs[-1],)))
            return result

    with Products():
        model(**given).loss.backward()
    return found


def test_with_a_frozen_base_no_gradient_of_head_or_norms_is_computed(patch):
    peft = pytest.importorskip("peft")
    model = patch(tiny_model())
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    found = products(adapted, text_inputs())
    assert ("mm_wide", (VOCAB, 64)) not in found and ("mm", (VOCAB, 64)) not in found
    partial = [shape for name, shape in found if name == "norm_backward" and shape == (64,)]
    assert not partial
    assert all(one.grad is None for name, one in adapted.named_parameters() if "lora" not in name)
    assert all(one.grad is not None for name, one in adapted.named_parameters() if "lora" in name and "vision" not in name)
    plain = peft.get_peft_model(twin(tiny_model()), config)
    plain.load_state_dict(adapted.state_dict())
    assert adapted(**text_inputs()).loss.item() == pytest.approx(plain(**text_inputs()).loss.item(), rel=1e-5)


def test_a_peft_model_is_patched_beneath_its_wrapping_and_an_adapter_on_the_head_is_refused():
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(tiny_model(), peft.LoraConfig(r=2, target_modules=["lm_head"]))
    apply_to(adapted)
    with pytest.raises(RuntimeError, match=r"lm_head: got .* with an adapter, wanted a plain Linear"):
        adapted(**text_inputs())
    remove_from_muse_glimmer(adapted)
    assert adapted(**text_inputs()).logits is not None


def test_a_norm_that_somebody_watches_is_called():
    model, plain = tiny_model(), tiny_model()
    apply_to(model)
    seen = []
    model.model.language_model.layers[1].pre_feedforward_layernorm.register_forward_hook(lambda *_: seen.append(1))
    loss = model(**text_inputs()).loss
    assert seen == [1] and loss.item() == pytest.approx(plain(**text_inputs()).loss.item(), rel=1e-5)


def test_one_patched_model_leaves_others_and_the_module_alone():
    before = {name: vars(kind).copy() for name, kind in vars(theirs).items() if inspect.isclass(kind)}
    functions = theirs.apply_rotary_pos_emb, theirs.apply_rotary_pos_emb_vision
    model, other = tiny_model(), tiny_model()
    apply_to_muse_glimmer(model)
    assert other(**text_inputs()).logits is not None
    assert functions == (theirs.apply_rotary_pos_emb, theirs.apply_rotary_pos_emb_vision)
    assert all(vars(getattr(theirs, name)) == kept for name, kept in before.items())


def test_all_is_given_back():
    model = tiny_model()
    kept = {name: dict(vars(module)) for name, module in model.named_modules()}
    for options in ({}, {"fused_linear_cross_entropy": False, "cross_entropy": True}):  # once more, otherwise
        apply_to(model, **options)
    assert model(**text_inputs()).logits is not None
    remove_from_muse_glimmer(model)
    remove_from_muse_glimmer(model)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == {name: set(one) for name, one in kept.items()}
    before = {name: vars(kind).copy() for name, kind in vars(theirs).items() if inspect.isclass(kind)}
    apply_to_muse_glimmer()
    made = tiny_model()
    assert made(**text_inputs()).logits is None
    remove_from_muse_glimmer()
    assert all(vars(getattr(theirs, name)) == kept for name, kept in before.items())
    assert made(**text_inputs()).logits is not None


def test_a_patched_model_that_nobody_holds_is_let_go(patch):
    model = patch(tiny_model())
    held = [weakref.ref(module) for module in model.modules()]
    del model
    gc.collect()
    assert not any(module() is not None for module in held)


def test_a_copy_is_given_its_own_code_back():
    model = tiny_model()
    apply_to(model)
    other = copy.deepcopy(model)
    remove_from_muse_glimmer(other)
    assert not any("forward" in vars(module) for module in other.modules())
    assert other(**text_inputs()).logits is not None and model(**text_inputs()).logits is None


@pytest.mark.parametrize("first", ["classes", "instance"])
def test_both_patches_are_given_back_in_any_order(first):
    apply_to_muse_glimmer()
    try:
        model = tiny_model()
        apply_to(model)
        remove_from_muse_glimmer(model if first == "instance" else None)
    finally:
        remove_from_muse_glimmer()
    remove_from_muse_glimmer(model)
    assert not any("forward" in vars(module) for module in model.modules())
    assert model(**text_inputs()).logits is not None


def test_the_signature_stays_and_a_copy_is_of_its_own():
    model = tiny_model()
    wanted = inspect.signature(model.forward)
    apply_to(model)
    assert inspect.signature(model.forward) == wanted
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.zero_()
    assert other(**text_inputs()).loss.item() == pytest.approx(torch.tensor(float(VOCAB)).log().item(), rel=1e-4)
    assert model(**text_inputs()).loss.item() != pytest.approx(other(**text_inputs()).loss.item())


def test_generation_is_as_before(patch):
    plain = tiny_model().eval()
    patched = patch(twin(plain))
    ids = text_inputs()["input_ids"][:1]
    asked = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(patched.generate(ids, **asked), plain.generate(ids, **asked))


def test_checkpointed_layers_give_the_same_gradients(patch):
    plain = tiny_model()
    patched = patch(twin(plain))
    patched.gradient_checkpointing_enable()
    wanted, exact = gradients(plain, text_inputs())
    loss, found = gradients(patched, text_inputs())
    assert error(loss, wanted.double()) < 1e-6
    assert all(error(found[name], gradient.double()) < 2e-5 for name, gradient in exact.items())


def test_an_activation_that_is_no_silu_is_the_models_own():
    model, plain = tiny_model(), tiny_model()
    for one in (model, plain):
        one.config.text_config.hidden_activation = "gelu"
        for layer in one.model.language_model.layers:
            layer.mlp.act_fn = torch.nn.GELU()
    apply_to(model)
    assert model(**text_inputs()).loss.item() == pytest.approx(plain(**text_inputs()).loss.item(), rel=1e-5)


MISTAKES = {
    "cross_entropy: got True with fused_linear_cross_entropy": lambda: apply_to_muse_glimmer(None, cross_entropy=True),
    "model: got Linear, wanted a Muse Glimmer": lambda: apply_to_muse_glimmer(torch.nn.Linear(2, 2)),
    "model: got Linear without config.model_type": lambda: apply_to(torch.nn.Linear(2, 2)),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message):
    with pytest.raises((ValueError, TypeError), match=message):
        MISTAKES[message]()


def test_a_model_that_there_is_no_patch_for_is_named():
    model = torch.nn.Linear(2, 2)
    model.config = type("Config", (), {"model_type": "llama"})()
    with pytest.raises(ValueError, match="model: got model_type 'llama', wanted one of muse_glimmer"):
        apply_to(model)
