"""The baselines of ``benchmarks.checkpoint``: DDP that saves with torch.distributed.checkpoint.

Owns both of its ways to save, as its documentation shows them: ``save`` blocks, ``async_save``
copies and writes in a thread, with a process group of its own.  Run by torchrun; must not know of
pliant.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.parallel import DistributedDataParallel

from benchmarks.checkpoint_course import Course, Saved, timed
from benchmarks.model import Tokens, build
from benchmarks.train_torchrun import accumulate, batch
from benchmarks.turns import Player


def options() -> argparse.Namespace:
    """Read the command line, of pliant's worker too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", required=True)
    parser.add_argument("--turns", type=Path, required=True, help="the driver's socket")
    parser.add_argument("--place", required=True, help="where checkpoints go: directory or URL")
    parser.add_argument("--params", required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    return parser.parse_args()


class Plain:
    """Saves model and optimizer; the newest checkpoint stays."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, place: str, *, is_async: bool
    ) -> None:
        self._model, self._optimizer, self._place = model, optimizer, place
        group: Any = dist.new_group(backend="gloo") if is_async else None
        self._group = group
        self._writing: Future[Any] | None = None
        self._newest = ""
        self._older: list[str] = []

    def save(self, committed: int) -> Saved:
        """Save; every rank must call.  Blocks as long as the way to save does."""
        began, cpu_s = time.perf_counter(), time.process_time()
        self._older += [self._newest] if self._newest else []
        self._newest = f"{self._place}/step-{committed:08d}"
        if self._group is None:
            state_dict_saver.save(self._state(), checkpoint_id=self._newest)
        else:
            writing = state_dict_saver.async_save(
                self._state(), checkpoint_id=self._newest, process_group=self._group
            )
            assert isinstance(writing, Future)
            self._writing = writing
        stall_s = time.perf_counter() - began
        return Saved(committed=committed, stall_s=stall_s, began_at=began, cpu_s=cpu_s)

    @property
    def is_settled(self) -> bool:
        """Whether the write is over.

        Raises:
            Exception: it failed.
        """
        if self._writing is not None and self._writing.done():
            self._writing.result()
            self._writing = None
        return self._writing is None

    def restore(self) -> float:
        """Read the newest checkpoint in place; every rank must call."""
        return timed(partial(state_dict_loader.load, self._state(), checkpoint_id=self._newest))

    def tidy(self) -> None:
        """Remove all but the newest checkpoint."""
        for older in self._older if dist.get_rank() == 0 else ():
            files, root = fsspec.core.url_to_fs(older)
            files.rm(root, recursive=True)
        self._older = []

    def _state(self) -> dict[str, Any]:
        model, optim = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optim": optim}


def main() -> None:
    """Train until the driver is gone."""
    chosen = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    plain = build(chosen.params)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-4)
    model = DistributedDataParallel(plain, gradient_as_bucket_view=True)
    data = Tokens(samples=4096, length=chosen.length)
    mine = range(rank * chosen.slots // size, (rank + 1) * chosen.slots // size)
    saving = Plain(plain, optimizer, chosen.place, is_async=chosen.side.endswith("async_save"))
    course = Course(player=Player(chosen.turns, chosen.side), saving=saving, every=chosen.every)
    committed = 0
    while True:
        course.boundary(committed)
        first = committed * chosen.slots
        accumulate(model, [batch(data, first + slot, chosen.micro_batch) for slot in mine])
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        committed += 1
        if committed % chosen.every == 0:
            course.saved(saving.save(committed))


if __name__ == "__main__":
    main()
