"""A training script that does something in a tail on one replica only.

python tests/processes/train_unlike.py --what eval --digest-file F
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from tests.engine import models
from torch import nn

import pliant
from pliant.engine.guard import comparison

WHO, WHEN = "r1", 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=sorted(WRONGS), required=True)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    if options.what == "unseen":  # until somebody joins
        comparison.OBJECTS_EVERY = 1 << 40
    run = Run()
    with run.session() as session:
        for step in session.steps(options.steps):
            for points, labels in step:
                step.backward(nn.functional.cross_entropy(run.model(points), labels))
            run.tail(step.index)
            if session.replica == WHO and step.index == WHEN:
                WRONGS[options.what](run)


class Run:
    """What is trained, and what the script keeps of its own."""

    def __init__(self) -> None:
        pliant.seed(3)
        self.model: Any = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.tally = models.Tally()

    def session(self) -> pliant.Session:
        return pliant.Session(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            extra_state={"tally": self.tally},
            dataset=models.Points(40),
            global_batch_size=8,
            micro_batch_size=2,
        )

    def tail(self, step: int) -> None:
        self.tally.counts[step % 3] += 1


def count(run: Run) -> None:
    run.tally.counts[0] += 1


def forward(run: Run) -> None:
    with torch.no_grad():
        run.model(torch.ones(2, 4))


def push(run: Run) -> None:
    with torch.no_grad():
        run.optimizer.state[run.model[2].bias]["momentum_buffer"].mul_(2.0)


def freeze(run: Run) -> None:
    run.model[0].bias.requires_grad_(requires_grad=False)


def shift(run: Run) -> None:
    run.model[2].weight.data.add_(1.0)


def slow_down(run: Run) -> None:
    run.optimizer.param_groups[0]["lr"] = 0.01


WRONGS: dict[str, Callable[[Run], object]] = {
    "eval": lambda run: run.model.eval(),
    "forward": forward,
    "buffer": lambda run: run.model[1].running_mean.add_(1.0),
    "requires_grad": freeze,
    "optimizer": push,
    "weight": shift,
    "lr": slow_down,
    "extra": count,
    "unseen": count,
}


if __name__ == "__main__":
    main()
