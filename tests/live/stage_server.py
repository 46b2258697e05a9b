"""The other end of a forked stage: forks programs, and takes them along when it ends.

Records of JSON over the socket that the test holds the other end of:

    -> {"number": 1, "words": [...], "cwd": PATH, "environment": {...}, "out": PATH, "err": PATH,
        "host": null}                                    or a process whose namespaces it enters
    <- {"number": 0, "pid": 4710}                        the stage itself is there
    <- {"number": 1, "pid": 4711}, and later {"number": 1, "code": 0}

When that end is closed, everything that lives on the stage is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from typing import Any

from tests.live import forking
from tests.live.stage import MAX_RECORD_BYTES


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


def play(control: socket.socket) -> None:
    """Serve the test at the other end."""
    StageServer(control).play()
