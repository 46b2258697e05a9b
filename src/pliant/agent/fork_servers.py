"""The fork server of an agent: start it, ask it, hear from it, see it die, and start another one.

Owns one child process at a time and a socket of records to it.  A server that dies takes its
workers with it; after a second death none is started any more.  Knows nothing of replicas beyond
their names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pliant.agent.launcher import ServerProcess, start_restart_server
from pliant.agent.node_facts import AgentConfig
from pliant.agent.rendezvous_directory import MeetingPlace, make_meeting_place, remove_abandoned
from pliant.core.values import Mode
from pliant.machine import run_files
from pliant.machine.files import make_private_directory, open_private
from pliant.wire.launch import MAX_RECORD_BYTES, REPORTS, REQUESTS, GuardFiles, Report, Request
from pliant.wire.messages import Work

MAX_SERVER_LIVES = 2
"""Fork servers an agent starts in its life: a second death has a cause that a third would meet."""

END_S = 8.0
"""Longest wait for a fork server to reap its workers and exit, in seconds; then SIGKILL."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Server:
    """One that was started."""

    process: ServerProcess
    socket: socket.socket
    waiting: deque[tuple[bytes, Sequence[int]]] = field(default_factory=deque)
    """Requests that were not sent yet, with the files that they need."""

    is_ready: bool = False
    meeting_place: MeetingPlace | None = None


class ForkServers:
    """Nothing until ``start``; ``close`` once, at the end."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_report: Callable[[Report], None],
        on_death: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        """``on_death``: the workers of a server are gone; ``on_end``: before that, if no other
        will be started, and why.
        """
        self._config = config
        self._spawn = spawn
        self._on_report = on_report
        self._on_death = on_death
        self._on_end = on_end
        self._work: Work | None = None
        self._server: _Server | None = None
        self._dead: list[_Server] = []
        self._lives = 0
        self._is_guarding = False

    @property
    def may_start(self) -> bool:
        """Whether there is one that can be asked for workers."""
        return self._server is not None

    def start(self, work: Work) -> None:
        """Start one, which imports for a second or two; returns at once."""
        self._work = work
        self._lives += 1
        remove_abandoned()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        log = Path(work.out) / run_files.LOGS / "forkserver.log"
        make_private_directory(log.parent)
        with theirs, os.fdopen(open_private(log, os.O_WRONLY | os.O_APPEND), "ab") as output:
            is_restarting = work.mode is Mode.RESTART
            start = start_restart_server if is_restarting else self._config.start_server
            process = start(
                theirs.fileno(),
                cwd=Path(work.cwd),
                environment=self._config.environment,
                output=output,
            )
        self._server = _Server(process, ours)
        asyncio.get_running_loop().add_reader(ours, self._readable, self._server)
        if self._is_guarding:
            self.guard()

    def guard(self) -> None:
        """Tell the server, and each after it, which files to remove if this process is killed.

        Once they are there: what lies there before may be another's.
        """
        self._is_guarding = True
        self.ask(GuardFiles(paths=tuple(map(str, self._config.guarded))))

    def ask(self, request: Request, fds: Sequence[int] = ()) -> None:
        """Send a request with the files it needs; they are closed here once they were sent.

        Without a server it is lost.
        """
        if self._server is not None:
            self._server.waiting.append((REQUESTS.dump_json(request), fds))
            _flush(self._server)

    def meeting_place(self) -> Path:
        """Return the directory of the replicas that have several workers; made when it is needed.

        The fork server hears of it before of them, and removes it if this process is killed: what
        is still queued then, nobody knows of.

        Raises:
            OSError: there is no place for it, or no server.
        """
        if self._server is None:
            raise OSError("its agent has failed")
        if self._server.meeting_place is None:
            made = self._server.meeting_place = make_meeting_place()
            self.ask(GuardFiles(paths=(str(made.path),)))
        return self._server.meeting_place.path

    def give_up(self) -> None:
        """Start no other one."""
        self._lives = MAX_SERVER_LIVES

    async def close(self) -> None:
        """Let the server reap its workers and exit; wait until all are gone."""
        server, self._server = self._server, None
        if server is not None:
            await _end(server)
        for dead in self._dead:
            await _end(dead)

    def _readable(self, server: _Server) -> None:
        try:
            data = server.socket.recv(MAX_RECORD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            server.is_ready = True
            self._on_report(REPORTS.validate_json(data))
            return
        _hang_up(server)
        self._on_gone(server)

    def _on_gone(self, server: _Server) -> None:
        """The fork server died: so did its workers.  Try once more."""
        _log.warning("the fork server %s died", server.process.pid)
        self._dead.append(server)
        server.process.kill()  # it may only have closed its socket
        self._spawn(_end(server))
        if self._lives >= MAX_SERVER_LIVES or self._work is None:
            self._server = None
            self._on_end("the fork server died; see logs/forkserver.log")
        else:
            self.start(self._work)
        self._on_death()


def _flush(server: _Server) -> None:
    loop = asyncio.get_running_loop()
    while server.waiting:
        data, fds = server.waiting[0]
        try:
            socket.send_fds(server.socket, [data], list(fds))
        except BlockingIOError:
            loop.add_writer(server.socket, _flush, server)
            return
        except OSError:
            break  # it is gone; the reader says so
        server.waiting.popleft()
        _close_all(fds)
    loop.remove_writer(server.socket)


def _hang_up(server: _Server) -> None:
    """Ask nothing more; a second call does nothing."""
    if server.socket.fileno() < 0:
        return
    loop = asyncio.get_running_loop()
    loop.remove_reader(server.socket)
    loop.remove_writer(server.socket)
    server.socket.close()
    for _, fds in server.waiting:
        _close_all(fds)
    server.waiting.clear()


async def _end(server: _Server) -> None:
    """Let a server reap its workers and exit; kill it if it does not."""
    _hang_up(server)
    process = server.process
    if not server.is_ready:
        process.kill()  # it imports, has no workers yet, and would not look up for seconds
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            while process.poll() is None:
                await asyncio.sleep(0.02)
    if process.poll() is None:
        process.kill()
        await asyncio.to_thread(process.wait)
    if server.meeting_place is not None:
        server.meeting_place.remove()
        server.meeting_place = None


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
