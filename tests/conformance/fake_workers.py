"""A fork server whose workers are fakes: they say what a test lets them say, and keep what they
hear.

It is in the agent's own process, behind the socket of records and the socket pairs that a real one
has; the agent sees no difference.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from pliant.core.values import Incarnation, ReplicaId
from pliant.wire import launch
from pliant.wire.codec import COMMANDS, Envelope, Message, decode, encode
from pliant.wire.framing import Unframer, frame

PIDS = itertools.count(1 << 23)
"""Numbers that no process has: the kernel goes up to 2**22."""


class FakeWorker:
    """The other end of what an agent holds of a worker."""

    def __init__(self, pid: int, fds: list[int]) -> None:
        self.pid = pid
        self.heard: deque[Envelope] = deque()
        """What it was told and nobody has looked at yet."""

        self.shows_life = False
        """What the agent finds when it looks at the process."""

        self._socket = socket.socket(fileno=fds[0])
        self._socket.setblocking(False)
        self._printed = fds[1:]
        self._unframer = Unframer()
        asyncio.get_running_loop().add_reader(self._socket, self._readable)

    def say(self, *messages: Message) -> None:
        """Say something to the agent, all at once."""
        frames = (frame(encode(message, Incarnation(0))) for message in messages)
        self._socket.sendall(b"".join(frames))

    def close(self) -> None:
        """Close everything, as the kernel does for a process that is gone."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        for fd in self._printed:
            os.close(fd)

    def _readable(self) -> None:
        data = self._socket.recv(1 << 20)
        if not data:
            asyncio.get_running_loop().remove_reader(self._socket)
        for message in self._unframer.feed(data):
            envelope = decode(message, COMMANDS)
            assert isinstance(envelope, Envelope), envelope
            self.heard.append(envelope)


class FakeServer:
    """What ``launcher.start_server`` returns, and the fork server behind it."""

    def __init__(
        self, control: int, *, cwd: Path, environment: Mapping[str, str], output: IO[bytes]
    ) -> None:
        self.pid = next(PIDS)
        self.workers: dict[ReplicaId, FakeWorker] = {}
        """Those that live."""

        self.started: set[ReplicaId] = set()
        self.to_end: deque[ReplicaId] = deque()
        """Whose end was asked for, and nobody has looked at it yet."""

        self._socket: socket.socket | None = socket.socket(fileno=os.dup(control))
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._readable)
        self._report(launch.ServerReady(pid=self.pid))

    def exit(self, replica: ReplicaId, returncode: int) -> None:
        """Let a worker end, and report it."""
        worker = self.workers.pop(replica)
        worker.close()
        self._report(
            launch.WorkerExited(replica=replica, place=0, pid=worker.pid, returncode=returncode)
        )

    def poll(self) -> int | None:
        """Return 0 once the agent has hung up: all workers are reaped then."""
        self._readable()
        return None if self._socket else 0

    def wait(self) -> int:
        """Return how it ended; it has."""
        return 0

    def kill(self) -> None:
        """End it, with its workers."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()

    def _readable(self) -> None:
        while self._socket is not None:
            try:
                data, fds, _, _ = socket.recv_fds(
                    self._socket, launch.MAX_RECORD_BYTES, launch.NUM_START_FDS
                )
            except BlockingIOError:
                return
            except ConnectionResetError:
                data, fds = b"", []
            if data:
                self._obey(launch.REQUESTS.validate_json(data), fds)
            else:
                self.kill()

    def _obey(self, request: launch.Request, fds: list[int]) -> None:
        match request:
            case launch.StartWorker(assignment=assignment):
                name = assignment.replica
                self.started.add(name)
                self.workers[name] = worker = FakeWorker(next(PIDS), fds)
                self._report(launch.WorkerStarted(replica=name, place=0, pid=worker.pid))
            case launch.KillReplica(replica=replica):
                self.to_end.append(replica)
            case launch.GuardFiles():
                pass

    def _report(self, report: launch.Report) -> None:
        if self._socket is not None:
            self._socket.send(launch.REPORTS.dump_json(report))
