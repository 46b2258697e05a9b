"""One worker of ``benchmarks.steady``: pliant and DDP take turns in the same process.

Owns the order of the turns and what is timed.  Every round is one step of pliant, then, in its
tail, one step of DDP accumulating the same micro-batches and one step of DDP with the rank's
samples as one batch.  A barrier goes before each turn.  What happens between two tails (reduction,
commit, optimizer, membership, data, ledger) is pliant's.  Run by ``pliant run`` only.
"""

from __future__ import annotations

import argparse
import inspect
import os
from pathlib import Path

import torch
import torch.distributed as dist

import pliant
from benchmarks.model import Tokens, build, loss_of
from benchmarks.steady_ddp import DDP, ONE_BATCH, PLAIN, Baseline, Stopwatch
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
    parser.add_argument("--device", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    return parser.parse_args()


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
    sides = {side: Baseline.build(chosen, data) for side in (DDP, ONE_BATCH)}
    if chosen.size == 1:
        sides[PLAIN] = Baseline.build(chosen, data, is_plain=True)
    where = sides[DDP].where
    pliant.seed(1)
    model = build().to(where)
    watch = Stopwatch(chosen.folder, rank, where)
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
                step.backward(loss_of(model, x.to(where), y.to(where)))
            watch.end(turn=turn, side="pliant")
            for side, baseline in sides.items():
                watch.begin()
                baseline.step(turn, one_batch=side == ONE_BATCH)
                watch.end(turn=turn, side=side)
            watch.begin()


if __name__ == "__main__":
    main()
