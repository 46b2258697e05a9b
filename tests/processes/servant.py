"""Speaks to a fork server of its own, as an agent does, one request after the other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from pliant.core.values import Incarnation, ReplicaId, TlsFiles
from pliant.wire.codec import WORKER_EVENTS, WORKER_NOTES, Envelope, Message, decode
from pliant.wire.framing import Unframer
from pliant.wire.launch import (
    REPORTS,
    REQUESTS,
    Assignment,
    Report,
    Request,
    ServerReady,
    StartWorker,
    WorkerExited,
    WorkerStarted,
)
from pliant.wire.messages import Work

DEADLINE_S = 30.0
READY_S = 120.0
"""Until a fork server has imported torch, where several do at a time."""

COLD_SERVER = Path(__file__).with_name("cold_server.py")


class Worker:
    """One started worker: its process id, and the agent's ends of its socket and output."""

    def __init__(self, pid: int, control: socket.socket, output: BinaryIO) -> None:
        self.pid = pid
        self.control = control
        self._output = output

    def close(self) -> None:
        """Close the agent's ends; the worker then ends itself."""
        self.control.close()
        self._output.close()

    def said(self) -> str:
        """Return everything it prints; waits until nobody holds its output any more."""
        return self._output.read().decode()

    def line(self) -> str:
        """Return the next line that it prints."""
        return self._output.readline().decode()

    def messages(self) -> list[Message]:
        """Return everything it tells its agent until it ends."""
        unframer, found = Unframer(), []
        while data := self.control.recv(65536):
            for frame in unframer.feed(data):
                envelope = decode(frame, WORKER_EVENTS | WORKER_NOTES)
                assert isinstance(envelope, Envelope)
                found.append(envelope.message)
        return found


class Servant:
    """The agent's end of a fork server."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process = process
        self.sock = sock
        self._workers: list[Worker] = []

    def close(self) -> None:
        """Close what tests left open."""
        for worker in self._workers:
            worker.close()

    def ask(self, request: Request, fds: list[int] | None = None) -> None:
        socket.send_fds(self.sock, [REQUESTS.dump_json(request)], fds or [])

    def report(self) -> Report | None:
        """Return the next report; ``None`` if the server is gone."""
        data = self.sock.recv(1 << 17)
        return REPORTS.validate_json(data) if data else None

    def start(self, cwd: Path, *command: str, **how: Any) -> Worker:
        """Start a worker; return it once it has a process."""
        control, output = self.ask_to_start(cwd, *command, **how)
        started = self.report()
        assert isinstance(started, WorkerStarted)
        self._workers.append(Worker(started.pid, control, output))
        return self._workers[-1]

    def ask_to_start(
        self,
        cwd: Path,
        *command: str,
        name: str = "r1",
        device: int | None = None,
        device_names: tuple[str, ...] = (),
        tls: TlsFiles | None = None,
        place: int = 0,
        workers: int = 1,
        inner: str = "",
        **more: Any,
    ) -> tuple[socket.socket, BinaryIO]:
        """Ask for a worker; return the ends of its socket and output that are the agent's."""
        ours, theirs = socket.socketpair()
        ours.settimeout(DEADLINE_S)
        read_end, write_end = os.pipe()
        assignment = Assignment(
            replica=ReplicaId(name),
            work=Work(
                job="j", command=command, cwd=str(cwd), out=str(cwd / "out"), tls=tls, **more
            ),
            address="127.0.0.1",
            incarnation=Incarnation(3),
            device=device,
            device_names=device_names,
            locks=str(cwd),
            place=place,
            workers_per_replica=workers,
            inner=inner,
        )
        self.ask(StartWorker(assignment=assignment), [theirs.fileno(), write_end, write_end])
        theirs.close()
        os.close(write_end)
        return ours, os.fdopen(read_end, "rb")

    def exit(self) -> WorkerExited:
        report = self.report()
        assert isinstance(report, WorkerExited)
        return report


@contextmanager
def starting_server(*arguments: str, **environment: str) -> Iterator[Servant]:
    """Start a fork server that is not ready yet; it is gone at the end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(READY_S)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, *(arguments or (str(COLD_SERVER),)), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
        )
    with ours:
        servant = Servant(process, ours)
        try:
            yield servant
        finally:
            servant.close()
            servant.sock.close()
            process.wait(DEADLINE_S)


@contextmanager
def fork_server(*arguments: str, **environment: str) -> Iterator[Servant]:
    """Start a fork server and wait until it is ready; it is gone at the end."""
    with starting_server(*arguments, **environment) as servant:
        assert isinstance(servant.report(), ServerReady)
        servant.sock.settimeout(DEADLINE_S)
        yield servant


_shared: Servant | None = None


@contextmanager
def shared() -> Iterator[None]:
    """Let one fork server start the workers of all that is ``run`` meanwhile, as an agent has."""
    global _shared
    with fork_server() as _shared:
        try:
            yield
        finally:
            _shared = None


def run(
    cwd: Path,
    *command: str,
    device: int | None = None,
    tls: TlsFiles | None = None,
    **environment: str,
) -> tuple[int, str, list[Any]]:
    """Run one worker to its end; return its exit code, output and messages.

    With an environment of its own, or where none is ``shared``, by a fork server of its own.
    """
    global _shared
    common = None if environment else _shared
    _shared = None if common is not None else _shared  # one that fails leaves it to nobody
    with fork_server(**environment) if common is None else nullcontext(common) as servant:
        worker = servant.start(cwd, *command, device=device, tls=tls)
        messages = worker.messages()
        said = worker.said()
        returncode = servant.exit().returncode
    _shared = common or _shared
    return returncode, said, messages
