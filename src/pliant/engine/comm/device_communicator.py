"""Device communicator: members exchange an accelerator's memory by its vendor's library.

Owns when such an exchange counts as complete, how the death of a member is noticed meanwhile, and
how it ends.  Must not know a vendor: what a library does is ``Library`` and ``DeviceGroup``.

Sockets connect the members first, and stay: they move host memory, metadata and votes, and they say
that a member is gone, which a library does not.  Such libraries have manners that this module takes
for granted:

    queued work is complete when an event behind it was seen, not when a call returns
    while a call is "in progress", an event behind it proves nothing
    work that was aborted looks complete: so the end of the group counts, not the event
    a member that died is waited for, for ever
    two groups of one device must do their work in one order on all members
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from pliant.engine.comm.communicator import Communicator, Piece, Transfer
from pliant.engine.comm.sockets import SocketCommunicator
from pliant.engine.device import host

POLL_S = 0.0005
"""Between two looks at the device, in seconds; a member that is gone is noticed meanwhile."""

QUIET_S = 2.0
"""How long work that was revoked may take to end before the group is aborted, in seconds."""

_log = logging.getLogger(__name__)


class LibraryError(Exception):
    """The library has failed; the text is one sentence."""


class DeviceGroup(ABC):
    """The members of one generation, as a library connects them; not for two threads at once."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether what was called so far has been accepted; until then nothing else is called.

        Raises:
            LibraryError: it has failed.
        """

    @abstractmethod
    def exchange(self, sends: Sequence[Piece], receives: Sequence[Piece]) -> None:
        """Queue all of these together on the current stream; does not wait.

        Pieces between two members are matched in order.

        Raises:
            LibraryError: it cannot be queued.
        """

    @abstractmethod
    def revoke(self) -> None:
        """Stop what goes on; ``is_ready`` says when it has stopped."""

    @abstractmethod
    def abort(self) -> None:
        """End it and give its memory back; may take seconds.  Nothing is called afterwards."""


class Library(ABC):
    """A vendor's library; one per worker, for all its generations."""

    name: str
    """With its version; members of one group have the same."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: list[DeviceCommunicator] = []

    @abstractmethod
    def unique_id(self) -> bytes:
        """Return what the members of a new group find each other by; on one of them."""

    @abstractmethod
    def connect(
        self, unique_id: bytes, *, rank: int, size: int, where: torch.device
    ) -> DeviceGroup:
        """Begin to connect; the group ``is_ready`` when all members have.

        Raises:
            LibraryError: it cannot be begun.
        """

    def opened(self, communicator: DeviceCommunicator) -> None:
        """Take note of one that may use the device, behind those before it."""
        with self._changed:
            self._open.append(communicator)

    def ended(self, communicator: DeviceCommunicator) -> None:
        """Take note that one uses the device no more; a second call does nothing."""
        with self._changed:
            if communicator in self._open:
                self._open.remove(communicator)

    def is_first(self, communicator: DeviceCommunicator) -> bool:
        """Whether none that is older may still use the device."""
        with self._changed:
            return self._open[:1] == [communicator]


class DeviceCommunicator(Communicator):
    """See the module's text."""

    def __init__(
        self,
        sockets: SocketCommunicator,
        library: Library,
        group: DeviceGroup,
        *,
        where: torch.device,
        collective_s: float,
    ) -> None:
        """Take over the connections of ``sockets``, and a group that has begun to connect.

        ``where``: the accelerator whose memory it moves.
        """
        super().__init__(sockets.end.generation, rank=sockets.rank, size=sockets.size)
        self.end = sockets.end
        self.shared = sockets.shared
        sockets.share_memory(None)
        self.device = where
        self.moved_by = library.name
        self._sockets = sockets
        self._library = library
        self._group = group
        self._collective_s = collective_s
        self._is_complete = True
        self._stream: torch.Stream | None = None
        """On which this thread posts; None: nothing was posted yet."""
        self._using = threading.Lock()
        """Held while the library is called, which takes microseconds."""
        self._ending = threading.Lock()
        self._is_over = False
        library.opened(self)

    def connected(self, deadline_s: float) -> None:
        """Return when all members are connected by the library.

        Raises:
            LibraryError: they cannot be.
            GroupBroken: a member is gone, or this was abandoned.
        """
        self._poll(self._is_ready, deadline_s)

    def post(self, *, sends: Iterable[Piece] = (), receives: Iterable[Piece] = ()) -> Transfer:
        """Queue on this thread's stream what is on the accelerator; host memory goes by sockets.

        One post has pieces of one kind.
        """
        sends, receives = list(sends), list(receives)
        pieces = [tensor for _, tensor in (*sends, *receives)]
        if all(map(host.is_here, pieces)):
            return self._sockets.post(sends=sends, receives=receives)
        # Its first work must not overtake the last of a generation before it.
        self._poll(lambda: self._library.is_first(self), self._collective_s)
        self._is_complete = False
        self._stream = torch.accelerator.current_stream(self.device)
        try:
            with self._used():
                self._group.exchange(_whole(sends), _whole(receives))
            self._poll(self._is_ready, self._collective_s)
        except LibraryError as error:
            raise self.broken(str(error)) from None
        return Transfer()

    def wait(self, *transfers: Transfer) -> None:
        """Wait for host memory; what this thread queues from now on comes behind the rest."""
        self._sockets.wait(*transfers)

    def check_members(self) -> None:
        """See the end of a member's socket, too."""
        self._sockets.check_members()

    def settled(self) -> None:
        """Return when everything that was posted is complete in the accelerator's memory."""
        if self._is_complete or self._stream is None:
            return
        mark = self._stream.record_event()  # the library has accepted everything before it
        self._poll(mark.query, self._collective_s)
        try:
            with self._used():  # it ended before the mark was seen: then that proves nothing
                self._group.is_ready()
        except LibraryError as error:
            raise self.broken(str(error)) from None
        self._is_complete = True

    def share(self, name: str, payload: bytes) -> list[bytes]:
        """Send a note to everybody by sockets, and wait for theirs."""
        return self._sockets.share(name, payload)

    def abandon(self, reason: str) -> None:
        """Reset all connections, so that the others notice; then end what the device does."""
        self._sockets.abandon(reason)
        self.end_group()

    def close(self) -> None:
        """Give everything back; of use to nobody, for all members have settled what they posted."""
        self._sockets.close()
        self.end_group()
        if self._stream is not None:  # what was queued behind aborted work ends by itself, and soon
            with suppress(RuntimeError):  # of a device that has failed
                _within(QUIET_S, self._stream.query)

    # --- how ---------------------------------------------------------------------------------

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._using:
            self.check()
            yield

    def _is_ready(self) -> bool:
        with self._used():
            return self._group.is_ready()

    def _poll(self, is_done: Callable[[], bool], within_s: float) -> None:
        """Return when it is done.

        Raises:
            GroupBroken: a member is gone, this was abandoned, or it takes too long.
        """
        until = time.monotonic() + within_s
        while not is_done():
            self._sockets.watch(POLL_S)
            if time.monotonic() > until:
                raise self.broken(f"no answer within {within_s:g} s")
        self.check()

    def end_group(self) -> None:
        """Revoke, wait until it is quiet, abort; return when nothing uses the memory any more.

        If an abort never returns, the thread that tells heartbeats waits here, too: the replica is
        lost and replaced.
        """
        with self._ending:
            if self._is_over:
                return
            # A thread in a call that hangs must not keep the others from ending it.
            is_free = self._using.acquire(timeout=QUIET_S)
            try:
                self._group.revoke()
                _within(QUIET_S, self._group.is_ready)
            except LibraryError as error:
                _log.debug("generation %d: revoked: %s", self.end.generation, error)
            finally:
                self._group.abort()
                self._is_over = True
                if is_free:
                    self._using.release()
        self._library.ended(self)


def _within(limit_s: float, is_done: Callable[[], bool]) -> None:
    """Return when it is done, or after so long."""
    pause, until = threading.Event(), time.monotonic() + limit_s
    while not is_done() and time.monotonic() < until:
        pause.wait(POLL_S)


def _whole(pieces: Iterable[Piece]) -> list[Piece]:
    """Leave out pieces without elements: both sides know that they are."""
    return [(rank, tensor) for rank, tensor in pieces if tensor.numel()]
