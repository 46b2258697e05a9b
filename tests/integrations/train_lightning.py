"""Trains a tiny model by Lightning's Trainer, as people write it."""

from __future__ import annotations

import argparse
import json
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

words = argparse.ArgumentParser()
words.add_argument("out", type=Path)
words.add_argument("--plain", action="store_true", help="without pliant")
words.add_argument("--arguments", type=json.loads, default={}, help="further of the Trainer")
words.add_argument("--elastic", type=json.loads, default={}, help="of ElasticStrategy")
words.add_argument("--kept", help="pliant's checkpoints")
words.add_argument("--schedule", default="epoch")
words.add_argument("--patience", type=int, default=0)
words.add_argument("--wrong", default="", help="something that is refused")
words.add_argument("--samples", type=int, default=80)
words.add_argument("--pace", type=float, default=0.0, help="until a file `over` is there")
asked = words.parse_args()
warnings.filterwarnings("ignore")

if asked.plain:
    torch.set_num_threads(1)
    strategy: Any = "auto"
else:
    import pliant
    from pliant.integrations.lightning import ElasticStrategy

    if asked.kept:
        asked.elastic["checkpoint"] = pliant.Checkpoint(asked.kept, every="5steps")
    strategy = ElasticStrategy(**asked.elastic)

seed_everything(3)
x = torch.randn(asked.samples, 6)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())


class Model(LightningModule):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(6, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
        )
        self.best = 1e9
        self.seen: list[float] = []
        if asked.wrong == "manual":
            self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, wanted = batch
        loss = torch.nn.functional.mse_loss(self.net(inputs), wanted)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("error", (self.net(inputs) - wanted).abs().mean(), on_epoch=True, on_step=False)
        if asked.wrong == "local":
            self.seen.append(float(loss))
        if asked.wrong == "maximum":
            self.log("worst", loss, reduce_fx="max")
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, wanted = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(inputs), wanted))

    def on_validation_epoch_end(self) -> None:
        self.best = min(self.best, float(self.trainer.callback_metrics["val_loss"]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        if asked.schedule == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"},
            }
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": asked.schedule},
        }


class Count(Callback):
    """Of a script's own."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def on_train_batch_start(self, *args: Any) -> None:
        threading.Event().wait(
            asked.pace * (not Path("over").exists())
        )  # where one that is killed leaves nothing undone

    def on_train_epoch_start(self, *args: Any) -> None:
        self.count("epoch_start")

    def on_train_epoch_end(self, *args: Any) -> None:
        self.count("epoch_end")

    def on_train_batch_end(self, *args: Any) -> None:
        self.count("batch_end")

    def on_validation_end(self, *args: Any) -> None:
        self.count("validation_end")


count, model = Count(), Model()
kept = ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True)
callbacks = [kept, count, LearningRateMonitor()]
if asked.patience:
    callbacks.append(EarlyStopping("val_loss", patience=asked.patience, min_delta=100))
trainer = Trainer(
    strategy=strategy,
    accelerator="cpu",
    devices=1,
    logger=CSVLogger(asked.out, name="csv"),
    callbacks=callbacks,
    enable_progress_bar=False,
    enable_model_summary=False,
    **{
        "max_epochs": 6,
        "accumulate_grad_batches": 4,
        "gradient_clip_val": 1.0,
        "log_every_n_steps": 2,
        **asked.arguments,
    },
)
trainer.fit(
    model,
    DataLoader(data, batch_size=4, shuffle=not asked.plain and "shuffle" in asked.wrong),
    DataLoader(data, batch_size=22),
)
if trainer.is_global_zero:
    torch.save(model.state_dict(), asked.out / "weights.pt")
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    said = {
        "metrics": metrics,
        "calls": count.calls,
        "best": model.best,
        "step": trainer.global_step,
    }
    said["step"], said["path"] = trainer.global_step, Path(kept.best_model_path).name
    (asked.out / "best.json").write_text(json.dumps(said))
