"""Trains a tiny model by Accelerate, as people write it."""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

words = argparse.ArgumentParser()
words.add_argument("out", type=Path)
words.add_argument("--plain", action="store_true", help="without pliant")
words.add_argument("--kept", help="pliant's checkpoints")
words.add_argument("--epochs", type=int, default=3)
words.add_argument("--accumulate", type=int, default=4)
words.add_argument("--clip", type=float, default=0.0)
words.add_argument("--wrong", default="", help="something that is refused")
words.add_argument("--pace", type=float, default=0.0, help="until a file `over` is there")
asked = words.parse_args()
asked.out.mkdir(exist_ok=True)
torch.manual_seed(3)
x = torch.randn(80, 6)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())
model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.8)
loader, held_out = DataLoader(data, batch_size=4), DataLoader(data, batch_size=22)
losses = []


def evaluate() -> float:
    with torch.no_grad():
        found = [(model(a) - b).square() for a, b in held_out]
    return float(accelerator.gather_for_metrics(torch.cat(found)).mean())


if asked.plain:
    from accelerate import Accelerator

    torch.set_num_threads(1)
    accelerator = Accelerator(gradient_accumulation_steps=asked.accumulate, cpu=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for _ in range(asked.epochs):
        for inputs, wanted in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), wanted)
                accelerator.backward(loss)
                if asked.clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), asked.clip)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        losses.append(evaluate())
else:
    import pliant
    from pliant.integrations.accelerate import ElasticAccelerator as Accelerator

    checkpoint = pliant.Checkpoint(asked.kept, every="5steps") if asked.kept else None
    accelerator = Accelerator(
        gradient_accumulation_steps=asked.accumulate, cpu=True, checkpoint=checkpoint,
        session_options={"extra_state": {"losses": (kept := pliant.State(losses=[]))}},
    )  # fmt: skip
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for step in accelerator.steps(epochs=asked.epochs):
        threading.Event().wait(asked.pace * (not Path("over").exists()))
        for number, (inputs, wanted) in enumerate(step):
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), wanted)
                accelerator.backward(loss)
                if asked.clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), asked.clip)
                if asked.wrong == "gather":
                    accelerator.gather(loss)
                if asked.wrong != "modulo" or number % 2:
                    optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        if asked.wrong == "outside":
            optimizer.step()
        if step.is_last_of_epoch:
            kept.losses.append(evaluate())
    losses = kept.losses
if accelerator.is_main_process:
    weights = accelerator.unwrap_model(model).state_dict()
    torch.save(weights, asked.out / "weights.pt")
    (asked.out / "best.json").write_text(json.dumps(losses))
