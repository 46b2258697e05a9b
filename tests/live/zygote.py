"""A zygote: a process that has imported what a job imports by and by, and forks stages.

    test ==socket== zygote --> stage --> program --> fork server --> workers

    python -m tests.live.zygote [torch]     a socket comes over stdin for every stage

One that has torch is larger, and what is forked from it begins later.

A *stage* belongs to one test.  It forks programs, adopts whatever these leave behind, and takes all
along when it ends.  Records of JSON over the socket that the test holds the other end of:

    -> {"number": 1, "words": [...], "cwd": PATH, "environment": {...}, "out": PATH, "err": PATH,
        "host": null}                                    or a process whose namespaces it enters
    <- {"number": 0, "pid": 4710}                        the stage itself is there
    <- {"number": 1, "pid": 4711}, and later {"number": 1, "code": 0}

When that end is closed, everything that lives on the stage is killed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tests.live import forking
from tests.live.stage import MAX_RECORD_BYTES

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


def serve(*, has_torch: bool) -> None:
    """Fork a stage for every socket that comes over stdin, until that is closed."""
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
                forking.fork(lambda control=control: _be_stage(control))  # type: ignore[misc]


def _be_stage(control: socket.socket) -> None:
    """Become the parent of everything below that loses its own, and serve the test."""
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    adopt_orphans()
    StageServer(control).play()


class StageServer:
    """The programs of one test."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._programs: dict[int, int] = {}
        """Their process ids, and the numbers that the test gave them."""

        self._child_r, child_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(child_w, warn_on_full_buffer=False)

    def play(self) -> None:
        """Serve the test until it is gone, or has what it wanted."""
        self._say(number=0, pid=os.getpid())
        watched: list[Any] = [self._control, self._child_r]
        while True:
            ready, _, _ = select.select(watched, [], [])
            if self._child_r in ready:
                os.read(self._child_r, 4096)
                self._bury()
            if self._control in ready:
                data = self._control.recv(MAX_RECORD_BYTES)
                if not data:
                    break
                self._start(**json.loads(data))
        forking.end_children()

    def _start(self, number: int, **program: Any) -> None:
        pid = forking.fork(lambda: forking.run(**program))
        self._programs[pid] = number
        self._say(number=number, pid=pid)

    def _bury(self) -> None:
        """Bury all who have ended, adopted ones included."""
        for pid, status in forking.buried():
            if pid in self._programs:
                code = os.waitstatus_to_exitcode(status)
                self._say(number=self._programs.pop(pid), code=code)

    def _say(self, **record: int) -> None:
        with contextlib.suppress(OSError):  # the test is gone, as the next look at its socket tells
            self._control.send(json.dumps(record).encode())


if __name__ == "__main__":
    serve(has_torch="torch" in sys.argv[1:])
