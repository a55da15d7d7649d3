"""A patched Muse Glimmer under the trainers that people use: the losses are those of the unpatched model."""

from __future__ import annotations

import pytest
import torch
from tiny_muse import VOCAB, text_inputs, tiny_model

from frostline.kernels.models import apply_to

STEPS = 2
QUIET = {"max_steps": STEPS, "logging_steps": 1, "report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}


@pytest.fixture
def rows():
    """Six rows of tokens, as a dataset."""
    datasets = pytest.importorskip("datasets")
    given = text_inputs(batch=6)
    return datasets.Dataset.from_dict({"input_ids": given["input_ids"].tolist(), "labels": given["input_ids"].tolist()})


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_trainer(rows, tmp_path):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, seed=0, **QUIET)
    losses = []
    for patched in (False, True):
        model = tiny_model()
        if patched:
            apply_to(model)
        trainer = Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        losses.append(logged(trainer, "loss"))
    assert len(losses[0]) == STEPS
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-4, atol=0)


def test_sft_trainer(rows, tmp_path):
    trl = pytest.importorskip("trl")
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(VOCAB)}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="w0", eos_token="w2", unk_token="w0")
    arguments = trl.SFTConfig(str(tmp_path), per_device_train_batch_size=2, seed=0, bf16=False, **QUIET)
    found = []
    for patched in (False, True):
        model = tiny_model()
        if patched:
            apply_to(model)
        trainer = trl.SFTTrainer(model, arguments, train_dataset=rows.remove_columns("labels"), processing_class=tokenizer)
        trainer.train()
        found.append((logged(trainer, "loss"), logged(trainer, "mean_token_accuracy")))
    assert len(found[0][0]) == STEPS == len(found[1][1])
    torch.testing.assert_close(*map(torch.tensor, found), rtol=1e-4, atol=1e-4)
