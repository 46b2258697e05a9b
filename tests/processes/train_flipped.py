"""A training script on one replica of which a bit of the state flips, as faulty memory would do it.

python tests/processes/train_flipped.py --where weight --who r2
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from tests.engine import models
from torch import nn

import pliant
from pliant.engine.guard import comparison
from pliant.engine.local_tensors import local_of

WHEN = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--where", choices=("weight", "moment"), required=True)
    parser.add_argument("--who", default="r2")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--place", type=int, default=0, help="of the worker, in its replica")
    parser.add_argument("--mesh", type=int, default=0, help="workers of each replica")
    parser.add_argument("--is-sharded", action="store_true")
    parser.add_argument("--is-large", action="store_true")
    options = parser.parse_args()
    if options.is_large:  # of a large model the votes of a few steps look at little
        comparison.PART_BYTES = 1
    pliant.seed(3)
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    if options.mesh:
        shard(model, pliant.mesh(shard=options.mesh), is_sharded=options.is_sharded)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pliant.Session(
        model=model,
        optimizer=optimizer,
        dataset=models.Points(40),
        global_batch_size=8,
        micro_batch_size=2,
    ) as session:
        for step in session.steps(options.steps):
            for points, labels in step:
                step.backward(nn.functional.cross_entropy(model(points), labels))
            session.log(sum=float(local_of(model[1].weight).double().sum()))
            is_place = int(os.environ.get("RANK", 0)) == options.place
            if session.replica == options.who and is_place and step.index == WHEN:
                weight = model[1].weight
                moment = optimizer.state[weight]["momentum_buffer"]
                flip(local_of(weight if options.where == "weight" else moment))


def shard(model: Any, mesh: Any, *, is_sharded: bool) -> None:
    """Shard the model over the workers of its replica, if it is to be."""
    if is_sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=mesh["shard"])


def flip(tensor: torch.Tensor) -> None:
    """Flip a bit of the last number, in the middle of its fraction."""
    tensor.view(torch.int32)[-1, -1] ^= 1 << 12


if __name__ == "__main__":
    main()
