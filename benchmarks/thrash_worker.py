"""A small training whose steps take as long as their micro-batches wait.

For ``benchmarks.thrash``, ``stragglers`` and ``predict``, run by ``pliant run``.  Waiting instead
of computing lets four replicas be faster than two on any machine; what starting and resizing cost
is real.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import pliant
from benchmarks.model import Tokens
from pliant.engine.worker.bootstrap import worker_context
from pliant.recipes.gpt import GPT, GPTConfig, next_byte_loss

MICRO_BATCH = 2
LENGTH = 16


def main() -> None:
    """Train for ``--steps`` steps, and write down the digest of what came out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pace", type=float, required=True, help="seconds of a micro-batch")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument(
        "--demo", action="store_true", help="the model of pliant demo, not a tiny one"
    )
    parser.add_argument("--digest", type=Path)
    parser.add_argument("--slow", nargs=2, default=("", 1), help="a replica, and how many times")
    chosen = parser.parse_args()
    context = worker_context()
    is_slow = context is not None and context.replica == chosen.slow[0]
    pace_s = chosen.pace * (float(chosen.slow[1]) if is_slow else 1.0)
    pliant.seed(1)
    tiny = GPTConfig(width=32, layers=2, heads=2, context=LENGTH)
    model = GPT(GPTConfig() if chosen.demo else tiny)
    with pliant.Session(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4),
        dataset=Tokens(samples=1024, length=LENGTH),
        global_batch_size=chosen.slots * MICRO_BATCH,
        micro_batch_size=MICRO_BATCH,
        max_grad_norm=1.0,
    ) as session:
        for step in session.steps(chosen.steps):
            for x, y in step:
                time.sleep(pace_s)
                step.backward(next_byte_loss(model(x), y))
        if chosen.digest and session.leader:
            chosen.digest.write_text(session.state_digest())


if __name__ == "__main__":
    main()
