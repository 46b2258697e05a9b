"""Start the processes of a benchmark, each with a store server that all know."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from pliant.engine.groups import StoreServer


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
