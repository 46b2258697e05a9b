"""A zygote: a process that has imported what a job imports by and by, and forks stages.

    test ==socket== zygote --> stage --> program --> fork server --> workers

A *stage* belongs to one test.  It adopts whatever its programs leave behind, so that it can tell.
Knows nothing of what a stage does: that is the ``play`` of the module it is started with.

    python -m tests.live.zygote MODULE [torch]     a socket comes over stdin for every stage

One that has torch is larger, and what is forked from it begins later.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from tests.live import forking

from pliant.engine.worker import fork_server
from pliant.machine.processes import adopt_orphans

_LAZY = (
    "pliant.run.separate",
    "pliant.cli.main",
    "pliant.run.local",
    "pliant.cli.start",
    "pliant.run.pool_claim",
    "pliant.cli.top",
    "pliant.pool.app",
    "pliant.coordinator.app",
    "pliant.coordinator.driver",
    "pliant.http.server",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.websockets.auto",
    "websockets.asyncio.client",
)
"""What a job, a pool or a claim would import by and by."""


def serve(play: Callable[[socket.socket], object], *, has_torch: bool) -> None:
    """Fork ``play`` for every socket that comes over stdin, until that is closed."""
    for name in (*_LAZY, *(fork_server.WARM_MODULES if has_torch else ())):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # pages stay shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a stage has ended
    with socket.socket(fileno=os.dup(0)) as tests:
        while True:
            data, fds, _, _ = socket.recv_fds(tests, 1, 1)
            if not data:
                return
            with socket.socket(fileno=fds[0]) as control:
                forking.fork(lambda control=control: _be_stage(play, control))  # type: ignore[misc]


def _be_stage(play: Callable[[socket.socket], object], control: socket.socket) -> None:
    """Become the parent of everything below that loses its own, and play."""
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    adopt_orphans()
    play(control)


if __name__ == "__main__":
    serve(importlib.import_module(sys.argv[1]).play, has_torch="torch" in sys.argv[2:])
