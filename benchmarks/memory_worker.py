"""How many gradient copies are alive at a worker's peak; run by ``benchmarks.steady``.

Owns the counting: bytes of tensors that live outside of model, optimizer and data before a step,
plus what the profiler sees allocated and freed until the optimizer runs.  Of shared memory that of
the worker's own window counts, as far as it is in use.  One sample of one token per micro-batch
makes activations negligible.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import pliant
from benchmarks.model import Tokens, build, loss_of
from benchmarks.transports import TRANSPORTS, use
from pliant.core.step import batching
from pliant.engine.local_tensors import is_sharded

WATCHED_STEP = 4


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--reduction", required=True)
    parser.add_argument("--transport", choices=TRANSPORTS, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    return parser.parse_args()


def live_bytes(known: Iterable[torch.Tensor]) -> int:
    """Return the bytes of all tensors' storages but the known ones'."""
    seen = {tensor.untyped_storage().data_ptr() for tensor in known} | mapped_windows()
    total = window_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some objects warn when looked at
        for thing in gc.get_objects():
            if not isinstance(thing, torch.Tensor) or is_sharded(thing):
                continue  # of what is sharded the part that lies here is a tensor, too
            storage = thing.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
    return total


def mapped_windows() -> set[int]:
    """Return where windows begin in memory, the other workers' included."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {int(line.partition("-")[0], 16) for line in lines if "pliant-window" in line}


def window_bytes() -> int:
    """Return how much memory this worker's window has been given so far."""
    return sum(
        path.stat().st_blocks * 512
        for path in Path("/proc/self/fd").iterdir()
        if path.is_symlink() and "pliant-window" in str(path.readlink())
    )


def peak_bytes(profiler: Any) -> int:
    """Return the highest sum of allocations since the profile began, before the optimizer."""
    events = sorted(
        profiler.profiler.kineto_results.events(), key=lambda event: int(event.start_ns())
    )
    live = highest = 0
    for event in events:
        if event.name().startswith("Optimizer.step"):
            break
        if event.name() == "[memory]":
            live += event.nbytes()
            highest = max(highest, live)
    return highest


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return what a replica holds whether or not it shares its work."""
    moments = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return [*model.parameters(), *model.buffers(), *moments]


def main() -> None:
    """Train a few steps, watch one of them."""
    chosen = options()
    use(chosen.transport, chosen.folder)
    pliant.seed(1)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    gradient = sum(p.numel() * p.element_size() for p in model.parameters())
    data = Tokens(samples=256, length=1)
    # Only this thread's memory shows; what the communication thread holds is counted before.
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    before = owned = 0
    with pliant.Session(
        model=model,
        optimizer=optimizer,
        dataset=data,
        global_batch_size=chosen.slots,
        micro_batch_size=1,
        max_grad_norm=1.0,
        reduction=chosen.reduction,
    ) as session:
        for step in session.steps(WATCHED_STEP + 2):
            if step.index == WATCHED_STEP:
                before = live_bytes([*state_of(model, optimizer), data.bytes])
                profiler.start()
            for x, y in step:
                step.backward(loss_of(model, x, y))
                owned += step.index == WATCHED_STEP
            if step.index == WATCHED_STEP:
                profiler.stop()
    peak = peak_bytes(profiler)
    record = {
        "owned": owned,
        "gradient": gradient,
        "before": before,
        "allocated": peak,
        "copies": (before + peak) / gradient,
        "formula": batching.peak_copies(chosen.slots, range(owned)),
    }
    (chosen.folder / f"{os.getpid()}.memory").write_text(json.dumps(record))


if __name__ == "__main__":
    main()
