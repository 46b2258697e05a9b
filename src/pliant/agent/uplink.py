"""The agent's WebSocket to the coordinator: everything up, commands down, again if it breaks.

Owns one connection at a time, and what has not arrived: messages are kept, in order and up to a
bound, until a coordinator says that it has read them, and those that none has read are said again
on the next connection.  Of several places where the coordinator may be each is tried in turn; one
that is found by an older coordinator hears nothing that counts, and goes on to the next.  Knows
nothing of what is said.

    connect --> greeting, what was not heard, what is new --> it breaks, or is silent --> connect
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.http11 import Response

from pliant.core.commands import Command, type_name
from pliant.core.errors import PermanentError, WrongTokenError
from pliant.core.events import Exited, Progressed, Running
from pliant.core.heartbeats import HEARTBEAT_S
from pliant.core.text import in_one_line
from pliant.core.values import Incarnation, ReplicaId, TlsFiles
from pliant.machine.clock import TICK_S, Clock
from pliant.machine.event_loop import aside, cancelled
from pliant.machine.interfaces import send_again_soon
from pliant.machine.tls import NEEDS_TLS, RenewedTls, client_context, fault_of_tls
from pliant.wire.codec import (
    COMMANDS,
    COORDINATOR_NOTES,
    MAX_MESSAGE_BYTES,
    Message,
    Refusal,
    encode,
)
from pliant.wire.framing import decode_packed
from pliant.wire.messages import AgentLeft, Alive, Heard, HostAlone, JoinHosts, Unfit, Work

RECONNECT_S = 10.0
"""How long a lost coordinator is looked for unless told otherwise, in seconds."""

RETRY_S = 0.2
"""Before the second attempt to connect, in seconds; each further one waits longer."""

SLOWEST_RETRY_S = 2.0
"""Longest pause between two attempts, in seconds: a tenth of what a new coordinator waits."""

OPEN_S = 5.0
"""Longest wait for an answer to an attempt: one that was stopped takes connections, in seconds."""

LOOK_S = 1.0
"""Between two looks whether the coordinator has said something, in seconds."""

SILENT_LOOKS = 10
"""Looks in a row that find nothing, after which it is taken for lost.  It says Heard to each sign
of life.  Looks, not seconds: while this process is stopped none is made."""

MAX_KEPT = 50_000
"""Messages kept for a coordinator that is not there; the oldest go first."""

MOST_BEHIND = 200
"""Messages that are not heard yet, with which a coordinator counts as one that hears."""

OF_NOW = (Alive, Progressed, Running, HostAlone, AgentLeft)
"""What nobody wants to hear later."""

FORBIDDEN = (401, 403)
"""HTTP status of a coordinator that does not want this agent; others are of what stands between."""

UNREADABLE = (
    "this agent cannot read what the coordinator says ({}); a job needs the same pliant on every "
    "node"
)

Places = Callable[[], tuple[str, ...]]
"""Returns the URLs at which the coordinator may be now; asked before each attempt, and raises
OSError if they cannot be told at this moment."""

_log = logging.getLogger(__name__)
_frame_log = logging.getLogger(f"{__name__}.frames")
_frame_log.setLevel(logging.INFO)  # below it, what is sent is written down, token and secrets too


class LossKeepingConnection(ClientConnection):
    """Keeps why it was lost, of which an opening that fails does not tell."""

    loss: Exception | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Keep the reason."""
        self.loss = exc
        super().connection_lost(exc)


