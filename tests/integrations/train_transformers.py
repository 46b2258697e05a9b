"""Trains a tiny model by a Trainer of Hugging Face, as people write it; sizes from the command."""

from __future__ import annotations

import argparse
import json
import os
import threading
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TRANSFORMERS_OFFLINE="1")
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

words = argparse.ArgumentParser()
words.add_argument("out", type=Path)
words.add_argument("--plain", action="store_true", help="without pliant")
words.add_argument("--arguments", type=json.loads, default={}, help="further TrainingArguments")
words.add_argument("--elastic", type=json.loads, default={}, help="further of ElasticTrainer")
words.add_argument("--kept", help="pliant's checkpoints")
words.add_argument("--loss", default="", help="a compute_loss of the script's own")
words.add_argument("--dropout", type=float, default=0.0)
words.add_argument("--patience", type=int, default=0)
words.add_argument("--pace", type=float, default=0.0, help="until a file `over` is there")
asked = words.parse_args()

if asked.plain:
    from transformers import Trainer

    torch.set_num_threads(1)
else:
    import pliant
    from pliant.integrations.transformers import ElasticTrainer as Trainer

    if asked.kept:
        asked.elastic["checkpoint"] = pliant.Checkpoint(asked.kept, every="5steps")

set_seed(42)
generator = torch.Generator().manual_seed(0)


def sample(number: int) -> dict[str, Any]:
    tokens = torch.randint(1, 64, (12,), generator=generator)
    labels = tokens.clone()
    labels[: number % 9] = -100  # so that micro-batches have other numbers of tokens
    return {"input_ids": tokens, "labels": labels, "attention_mask": torch.ones(12).long()}


data = [sample(number) for number in range(60)]
held_out = [sample(number) for number in range(10)]
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=asked.dropout,
    )
)


class Best(TrainerCallback):
    """Of a script's own, and nothing of it says that it is to be kept."""

    def __init__(self) -> None:
        self.best = 1e9
        self.calls: dict[str, int] = {}

    def count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def on_epoch_begin(self, *args: Any, **named: Any) -> None:
        self.count("epoch_begin")

    def on_step_begin(self, *args: Any, **named: Any) -> None:
        threading.Event().wait(
            asked.pace * (not Path("over").exists())
        )  # where one that is killed leaves nothing undone

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.count("step_end")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
        self.count("log")
        self.best = min(self.best, (logs or {}).get("loss", self.best))

    def on_evaluate(self, *args: Any, **named: Any) -> None:
        self.count("evaluate")


class Own(Trainer):
    """With a loss of its own, and a number to log."""

    loss_is_scaled_for_ga = None if asked.loss == "unsaid" else True

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **named)
        if asked.loss == "local":
            self.seen = getattr(self, "seen", 0) + 1
        elif not asked.plain:
            self.step.log(length=float(inputs["input_ids"].numel()))
        return loss


best = Best()
arguments = {
    "max_steps": 12,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "learning_rate": 1e-2,
    "warmup_steps": 2,
    "logging_steps": 2,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    **asked.arguments,
}
early = [EarlyStoppingCallback(asked.patience, 100.0)] if asked.patience else []
trainer = (Own if asked.loss else Trainer)(
    model=model,
    args=TrainingArguments(output_dir=str(asked.out), **arguments),
    train_dataset=data,
    eval_dataset=held_out,
    callbacks=[best, *early],
    **({} if asked.plain else asked.elastic),
)
trainer.train(resume_from_checkpoint=arguments.get("resume_from_checkpoint"))
trainer.save_model(str(asked.out / "final"))
if trainer.is_world_process_zero():
    torch.save(model.state_dict(), asked.out / "weights.pt")
    (asked.out / "history.json").write_text(json.dumps(trainer.state.log_history, indent=1))
    (asked.out / "best.json").write_text(json.dumps(vars(best)))
