"""One worker of ``benchmarks.steady``: pliant and DDP take turns in the same process.

Owns the order of the turns and what is timed.  Every round is one step of pliant, then, in its
tail, one step of DDP accumulating the same micro-batches and one step of DDP with the rank's
samples as one batch.  A barrier goes before each turn.  What happens between two tails (reduction,
commit, optimizer, membership, data, ledger) is pliant's.  Run by ``pliant run`` only.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from benchmarks.model import Tokens, build, loss_of
from benchmarks.train_torchrun import accumulate, batch
from benchmarks.transports import TRANSPORTS, use


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--reduction", required=True)
    parser.add_argument("--transport", choices=TRANSPORTS, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    return parser.parse_args()


class Stopwatch:
    """Writes wall and CPU time (all threads) of one turn at a time."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = (folder / f"rank{rank}.turns").open("w", buffering=1)
        self._began = (0.0, 0.0)

    def begin(self) -> None:
        """Start a turn once all ranks are here."""
        dist.barrier()
        self._began = (time.perf_counter(), time.process_time())

    def end(self, *, turn: int, side: str) -> None:
        """Finish the turn and write it down."""
        wall_s = time.perf_counter() - self._began[0]
        cpu_s = time.process_time() - self._began[1]
        record = {"turn": turn, "side": side, "wall_s": wall_s, "cpu_s": cpu_s}
        self._file.write(json.dumps(record) + "\n")


@dataclass(slots=True, kw_only=True)
class Baseline:
    """DDP on this rank's share of the same slots."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    data: Tokens
    slots: int
    micro_batch: int

    @classmethod
    def build(cls, chosen: argparse.Namespace, data: Tokens) -> Baseline:
        """Build model and optimizer; every rank must call."""
        torch.manual_seed(1)
        plain = build()
        return cls(
            model=DistributedDataParallel(plain, gradient_as_bucket_view=True),
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
        accumulate(self.model, batches)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def claim_rank(folder: Path, size: int) -> int:
    """Take the first free rank; workers of pliant do not know one before they train."""
    for rank in range(size):
        try:
            os.close(os.open(folder / f"rank{rank}.claimed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return rank
    raise RuntimeError(f"more than {size} workers were started")


def main() -> None:
    """Take turns until all rounds are done."""
    chosen = options()
    torch.set_num_threads(1)
    use(chosen.transport, chosen.folder)
    rank = claim_rank(chosen.folder, chosen.size)
    meeting = f"file://{chosen.folder / 'meeting'}"
    meet = inspect.unwrap(dist.init_process_group)  # which a script of pliant is refused
    meet("gloo", init_method=meeting, rank=rank, world_size=chosen.size)
    data = Tokens(samples=4096, length=chosen.length)
    baseline = Baseline.build(chosen, data)
    pliant.seed(1)
    model = build()
    watch = Stopwatch(chosen.folder, rank)
    with pliant.Session(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4),
        dataset=data,
        global_batch_size=chosen.slots * chosen.micro_batch,
        micro_batch_size=chosen.micro_batch,
        max_grad_norm=1.0,
        reduction=chosen.reduction,
    ) as session:
        watch.begin()
        for turn, step in enumerate(session.steps(chosen.rounds)):
            for x, y in step:
                step.backward(loss_of(model, x, y))
            watch.end(turn=turn, side="pliant")
            for side in ("ddp", "ddp, one batch"):
                watch.begin()
                baseline.step(turn, one_batch=side != "ddp")
                watch.end(turn=turn, side=side)
            watch.begin()


if __name__ == "__main__":
    main()
