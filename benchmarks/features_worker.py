"""One worker of ``benchmarks.features``: pliant and plain PyTorch take turns in one process.

Owns the order of the turns.  Plain PyTorch is the usual loop of accumulated micro-batches: over
the bare model where there is one replica, over DDP where there are several.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import pliant
from benchmarks.steady_ddp import Stopwatch
from benchmarks.steady_worker import claim_rank
from benchmarks.workloads import Workload, workloads


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--feature", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--reduction", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    return parser.parse_args()


class Plain:
    """The same training as anybody would write it, on this rank's share of the slots."""

    def __init__(self, work: Workload, slots: int) -> None:
        size = dist.get_world_size()
        torch.manual_seed(1)
        bare = work.build()
        self.work = work
        self.share = slots // size
        self.model = bare
        if size > 1:
            self.model = DistributedDataParallel(
                bare, gradient_as_bucket_view=True, find_unused_parameters=work.unused
            )
        self.optimizer = work.optimizer(bare.parameters())
        self.scaler = work.scaler()
        self.batches = self._batches()

    def step(self) -> None:
        """Do one optimizer step; every rank must call."""
        for number in range(self.share):
            batch = next(self.batches)
            last = number == self.share - 1
            with self._quiet(last):
                loss = self.work.compute(self.model, batch) / self.share
                root = loss if self.scaler is None else self.scaler.scale(loss)
                root.backward()  # type: ignore[no-untyped-call]
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.work.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.work.clip)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()

    def _quiet(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        if last or not isinstance(self.model, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.model.no_sync()

    def _batches(self) -> Iterator[Any]:
        work = self.work
        while True:
            yield from DataLoader(
                work.dataset,
                batch_size=work.micro_batch,
                shuffle=True,
                num_workers=work.num_workers,
                drop_last=True,
            )


def main() -> None:
    """Take turns until all rounds are done."""
    chosen = options()
    torch.set_num_threads(1)
    rank = claim_rank(chosen.folder, chosen.size)
    meeting = f"file://{chosen.folder / 'meeting'}"
    meet = inspect.unwrap(dist.init_process_group)  # which a script of pliant is refused
    meet("gloo", init_method=meeting, rank=rank, world_size=chosen.size)
    work = workloads()[chosen.feature]
    plain = Plain(work, chosen.slots)
    pliant.seed(1)
    model = work.build()
    watch = Stopwatch(chosen.folder, rank)
    with pliant.Session(
        model=model,
        optimizer=work.optimizer(model.parameters()),
        dataset=work.dataset,
        global_batch_size=chosen.slots * work.micro_batch,
        micro_batch_size=work.micro_batch,
        max_grad_norm=work.clip,
        scaler=work.scaler(),
        num_workers=work.num_workers,
        reduction=chosen.reduction,
        **work.more,
    ) as session:
        watch.begin()
        for turn, step in enumerate(session.steps(chosen.rounds)):
            for batch in step:
                step.backward(work.compute(model, batch))
            watch.end(turn=turn, side="pliant")
            watch.begin()
            plain.step()
            watch.end(turn=turn, side="plain")
            watch.begin()


if __name__ == "__main__":
    main()
