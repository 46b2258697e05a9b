"""The agent's side of its fork server: start it, ask it, hear from it, see it die.

Owns one child process and one socket of records.  Knows nothing of replicas beyond their names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from pliant.agent.rendezvous_directory import MeetingPlace, make_meeting_place, remove_abandoned
from pliant.machine.files import make_private_directory, open_private
from pliant.wire.launch import MAX_RECORD_BYTES, REPORTS, REQUESTS, GuardFiles, Report, Request

MAX_SERVER_LIVES = 2
"""Fork servers an agent starts in its life: a second death has a cause that a third would meet."""

SERVER_ARGUMENTS = ("-m", "pliant.engine.worker.fork_server")
"""What the interpreter is started with."""

FIXED_ENVIRONMENT = {
    # glibc gives memory back and faults it in again: up to 57,000 page faults a step.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
"""Read once, when a process starts; hence set here and not in the worker."""

DEFAULT_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""Set unless the user did: replicas must agree on the order of sets of strings."""

END_S = 8.0
"""Longest wait for a fork server to reap its workers and exit, in seconds; then SIGKILL."""


class ServerProcess(Protocol):
    """What is used of the process that a fork server is."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""

    def wait(self) -> int:
        """Wait until it has ended, and return how."""

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""


class StartServer(Protocol):
    """How the process of a fork server is started; returns at once."""

    def __call__(
        self, control: int, *, cwd: Path, environment: Mapping[str, str], output: IO[bytes]
    ) -> ServerProcess:
        """Start it with its end of the socket, and with files for what it prints."""


def start_server(
    control: int,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    output: IO[bytes],
    arguments: Sequence[str] = SERVER_ARGUMENTS,
) -> ServerProcess:
    """Start an interpreter, in a session of its own: Ctrl-C in the terminal ends the agent only."""
    return subprocess.Popen(  # noqa: S603  # our own module
        [sys.executable, *arguments, str(control)],
        cwd=cwd,
        env={**DEFAULT_ENVIRONMENT, **environment, **FIXED_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[control],
        start_new_session=True,
    )


class Launcher:
    """One fork server.  A second life is a second object."""

    def __init__(
        self,
        *,
        on_report: Callable[[Report], None],
        on_gone: Callable[[Launcher], None],
        start_server: StartServer = start_server,
    ) -> None:
        self._on_report = on_report
        self._on_gone = on_gone
        self._start_server = start_server
        self._process: ServerProcess | None = None
        self._socket: socket.socket | None = None
        self._waiting: deque[tuple[bytes, Sequence[int]]] = deque()
        self._closing = False
        self._is_ready = False
        self._meeting_place: MeetingPlace | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the fork server."""
        return self._process.pid if self._process else None

    def start(self, *, environment: Mapping[str, str], cwd: Path, log: Path) -> None:
        """Start the process; returns at once.  Its own output goes to the file ``log``."""
        remove_abandoned()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        make_private_directory(log.parent)
        with theirs, os.fdopen(open_private(log, os.O_WRONLY | os.O_APPEND), "ab") as output:
            self._process = self._start_server(
                theirs.fileno(), cwd=cwd, environment=environment, output=output
            )
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours, self._readable)

    def meeting_place(self) -> Path:
        """Return the directory of the replicas that have several workers; made when it is needed.

        The fork server hears of it before of them, and removes it if this process is killed: what
        is still queued then, nobody knows of.

        Raises:
            OSError: there is no place for it.
        """
        if self._meeting_place is None:
            self._meeting_place = make_meeting_place()
            self.ask(GuardFiles(paths=(str(self._meeting_place.path),)))
        return self._meeting_place.path

    def ask(self, request: Request, fds: Sequence[int] = ()) -> None:
        """Send a request with the files it needs; they are closed here once they were sent."""
        self._waiting.append((REQUESTS.dump_json(request), fds))
        self._flush()

    async def close(self) -> None:
        """Let the fork server reap its workers and exit; kill it if it does not."""
        self._closing = True
        self._hang_up()
        process = self._process
        if process is None:
            return
        if not self._is_ready:
            self.kill()  # it imports, has no workers yet, and would not look up for seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                while process.poll() is None:
                    await asyncio.sleep(0.02)
        if process.poll() is None:
            process.kill()
            await asyncio.to_thread(process.wait)
        if self._meeting_place is not None:
            self._meeting_place.remove()
            self._meeting_place = None

    def kill(self) -> None:
        """End the fork server, and through the kernel its workers, at once."""
        if self._process is not None:
            self._process.kill()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and self._socket is not None:
            data, fds = self._waiting[0]
            try:
                socket.send_fds(self._socket, [data], list(fds))
            except BlockingIOError:
                loop.add_writer(self._socket, self._flush)
                return
            except OSError:
                break  # it is gone; the reader says so
            self._waiting.popleft()
            _close_all(fds)
        if self._socket is not None:
            loop.remove_writer(self._socket)

    def _readable(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(MAX_RECORD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._is_ready = True
            self._on_report(REPORTS.validate_json(data))
            return
        self._hang_up()
        if not self._closing:
            self._on_gone(self)

    def _hang_up(self) -> None:
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.remove_writer(self._socket)
        self._socket.close()
        self._socket = None
        for _, fds in self._waiting:
            _close_all(fds)
        self._waiting.clear()


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
