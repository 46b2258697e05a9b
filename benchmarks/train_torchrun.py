"""The baseline script: DDP under torchrun, accumulating the micro-batches of a constant batch.

Written as its documentation recommends: it saves a checkpoint every few steps and loads the
newest one whenever torchrun (re)starts it.  Run by ``benchmarks.resize`` and
``benchmarks.startup``; must not know of pliant but for one call, with ``--events``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import TailLog
from benchmarks.model import Tokens, build, loss_of


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--slots", type=int, default=12)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--tails", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--events", action="store_true", help="save at an elastic event of pliant")
    return parser.parse_args()


def accumulate(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Run backward on every micro-batch; only the last one communicates."""
    for index, (x, y) in enumerate(batches):
        last = index == len(batches) - 1
        quiet: AbstractContextManager[None] = nullcontext()
        if not last and isinstance(model, DistributedDataParallel):
            quiet = model.no_sync()
        with quiet:
            loss = loss_of(model, x, y) / len(batches)
            loss.backward()  # type: ignore[no-untyped-call]


def _no_event() -> None:
    """Say of no event."""


def main() -> None:
    """Train until ``--steps`` are done, from the newest checkpoint if there is one."""
    chosen = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    plain = build()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-4)
    done = load(chosen.checkpoint, plain, optimizer)
    model = DistributedDataParallel(plain, gradient_as_bucket_view=True)
    data = Tokens(samples=4096, length=chosen.length)
    mine = range(rank * chosen.slots // size, (rank + 1) * chosen.slots // size)
    log = TailLog(chosen.tails) if rank == 0 else None
    elastic_event: Callable[[], Any] = _no_event
    if chosen.events:
        from pliant.restart.event import elastic_event
    for step in range(done, chosen.steps):
        first = step * chosen.slots
        batches = [batch(data, first + slot, chosen.micro_batch) for slot in mine]
        accumulate(model, batches)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if log is not None:
            log.write(step=step, size=size)
        event = elastic_event()
        if log is not None and chosen.checkpoint and (event or (step + 1) % chosen.every == 0):
            save(chosen.checkpoint, plain, optimizer, step + 1)
        if event:
            event.saved(step + 1, chosen.checkpoint)
            break
    dist.destroy_process_group()


def batch(data: Tokens, number: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return micro-batch ``number`` of the (endlessly repeated) data."""
    items = [data[(number * size + i) % len(data)] for i in range(size)]
    x, y = torch.utils.data.default_collate(items)
    return x, y


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, done: int) -> None:
    """Write a checkpoint that is whole or absent."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def load(path: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint if there is one; return the number of steps it holds."""
    if path is None or not path.exists():
        return 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["done"])


if __name__ == "__main__":
    main()
