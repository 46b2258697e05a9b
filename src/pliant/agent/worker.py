"""One worker as its agent sees it: a process, a control socket, two pipes.

Owns the descriptors of one process and what it said about its end.  Knows nothing of starting
processes (the launcher does), of the coordinator, or of the other workers of its replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pliant.agent.output import Output, OutputListener
from pliant.core.commands import Command
from pliant.core.events import OUT_OF_MEMORY, Exited, ExitKind, Finished, Progressed, Refused
from pliant.core.text import is_follower, worker_name
from pliant.core.values import NO_GENERATION, Incarnation, ReplicaId
from pliant.machine.files import RotatingFile
from pliant.machine.processes import LifeWatch, oom_kills, signal_name
from pliant.wire.codec import (
    FOLLOWER_NOTES,
    WORKER_EVENTS,
    WORKER_NOTES,
    Envelope,
    Message,
    Refusal,
    decode,
    encode,
)
from pliant.wire.framing import FrameError, Unframer, frame
from pliant.wire.messages import Ended

LAST_WORDS_S = 0.5
"""Longest wait for what a dead worker has told its agent, in seconds."""

LAST_LINES_S = 0.05
"""How long its exit waits for what it printed, in seconds: a reader likes the lines first."""

DRAIN_S = 1.0
"""Longest wait for everything it printed, in seconds; a grandchild may hold the pipe."""

LOOK_S = 0.5
"""Between two looks whether one that says nothing lives, in seconds; as often as it would."""

_MAY_SAY = WORKER_EVENTS | WORKER_NOTES
_MAY_SAY_AS_FOLLOWER = FOLLOWER_NOTES | {Progressed}


class Worker(asyncio.Protocol):
    """A worker from the request to start it until its exit was reported."""

    def __init__(
        self,
        replica: ReplicaId,
        *,
        on_message: Callable[[Message], None],
        on_refusal: Callable[[str, str], None],
        worker: int | None = None,
    ) -> None:
        """``worker``: its place among several of its replica, of which 0 speaks for it."""
        self.replica = replica
        self.worker = worker
        self.name = worker_name(replica, worker)
        self.silent_looks = 0
        """Looks in a row at which its process, once it has one, has not spoken nor shown life."""
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.is_end_requested = False
        """Somebody asked for its end, perhaps before it had a process."""
        self._on_message = on_message
        self._on_refusal = on_refusal
        self._may_say = _MAY_SAY_AS_FOLLOWER if is_follower(self.name) else _MAY_SAY
        self._unframer = Unframer()
        self._control: asyncio.WriteTransport | None = None
        self._control_ended = asyncio.Event()
        self._outputs: list[tuple[asyncio.ReadTransport, Output]] = []
        self._file: RotatingFile | None = None
        self._ended: Ended | None = None
        self._finished = False
        self._watch: LifeWatch | None = None
        self._progress = Progressed(
            replica=replica, generation=NO_GENERATION, committed=0, calls=0, is_spoken_for=True
        )
        self._has_spoken = False
        self._oom_kills = oom_kills()

    async def open(self, log: Path, listener: OutputListener) -> tuple[int, int, int]:
        """Open socket and pipes; return the child's ends: control, stdout, stderr.

        Raises:
            OSError: there is no room for all of them; ``close`` closes ours, and the child's are.
        """
        loop = asyncio.get_running_loop()
        self._file = file = RotatingFile(log)
        with contextlib.ExitStack() as unless_all_are_open:
            ours, theirs = socket.socketpair()
            ends = [theirs.detach()]
            unless_all_are_open.callback(os.close, ends[0])
            ours.setblocking(False)
            await loop.create_connection(lambda: self, sock=ours)
            for _ in range(2):
                read_end, write_end = os.pipe2(os.O_CLOEXEC)
                ends.append(write_end)
                unless_all_are_open.callback(os.close, write_end)
                read = await loop.connect_read_pipe(
                    lambda: Output(self.name, file, listener),
                    os.fdopen(read_end, "rb", buffering=0),
                )
                self._outputs.append(read)
            unless_all_are_open.pop_all()
        return ends[0], ends[1], ends[2]

    def started(self, pid: int) -> None:
        """Note the process; from now on it can be waited for even without its parent."""
        self.pid = pid
        self._watch = LifeWatch(pid)
        with contextlib.suppress(OSError):
            self.pidfd = os.pidfd_open(pid)

    def unsaid_life(self) -> Progressed | None:
        """Return a sign of life of a process that lives and has not said so since the last call.

        Its script may keep the interpreter lock, without which no thread of it can speak.
        """
        has_spoken, self._has_spoken = self._has_spoken, False
        lives = self._watch is not None and self._watch.shows_life()
        is_silent = self._watch is not None and not has_spoken and not lives
        self.silent_looks = self.silent_looks + 1 if is_silent else 0
        return self._progress if lives and not has_spoken else None

    def send(self, command: Command, incarnation: Incarnation) -> None:
        """Pass a command on; a worker that is gone does not hear it."""
        if self._control is not None and not self._control.is_closing():
            self._control.write(frame(encode(command, incarnation)))

    async def exit(self, returncode: int) -> Exited:
        """Take the last words of a process that has ended, and word its exit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._control_ended.wait()
        await self.drain(LAST_LINES_S)
        kind, detail = self._how(returncode)
        worker = None if self.is_end_requested else self.worker
        return Exited(replica=self.replica, kind=kind, detail=detail, worker=worker)

    async def drain(self, timeout_s: float = DRAIN_S) -> None:
        """Read what is left of its output."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for _, output in self._outputs:
                    await output.ended.wait()

    def fail_with(self, why: str) -> None:
        """Have its end, which is to follow, be a failure of its script."""
        self._ended = Ended(replica=self.replica, kind=ExitKind.SCRIPT, detail=why)

    def close(self) -> None:
        """Close everything that belongs to the worker; a second call does nothing."""
        if self._control is not None:
            self._control.abort()
        for transport, _ in self._outputs:
            transport.close()
        if self._file is not None:
            asyncio.get_running_loop().call_soon(self._file.close)
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    async def vanished(self) -> None:
        """Kill a worker whose parent is gone, and wait until it is no more."""
        if self.pidfd is None or self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            os.killpg(self.pid, signal.SIGKILL)
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self.pidfd, gone.set)
        try:
            async with asyncio.timeout(DRAIN_S):
                await gone.wait()
        except TimeoutError:
            pass  # uninterruptible; nothing more can be done about it
        finally:
            loop.remove_reader(self.pidfd)

    def _how(self, returncode: int) -> tuple[ExitKind, str]:
        """Say how the process ended: its own word counts if it came to say it."""
        if self._ended is not None:
            return self._ended.kind, self._ended.detail
        if returncode == -signal.SIGKILL and self._ran_out_of_memory():
            return ExitKind.SIGNAL, OUT_OF_MEMORY
        if returncode < 0:
            return ExitKind.SIGNAL, signal_name(-returncode)
        if returncode == 0 and self._finished:
            return ExitKind.FINISHED, ""
        if returncode == 0:
            return ExitKind.EARLY, "the process ended with code 0 before its last step"
        return ExitKind.SCRIPT, f"the process ended with code {returncode}"

    def _ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed for want of memory since it began, and nobody else did."""
        before, now = self._oom_kills, oom_kills()
        return not self.is_end_requested and None not in (before, now) and before != now

    # --- asyncio.Protocol of the control socket ----------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        if isinstance(transport, asyncio.WriteTransport):
            self._control = transport

    def data_received(self, data: bytes) -> None:
        """Check what the worker says and hand it on."""
        try:
            for message in self._unframer.feed(data):
                self._take_message(decode(message, self._may_say))
        except FrameError as error:
            self._on_refusal(self.name, str(error))
            if self._control is not None:
                self._control.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that there is nothing more to hear."""
        self._control_ended.set()

    def _take_message(self, received: Envelope | Refusal) -> None:
        if isinstance(received, Refusal):
            self._on_refusal(self.name, received.reason)
            return
        message = received.message
        speaker = getattr(message, "replica", None)
        if speaker != self.replica and not (isinstance(message, Refused) and message.joiner):
            self._on_refusal(self.name, f"spoke for {speaker!r:.40}")
            return
        if isinstance(message, Ended):
            self._ended = message
            self._on_message(message)
            return
        self._has_spoken = True
        if isinstance(message, Progressed):  # whether it still waits for others only it can say
            self._progress = replace(
                message, waiting=NO_GENERATION, held_up_by=None, is_spoken_for=True
            )
        self._finished = self._finished or isinstance(message, Finished)
        self._on_message(message)
