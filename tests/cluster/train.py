"""Trains a line for so many steps, slowly enough that something can happen: ``train.py STEPS``.

``PACE`` is how long a step waits, in seconds, or a file that says it from step to step;
``CHECKPOINTS`` is where checkpoints go.  At the end it says the digest of its state, which any
number of replicas must not change, nor the workers of each.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import pliant


def pace_s() -> float:
    given = os.environ.get("PACE", "0")
    return float(Path(given).read_text() if given.startswith("/") else given)


pliant.seed(1)
model = torch.nn.Linear(4, 1)
if (workers := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=pliant.mesh(shard=workers)["shard"])
inputs = torch.randn(480, 4)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
place = os.environ.get("CHECKPOINTS", "")
kept: dict[str, Any] = {"checkpoint": pliant.Checkpoint(place, every="50steps")} if place else {}
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
with pliant.Session(
    model=model,
    optimizer=optimizer,
    dataset=data,
    global_batch_size=40,
    micro_batch_size=4,
    **kept,
) as session:
    sys.stderr.write(f"trains for {sys.argv[1]} steps\n")
    for step in session.steps(int(sys.argv[1])):
        for x, y in step:
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        time.sleep(pace_s())
    sys.stdout.write(f"digest {session.committed} {session.state_digest()}\n")
    sys.stdout.flush()
