"""Trains a model of equal layers, and writes down what memory a step takes at its peak.

    python tests/processes/train_weighed.py DIRECTORY

Every layer is sharded over the workers of the replica.  What is counted: bytes of the tensors that
live between two steps, and the peak of what is allocated until the optimizer runs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from benchmarks.memory_worker import live_bytes, peak_bytes, state_of
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile

import pliant
from pliant.engine.local_tensors import local_of

LAYERS, WIDTH = 16, 192
WATCHED_STEP = 3


def main() -> None:
    directory = Path(sys.argv[1])
    pliant.seed(1)
    mesh = pliant.mesh(shard=int(os.environ.get("WORLD_SIZE", "1")))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randn(64, WIDTH)
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    own = between = 0
    with pliant.Session(
        model=model,
        optimizer=optimizer,
        dataset=data,
        global_batch_size=8,
        micro_batch_size=1,
        max_grad_norm=1.0,
    ) as session:
        for step in session.steps(WATCHED_STEP + 1):
            if step.index == WATCHED_STEP:
                state = [local_of(tensor) for tensor in state_of(model, optimizer)]
                own = sum(tensor.untyped_storage().nbytes() for tensor in state)
                between = live_bytes([*state, data])
                profiler.start()
            for batch in step:
                step.backward(model(batch).square().mean())
        profiler.stop()
        line = {
            "model": LAYERS * WIDTH * WIDTH * 4,
            "state": own,
            "gradients": between + peak_bytes(profiler),
        }
        (directory / f"{session.replica}-{os.getpid()}.weighed").write_text(json.dumps(line))


if __name__ == "__main__":
    main()
