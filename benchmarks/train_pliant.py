"""The same training as ``train_torchrun``, under pliant; it needs no checkpoint code.

Run by ``benchmarks.resize`` and ``benchmarks.startup``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import pliant
from benchmarks.harness import TailLog
from benchmarks.model import Tokens, build, loss_of
from pliant.engine.comm.windows import Address, WindowCache, WindowError, WindowView


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--slots", type=int, default=12)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--reduction", default="exact")
    parser.add_argument("--tails", type=Path, required=True)
    parser.add_argument("--flat", action="store_true", help="every member for itself")
    return parser.parse_args()


def _refuse(_: object, address: Address) -> WindowView:
    raise WindowError(f"{address.pid} is not mapped: all use their sockets")


def main() -> None:
    """Train for ``--steps`` steps, however many replicas there are."""
    chosen = options()
    if chosen.flat:  # as where windows of another host kept all from using theirs
        WindowCache.map = _refuse  # type: ignore[method-assign, assignment]
    pliant.seed(1)
    model = build()
    log = TailLog(chosen.tails)
    with pliant.Session(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4),
        dataset=Tokens(samples=4096, length=chosen.length),
        global_batch_size=chosen.slots * chosen.micro_batch,
        micro_batch_size=chosen.micro_batch,
        max_grad_norm=1.0,
        reduction=chosen.reduction,
    ) as session:
        for step in session.steps(chosen.steps):
            for x, y in step:
                step.backward(loss_of(model, x, y))
            log.write(step=step.index)


if __name__ == "__main__":
    main()