class Uplink:
    """A connection that is made again when it breaks."""

    def __init__(
        self,
        places: Places,
        token: str,
        *,
        greeting: Callable[[], list[Message]],
        on_work: Callable[[Work], None],
        on_command: Callable[[Command, Incarnation], None],
        on_unfit: Callable[[str], None],
        on_join: Callable[[JoinHosts], None],
        give_up_s: float = RECONNECT_S,
        looks_on: Callable[[], bool] = lambda: False,
        tls: TlsFiles | None = None,
    ) -> None:
        """``greeting`` words what is said first on every new connection, ``on_work`` takes what is
        answered, ``on_unfit`` why this agent is to go, ``on_join`` with which hosts it is to be
        one; ``give_up_s``: how long a lost coordinator is looked for, from when it ``looks_on`` no
        longer.  ``tls``: encrypts each connection, and is looked at anew for it.

        Raises:
            ConfigError: the files of ``tls`` cannot be used.
        """
        self.is_connected = False
        self.incarnation = Incarnation(0)
        self.signs_every_s = 0.0
        """How far apart the coordinator wants the signs of life, in seconds."""
        self._places = places
        self._tried: tuple[str, ...] = ()
        self._has_met = False
        self._token = token
        self._greeting = greeting
        self._on_work = on_work
        self._on_command = on_command
        self._on_unfit = on_unfit
        self._on_join = on_join
        self._give_up_s = give_up_s
        self._looks_on = looks_on
        self._tls = None if tls is None else RenewedTls(tls, lambda: client_context(tls))
        self._newest: LossKeepingConnection | None = None
        self._queue: deque[Message] = deque(maxlen=MAX_KEPT)
        self._unheard: deque[Message] = deque(maxlen=MAX_KEPT)
        self._num_heard = 0
        self._silence = 0
        self._closing: asyncio.Task[None] | None = None
        """Ends the connection for another to the same place."""

        self._is_outdated = False
        self._has_read = self._is_missed = False
        self._something = asyncio.Event()
        self._thinning = Thinning()

    @property
    def has_room(self) -> bool:
        """Whether the coordinator hears what is said, and soon."""
        return self.is_connected and len(self._queue) + len(self._unheard) < MOST_BEHIND

    def send(self, message: Message) -> None:
        """Queue a message; never blocks.  What is of now alone is not kept for a later time."""
        if not self.is_connected and isinstance(message, OF_NOW):
            return
        if isinstance(message, Progressed) and not self._thinning.is_needed(
            message, time.monotonic(), self.signs_every_s
        ):
            return
        if isinstance(message, Exited):
            self._thinning.forget(message.replica)
        self._queue.append(message)
        self._something.set()

    def renew(self) -> None:
        """End the connection, if there is one, and greet the coordinator on another."""
        self._is_outdated = True
        if self.is_connected and self._newest is not None and self._closing is None:
            self._closing = asyncio.create_task(self._newest.close())

    async def emptied(self, limit_s: float) -> None:
        """Wait until all was sent, for so long at most."""
        looks = 20
        for _ in range(looks):
            if not self._queue or not self.is_connected:
                return
            await asyncio.sleep(limit_s / looks)

    async def run(self) -> None:
        """Connect and serve until cancelled.

        Raises:
            PermanentError: refused, or not reached for as long as was asked.
        """
        clock = Clock()  # what this process slept counts for nothing
        ticking = asyncio.create_task(_tick(clock))
        try:
            await self._run(clock)
        finally:
            ticking.cancel()

    async def _run(self, clock: Clock) -> None:
        last_seen_s, wait_s, turn = clock.now_s(), RETRY_S, 0
        refusal: PermanentError | None = None
        while True:
            failure: Exception = ConnectionError("what answers ends the connection without a word")
            url, self._newest = "", None
            try:
                self._tried = self._places()
                url = self._encrypted(self._tried[turn % len(self._tried)])
                await aside(_resolve, url)
                async with connect(
                    url,
                    ssl=self._trust(url),
                    create_connection=self._new_connection,  # type: ignore[arg-type]  # makes one
                    additional_headers={"Authorization": f"Bearer {self._token}"},
                    max_size=MAX_MESSAGE_BYTES,
                    open_timeout=OPEN_S,
                    close_timeout=LOOK_S,
                    ping_interval=None,  # Alive and Heard are the signs of life, and say more
                    proxy=None,
                    logger=_frame_log,
                ) as connection:
                    try:
                        await self._serve(connection)
                    finally:
                        if self._has_read:  # however it ended, until now there was a coordinator
                            last_seen_s, wait_s, refusal = clock.now_s(), RETRY_S, None
            except (OSError, WebSocketException, TimeoutError) as error:
                if isinstance(error, InvalidStatus) and error.response.status_code in FORBIDDEN:
                    refusal = WrongTokenError(
                        f"--token-file: the job at {url} has another token; give the file token "
                        "in the coordinator's --out, or a copy of it"
                    )
                elif (fault := self._fault_of_tls(error, url)) is not None and not self._has_met:
                    refusal = PermanentError(fault)
                failure = error
            if self._looks_on():
                last_seen_s = clock.now_s()
            elif clock.now_s() - last_seen_s > self._give_up_s:
                where = " or ".join(self._tried) or "any place"
                raise PermanentError(
                    f"no coordinator at {where}: {failure}; start it there, or give the "
                    "address that its --listen names to --join"
                ) from failure
            if self._closing is not None:
                await self._closing
                self._closing = None
                continue
            turn += 1
            if turn % max(len(self._tried), 1):
                continue
            # One of several may be another job's by now: it was this one's, or all were tried.
            if refusal is not None and not (self._has_met and len(self._tried) > 1):
                raise refusal
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, SLOWEST_RETRY_S)

    def _encrypted(self, url: str) -> str:
        return url if self._tls is None else f"wss:{url.partition(':')[2]}"

    def _trust(self, url: str) -> ssl.SSLContext | None:
        if self._tls is None:
            return client_context(None) if url.startswith("wss:") else None
        return self._tls.context()

    def _new_connection(self, *args: Any, **options: Any) -> LossKeepingConnection:
        self._newest = LossKeepingConnection(*args, **options)
        return self._newest

    def _fault_of_tls(self, error: Exception, url: str) -> str | None:
        """Say what in the two ends' TLS keeps them from each other; None: nothing of it."""
        if isinstance(error, InvalidStatus) and error.response.status_code == NEEDS_TLS:
            return f"the coordinator at {url} refuses this agent: {_detail(error.response)}"
        seen = (error, None if self._newest is None else self._newest.loss)
        files = None if self._tls is None else self._tls.files
        faults = (fault_of_tls(one, url, files) for one in seen if one is not None)
        return next((fault for fault in faults if fault is not None), None)

    async def _serve(self, connection: ClientConnection) -> None:
        send_again_soon(connection.transport.get_extra_info("socket"))
        self._has_read = self._is_outdated = False
        for message in self._greeting():
            await connection.send(encode(message, self.incarnation).decode())
        kept = [one for one in (*self._unheard, *self._queue) if not isinstance(one, OF_NOW)]
        self._queue = deque(kept, maxlen=MAX_KEPT)
        self._unheard.clear()
        self._num_heard = self._silence = 0  # read on this connection; looks since it spoke
        self._something.set()
        self.is_connected = True
        if self._is_outdated:  # what it was greeted with
            self.renew()
        tasks = [*map(asyncio.create_task, (self._write(connection), self._watch(connection)))]
        try:
            async for data in connection:
                self._take_message(data)
        finally:
            self.is_connected = False
            await cancelled(*tasks)

    async def _write(self, connection: ClientConnection) -> None:
        while True:
            await self._something.wait()
            while self._queue and self._closing is None:
                message = self._queue.popleft()
                data = encode(message, self.incarnation)
                if len(data) > MAX_MESSAGE_BYTES:  # at which a coordinator ends the connection
                    _log.warning("%d bytes of %s are not said", len(data), type_name(type(message)))
                    continue
                self._unheard.append(message)
                await connection.send(data.decode())
            self._something.clear()

    async def _watch(self, connection: ClientConnection) -> None:
        """Cut a connection at the other end of which nobody lives."""
        while self._silence < SILENT_LOOKS:
            self._silence += 1
            await asyncio.sleep(LOOK_S)
        where = connection.remote_address or ("a closed connection", 0)
        connection.transport.abort()
        self._is_missed = True
        _log.warning("the coordinator at %s, port %s, is silent; it is looked for", *where[:2])

    def _take_message(self, data: bytes | str) -> None:
        received = decode_packed(data, COMMANDS | COORDINATOR_NOTES)
        if isinstance(received, Refusal):
            _log.warning("refused a message of the coordinator: %s", received.reason)
            if not self._has_read:  # nothing else of it can be understood without the first
                self._on_unfit(UNREADABLE.format(received.reason))
            return
        self._has_read = True
        if received.incarnation < self.incarnation:  # R3
            return
        self.incarnation = received.incarnation
        self._silence, self._has_met = 0, True
        if self._is_missed:
            self._is_missed = False
            _log.warning("the coordinator was found again")
        match received.message:
            case Heard(count=count, signs_every_s=every_s):
                self.signs_every_s = every_s
                while self._num_heard < count and self._unheard:
                    self._unheard.popleft()
                    self._num_heard += 1
            case Work() as work:
                self._on_work(work)
            case Unfit(reason=reason):
                self._on_unfit(reason)
            case JoinHosts() as told:
                self._on_join(told)
            case command:
                self._on_command(command, received.incarnation)  # type: ignore[arg-type]


