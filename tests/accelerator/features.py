"""Train features of the catalogue on the CPU and on the test accelerator, in this process.

    python -m tests.accelerator.features [--every N]

Says per feature, as a line of JSON, how the two differ; nothing if they have the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tests.accelerator import sim
from tests.features import catalogue, feature
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

import pliant
from pliant.engine import session as sessions

STEPS = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="train one of so many")
    every = parser.parse_args().every
    warnings.simplefilter("ignore")
    sim.install()
    for each in trained()[::every]:
        sys.stdout.write(json.dumps({each.name: difference(each)}) + "\n")
        sys.stdout.flush()
    os._exit(0)


def trained() -> list[feature.Feature]:
    """Return the features that are trained, each once."""
    rows = {row.name: row for job in catalogue.JOBS.values() for row in job if row.build}
    return list(rows.values())


def difference(row: feature.Feature) -> str:
    """Return what is not as on the CPU."""
    try:
        on_host = digest(row, "cpu")
        on_device = digest(row, "sim")
    except Exception as error:
        sessions._live = None
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    return "" if on_host == on_device else "other bits"


def digest(row: feature.Feature, device: str) -> str:
    def moved(part: Any) -> Any:
        return part.to(device) if isinstance(part, torch.Tensor) else part

    block = feature.built(row)
    block.model.to(device)
    for optimizer in block.optimizers:
        prepare(optimizer, moved)
    pliant.seed(feature.SEED)
    with sdpa_kernel(SDPBackend.MATH), block.session() as session:
        for step in session.steps(STEPS):
            for batch in step:
                loss = block.compute(tree_map(moved, batch))
                step.backward(loss, weight=block.weigh(batch))
            block.tail(step.index)
        return session.state_digest()


def prepare(optimizer: torch.optim.Optimizer, moved: Callable[[Any], Any]) -> None:
    """Move the state that there is already; take on both sides what torch takes on a device."""
    for parameter, state in optimizer.state.items():
        optimizer.state[parameter] = {
            key: moved(value) if torch.is_tensor(value) and value.dim() else value
            for key, value in state.items()
        }
    for group in optimizer.param_groups:
        is_open = group.get("foreach", False) is None and not group.get("fused")
        if is_open and not torch.is_tensor(group["lr"]):
            group["foreach"] = True


if __name__ == "__main__":
    main()
