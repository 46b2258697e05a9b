"""The baseline of ``benchmarks.steady``: DDP, beside pliant, and alone as torchrun starts it.

Owns what a step of DDP is, and how a turn is timed.  As a script it is one worker of a job of its
own, to which nobody gives what the agent of pliant gives to its workers: glibc returns freed memory
to the kernel, as it does for users.  Must not know of pliant.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.model import Tokens, build
from benchmarks.train_torchrun import accumulate, batch

ALONE = "ddp, as torchrun starts it"
"""How turns of a job of its own are called."""

DDP, ONE_BATCH, PLAIN = "ddp", "ddp, one batch", "a plain loop"
"""How the other turns are called; a plain loop is there for one rank."""


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, required=True)
    return parser.parse_args()


def device_of(chosen: argparse.Namespace) -> torch.device:
    """Return where this worker computes: the first device that it sees."""
    return torch.device("cpu") if chosen.device == "cpu" else torch.device(chosen.device, 0)


class Stopwatch:
    """Writes wall and CPU time (all threads) of one turn at a time."""

    def __init__(self, folder: Path, rank: int, where: torch.device | None = None) -> None:
        """``where``: an accelerator, whose work is part of a turn; None: there is none."""
        self._file = (folder / f"rank{rank}.turns").open("w", buffering=1)
        self._began = (0.0, 0.0)
        self._where = where if where is not None and where.type != "cpu" else None

    def begin(self) -> None:
        """Start a turn once all ranks are here."""
        self._settle()
        dist.barrier()
        self._began = (time.perf_counter(), time.process_time())

    def end(self, *, turn: int, side: str) -> None:
        """Finish the turn and write it down."""
        self._settle()
        wall_s = time.perf_counter() - self._began[0]
        cpu_s = time.process_time() - self._began[1]
        record = {"turn": turn, "side": side, "wall_s": wall_s, "cpu_s": cpu_s}
        self._file.write(json.dumps(record) + "\n")

    def _settle(self) -> None:
        if self._where is not None:
            torch.accelerator.synchronize(self._where)


@dataclass(slots=True, kw_only=True)
class Baseline:
    """DDP on this rank's share of the same slots, or a plain loop over it."""

    model: nn.Module
    where: torch.device
    optimizer: torch.optim.Optimizer
    data: Tokens
    slots: int
    micro_batch: int

    @classmethod
    def build(cls, chosen: argparse.Namespace, data: Tokens, *, is_plain: bool = False) -> Baseline:
        """Build model and optimizer; every rank must call."""
        torch.manual_seed(1)
        where = device_of(chosen)
        plain = build().to(where)
        return cls(
            model=plain
            if is_plain
            else DistributedDataParallel(plain, gradient_as_bucket_view=True),
            where=where,
            optimizer=torch.optim.AdamW(plain.parameters(), lr=3e-4),
            data=data,
            slots=chosen.slots,
            micro_batch=chosen.micro_batch,
        )

    def step(self, number: int, *, one_batch: bool) -> None:
        """Do one optimizer step on the slots of this rank; every rank must call."""
        rank, size = dist.get_rank(), dist.get_world_size()
        share = self.slots // size
        first = number * self.slots + rank * share
        if one_batch:
            whole = share * self.micro_batch
            batches = [batch(self.data, first // share, whole)]
        else:
            batches = [batch(self.data, first + slot, self.micro_batch) for slot in range(share)]
        accumulate(self.model, [(x.to(self.where), y.to(self.where)) for x, y in batches])
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    """Do all rounds."""
    chosen = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    baseline = Baseline.build(chosen, Tokens(samples=4096, length=chosen.length))
    watch = Stopwatch(chosen.folder, dist.get_rank(), baseline.where)
    for turn in range(chosen.rounds):
        watch.begin()
        baseline.step(turn, one_batch=False)
        watch.end(turn=turn, side=ALONE)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
