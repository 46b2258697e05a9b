"""The worker's control socket: commands come in, events and signs of life go out.

Owns one socket and the one thread that reads and writes it.  Knows nothing of what a command
means: each is handed to the session's callback, on the link's thread.

The main thread never waits for this socket: ``send`` queues and returns.  The heartbeat comes
from the link's thread, so it says "this process lives" even during a long step; a stopped
process sends none.  When the agent closes the socket the worker ends itself at once: nobody is
left to reap it, to carry its output or to tell it anything.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from pliant.core.commands import Command
from pliant.core.errors import EXIT_AGENT_GONE
from pliant.core.events import Event, Progressed
from pliant.core.heartbeats import HEARTBEAT_S
from pliant.core.values import Generation, Incarnation, ReplicaId
from pliant.wire.codec import COMMANDS, Message, Refusal, decode, encode
from pliant.wire.framing import FrameError, Unframer, frame
from pliant.wire.messages import WorkerNote

LINGER_S = 0.1
"""How long a message that is not urgent may wait for company, in seconds."""

_RECEIVE_BYTES = 1 << 16

_log = logging.getLogger(__name__)

CommandHandler = Callable[[Command, Incarnation], None]
Heartbeat = Callable[[], Event | None]


class Link:
    """One end of the socket between a worker and its agent.

    Made by the bootstrap; ``start`` before the script runs, ``attach`` when a session exists.
    Commands that arrive earlier wait for it.  All methods may be called from any thread.
    """

    def __init__(
        self,
        sock: socket.socket,
        replica: ReplicaId,
        *,
        incarnation: Incarnation,
        on_agent_gone: Callable[[], None] = lambda: os._exit(EXIT_AGENT_GONE),
    ) -> None:
        self.replica = replica
        self.incarnation = incarnation
        """The highest seen."""
        self.stale = 0
        """Commands of an older incarnation that were refused (R3)."""
        self.refused = 0
        """Messages that were no commands."""
        self._sock = sock
        self._sock.setblocking(False)
        self._on_agent_gone = on_agent_gone
        self._unframer = Unframer()
        self._queue: deque[Message] = deque()
        self._buffer = bytearray()
        self._early: list[tuple[Command, Incarnation]] = []
        self._on_command: CommandHandler | None = None
        self._heartbeat: Heartbeat = self._idle_heartbeat
        self._while_idle: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._empty = threading.Condition(self._lock)
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def while_idle(self, look: Callable[[], None]) -> None:
        """Name who is called with each sign of life, on the link's thread, before ``attach``."""
        self._while_idle = look

    def attach(self, on_command: CommandHandler, heartbeat: Heartbeat | None = None) -> None:
        """Name who takes the commands, and who words the heartbeat.

        Commands that came before are delivered now, in order, on the link's thread.  A heartbeat
        that returns ``None`` is left out this time.
        """
        with self._lock:
            self._on_command = on_command
            if heartbeat is not None:
                self._heartbeat = heartbeat
        self._wake()

    def send(self, message: Event | WorkerNote, *, urgent: bool = True) -> None:
        """Queue a message, in order.  Never blocks; not urgent: within ``LINGER_S``."""
        with self._lock:
            self._queue.append(message)
        if urgent:
            self._wake()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued was written; False if ``timeout_s`` was not enough."""
        self._wake()
        with self._lock:
            return self._empty.wait_for(lambda: not self._queue and not self._buffer, timeout_s)

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, then close the socket.  The second call does nothing."""
        if self._closing:
            return
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self.flush(timeout_s)
            self._closing = True
            self._wake()
            self._thread.join(timeout_s)
        self._closing = True
        self._sock.close()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it will wake anyway
            os.write(self._wake_w, b"!")

    def _idle_heartbeat(self) -> Event:
        self._while_idle()
        return Progressed(replica=self.replica, generation=Generation(0), committed=0, calls=0)

    # --- everything below runs on the link's thread -----------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:  # a thread boundary: without its link a worker is of no use
            _log.exception("the link of %s failed", self.replica)
        if not self._closing:
            self._on_agent_gone()

    def _serve(self) -> None:
        """Read and write until the socket or this object is closed."""
        beat_at_s = time.monotonic()
        poll = select.poll()  # not select: the script may hold more than 1,024 files
        poll.register(self._wake_r, select.POLLIN)
        while not self._closing:
            if time.monotonic() >= beat_at_s:
                beat_at_s = time.monotonic() + HEARTBEAT_S
                if (beat := self._heartbeat()) is not None:
                    self.send(beat, urgent=False)
            if not self._write():
                return
            poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._buffer else 0))
            wait_s = min(LINGER_S, max(0.0, beat_at_s - time.monotonic()))
            for fd, happened in poll.poll(wait_s * 1000):
                if fd == self._wake_r:
                    os.read(self._wake_r, 4096)
                    self._deliver_early()
                elif happened & ~select.POLLOUT and not self._read():
                    return

    def _write(self) -> bool:
        """Move the queue into the socket as far as it takes it; False if the agent is gone."""
        with self._lock:
            while self._queue:
                self._buffer += frame(encode(self._queue.popleft(), self.incarnation))
            try:
                if self._buffer:
                    del self._buffer[: self._sock.send(self._buffer)]
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not self._buffer:
                self._empty.notify_all()
        return True

    def _read(self) -> bool:
        """Take what the agent sent; False if it is gone."""
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        try:
            for message in self._unframer.feed(data):
                self._take_command(message)
        except FrameError:
            return False  # nothing after it can be read: as good as gone
        return True

    def _take_command(self, data: bytes) -> None:
        received = decode(data, COMMANDS)
        if isinstance(received, Refusal):
            self.refused += 1
            _log.warning("refused a message of the agent: %s", received.reason)
            return
        if received.incarnation < self.incarnation:
            self.stale += 1
            return
        self.incarnation = received.incarnation
        command: Command = received.message  # type: ignore[assignment]  # decode allows only these
        self._early.append((command, received.incarnation))
        self._deliver_early()

    def _deliver_early(self) -> None:
        if self._on_command is None:
            return
        waiting, self._early = self._early, []
        for command, incarnation in waiting:
            self._on_command(command, incarnation)
