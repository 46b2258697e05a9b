"""The first losses of a recipe beside those of transformers' and TRL's own trainers."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.playing import alone
from tests.recipes.test_runs import PREFERENCES, command, write_data
from torch.utils.data import SequentialSampler, Subset

STEPS, BATCH, RATE = 50, 5, 3e-4
"""Batches that divide the data: the last of an epoch would be short here, and not there."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.frameworks,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.skipif(find_spec("trl") is None, reason="pip install transformers trl"),
]


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lend a directory with data, and with weights in ``model/`` that both begin with."""
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    data = {"train": "texts.jsonl", "sequenceLength": 64}
    alone(tmp_path, *command({"data": data, "training": {"steps": 3, "learningRate": 0.01}}))
    return tmp_path


def recipe(directory: Path, task: dict[str, Any]) -> dict[str, Any]:
    """Train by a recipe; return which samples came when, and each loss."""
    training: dict[str, Any] = {"steps": STEPS, "globalBatchSize": BATCH, "microBatchSize": BATCH}
    training |= {"learningRate": RATE, "schedule": "constant"}
    model = {"weights": "model"}
    _, _, text = command({**task, "model": model, "training": training, "export": {"path": "end"}})
    script = Path(__file__).with_name("recorded_recipe.py")
    alone(directory, script, text, directory / "noted.json")
    found: dict[str, Any] = json.loads((directory / "noted.json").read_text())
    assert len(found["losses"]) == STEPS
    found["drawn"] = found["drawn"][-STEPS * BATCH :]  # before them the session looks at one
    return found


def options(directory: Path) -> dict[str, Any]:
    return {
        "output_dir": str(directory / "theirs"),
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "activation_checkpointing": False,
        "remove_unused_columns": False,
    }


def noting(kind: type[Any], losses: list[float]) -> type[Any]:
    """Return a trainer that takes samples as they come, and notes each loss."""

    class Noting(kind):  # type: ignore[misc]
        def _get_train_sampler(self, *given: Any) -> Any:
            return SequentialSampler(given[0] if given else self.train_dataset)

        def training_step(self, *given: Any, **named: Any) -> Any:
            loss = super().training_step(*given, **named)
            losses.append(float(loss))
            return loss

    return Noting


def check(mine: list[float], theirs: list[float]) -> None:
    assert len(mine) == len(theirs) == STEPS
    worst = max(abs(a - b) / b for a, b in zip(mine, theirs, strict=True))
    print(f"first {STEPS} losses, {mine[0]:.4f} to {mine[-1]:.4f}: {worst:.2g}")  # noqa: T201
    assert worst <= 1e-5


def test_chats_beside_the_trainer_of_transformers(begun: Path) -> None:
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    from pliant.recipes import samples
    from pliant.recipes.tokens import tokenizer_of, tokens_of
    from pliant.spec.load import check as checked
    from pliant.spec.recipe import Recipe

    task = {
        "task": "sft",
        "data": {"train": "chats.jsonl", "sequenceLength": 64, "packing": "none"},
    }
    noted = recipe(begun, task)
    given = {**task, "model": {"weights": str(begun / "model")}, "training": {"steps": 1}}
    spec = checked(Recipe, given, source="recipe")
    tokens = tokens_of(spec, str(begun / "chats.jsonl"), tokenizer_of(spec), is_first=False)
    data = Subset(samples.Alone(tokens, 64), noted["drawn"])

    def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        batch = samples.collate(rows)
        return {
            "input_ids": batch["tokens"],
            "labels": batch["labels"],
            "attention_mask": (batch["documents"] > 0).long(),
        }

    losses: list[float] = []
    model = AutoModelForCausalLM.from_pretrained(begun / "model", dtype=torch.float32)
    arguments = TrainingArguments(**options(begun))
    torch.set_num_threads(1)
    trainer = noting(Trainer, losses)(
        model=model, args=arguments, train_dataset=data, data_collator=collate
    )
    trainer.train()
    check(noted["losses"], losses)


def test_preferences_beside_the_trainer_of_trl(begun: Path) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    noted = recipe(begun, {"task": "dpo", "data": PREFERENCES["data"]})
    rows = [json.loads(line) for line in (begun / "pairs.jsonl").read_text().splitlines()]
    rows = [rows[number] for number in noted["drawn"]]
    losses: list[float] = []
    model = AutoModelForCausalLM.from_pretrained(begun / "model", dtype=torch.float32)
    torch.set_num_threads(1)
    trainer = noting(DPOTrainer, losses)(
        model=model,
        args=DPOConfig(**options(begun) | {"beta": 0.1}),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(begun / "model"),
    )
    trainer.train()
    check(noted["losses"], losses)
