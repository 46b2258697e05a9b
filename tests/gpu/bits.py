"""What a session computes on a GPU, in a process of its own: prints JSON."""

from __future__ import annotations

import json
import sys

import torch
from tests.accelerator import sim
from tests.engine import models
from torch import nn

import pliant

DEVICE = "cuda"


def digest(name: str) -> str:
    case = models.build(name, randomness=False)
    sim.move(case, DEVICE)
    return models.train(case, 6)


def digest_with_dropout() -> str:
    case = models.build("gpt")
    sim.move(case, DEVICE)
    return models.train(case, 6)


def weights(*, by_session: bool) -> list[float]:
    """Train on one micro-batch a step, by a session or by a plain loop."""
    pliant.seed(4)
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    points = models.Points(48)
    if by_session:
        with pliant.Session(
            model=model,
            optimizer=optimizer,
            dataset=points,
            global_batch_size=8,
            micro_batch_size=8,
            shuffle=False,
        ) as session:
            for step in session.steps(6):
                for batch in step:
                    step.backward(loss_of(model, batch))
    else:
        torch.use_deterministic_algorithms(True)
        for at in range(6):
            batch = torch.utils.data.default_collate([points[at * 8 + i] for i in range(8)])
            loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([p.detach().flatten().cpu() for p in model.parameters()]).tolist()


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    points, classes = batch[0].to(DEVICE), batch[1].to(DEVICE)
    return nn.functional.cross_entropy(model(points), classes)


if __name__ == "__main__":
    found = {
        "digests": [*map(digest, ("gpt", "cnn", "moe")), digest_with_dropout()],
        "session": weights(by_session=True),
        "loop": weights(by_session=False),
    }
    sys.stdout.write(json.dumps(found) + "\n")
