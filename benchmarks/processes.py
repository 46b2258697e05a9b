"""Start the processes of a benchmark, each with a store server that all know."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from pliant.engine.groups.gloo import StoreServer
from pliant.engine.groups.group import Group


@dataclass
class Timings:
    """One variant: wall seconds per round, CPU seconds of all processes per round."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def interleave(
    group: Group, variants: dict[str, Callable[[], Any]], rounds: int
) -> dict[str, Timings]:
    """Run all variants in turn, ``rounds`` times after two to warm up; all ranks must call.

    CPU seconds are summed over all threads of all ranks: they tell what a busy machine hides.
    """
    timings = {name: Timings() for name in variants}
    for count in range(rounds + 2):
        for name, run in variants.items():
            group.all_gather(torch.zeros(1))
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            total = float(group.all_gather(torch.tensor([cpu], dtype=torch.float64)).sum())
            if count >= 2:
                timings[name].wall_s.append(wall)
                timings[name].cpu_s.append(total)
    group.all_gather(torch.zeros(1))
    return timings


def report(timings: dict[str, Timings]) -> None:
    """Print medians, and ratios to the first variant."""
    base = next(iter(timings.values()))
    for name, timing in timings.items():
        wall, cpu = statistics.median(timing.wall_s), statistics.median(timing.cpu_s)
        print(
            f"  {name:22} wall {wall * 1e3:7.1f} ms (min {min(timing.wall_s) * 1e3:.1f})"
            f" x{wall / statistics.median(base.wall_s):.2f}"
            f"   cpu {cpu * 1e3:7.1f} ms x{cpu / statistics.median(base.cpu_s):.2f}"
        )


def run_processes(size: int, function: Callable[..., None], *args: Any) -> None:
    """Run ``function(rank, endpoints, server, *args)`` in ``size`` processes; wait for all."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    processes = []
    for rank in range(size):
        mine, theirs = context.Pipe()
        process = context.Process(target=_start, args=(theirs, rank, function, args))
        process.start()
        pipes.append(mine)
        processes.append(process)
    endpoints = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(endpoints)
    for process in processes:
        process.join()


def _start(pipe: Any, rank: int, function: Callable[..., None], args: tuple[Any, ...]) -> None:
    server = StoreServer()
    pipe.send(server.endpoint)
    function(rank, pipe.recv(), server, *args)