def _resolve(url: str) -> None:
    """Wait for a name, where nothing that ends must wait for it, as it does for asyncio's pool.

    Raises:
        OSError: nobody knows it.
    """
    socket.getaddrinfo(urlsplit(url).hostname, None, type=socket.SOCK_STREAM)


def _detail(response: Response) -> str:
    """Return the sentence that a refusal brings."""
    try:
        return in_one_line(str(json.loads(response.body or b"")["detail"]))
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {response.status_code}"


async def _tick(clock: Clock) -> None:
    """Ask a clock so often that it notices when this process is stopped."""
    while True:
        clock.now_s()
        await asyncio.sleep(TICK_S)


ALIVE_S = 1.0
"""Between two signs of life of an agent, in seconds."""

LIST_EVERY = 5
"""Signs of life between two lists of all that runs here."""


class Thinning:
    """Of the replicas of one node."""

    def __init__(self) -> None:
        self._last: dict[ReplicaId, tuple[float, Progressed]] = {}

    def is_needed(self, beat: Progressed, now_s: float, every_s: float) -> bool:
        """Whether this goes up, where the coordinator needs one every so many seconds.

        Worked out by moments half a heartbeat apart: they come now a little early, now late.
        """
        last_s, last = self._last.get(beat.replica, (float("-inf"), None))
        is_due = now_s - last_s >= every_s - HEARTBEAT_S / 2
        if not is_due and last is not None and _news(last) == _news(beat):
            return False
        self._last[beat.replica] = now_s, beat
        return True

    def forget(self, replica: ReplicaId) -> None:
        """Forget one that is gone."""
        self._last.pop(replica, None)


def _news(beat: Progressed) -> tuple[object, ...]:
    """Return what cannot wait; how far it is, for whom it waits and how slow it is can."""
    return beat.generation, beat.calls, beat.is_spoken_for, beat.held_up_by
