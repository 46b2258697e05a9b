"""Groups: the members of one generation, connected, and how that ends.

Owns the one communication thread of a generation, its jobs, breaking a group and giving it up.
Must not know: how bytes travel, what tensors mean, slots, steps, who decides on membership.

                 build                 abandon, a failed operation, a deadline
    (meeting) ----------> whole ----------------------------------------------> broken
        |                   |  retire (all jobs have ended)
        | abort, deadline   +--------------------------------------------------> retired
        +----> (nothing)
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import torch

from pliant.engine.comm.communicator import (
    Communicator,
    GroupBroken,
    OperationFailed,
    SharedMemory,
    SingleCommunicator,
)

T = TypeVar("T")


class Ticket(Generic[T]):
    """The result of a job on a group's communication thread."""

    __slots__ = ("_error", "_event", "_group", "_value")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._event = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """What the job raised, or ended it; None while it goes on, and of one that succeeded."""
        return self._error

    def wait(self, deadline_s: float | None = None) -> T:
        """Return the job's result; every later call returns it again.

        ``deadline_s``: longest wait; by default a little more than that of one collective.

        Raises:
            GroupBroken: a peer failed, the group was abandoned, or the deadline passed.
            Exception: what the job raised.
        """
        wait_s = self._group.collective_s + 5.0 if deadline_s is None else deadline_s
        if not self._event.wait(wait_s):
            self._group.abandon(f"no answer within {wait_s:g} s")
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def _resolve(self, value: T | None, error: BaseException | None) -> None:
        """Set the result, once; the caller holds the group's lock."""
        if not self._event.is_set():
            self._value, self._error = value, error
            self._event.set()


class Group:
    """The members of one generation, connected."""

    def __init__(self, communicator: Communicator, *, collective_s: float) -> None:
        self.generation = communicator.end.generation
        self.rank = communicator.rank
        """replica_rank in this generation."""
        self.size = communicator.size
        self.collective_s = collective_s
        self._communicator = communicator
        self._end = communicator.end
        self._lock = threading.Lock()
        self._open: set[Ticket[Any]] = set()
        self._jobs: queue.SimpleQueue[tuple[Callable[[Communicator], Any], Ticket[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        if self.size > 1:
            # Pieces are told apart by their order, so one thread issues all of them.
            self._thread = threading.Thread(
                target=self._work, name=f"comm-g{self.generation}", daemon=True
            )
            self._thread.start()

    @staticmethod
    def alone(generation: int) -> Group:
        """Return the group of a single member: no sockets, no threads."""
        return Group(SingleCommunicator(generation), collective_s=1.0)

    @property
    def shared(self) -> SharedMemory | None:
        """What members read in place; None if they cannot, and once the group is given up."""
        return self._communicator.shared

    @property
    def device(self) -> torch.device | None:
        """The accelerator whose memory it moves; None: it moves host memory only."""
        return self._communicator.device

    @property
    def moved_by(self) -> str:
        """The library that moves it, with its version; empty: there is none."""
        return self._communicator.moved_by

    @property
    def broken(self) -> str | None:
        """Why this group is of no more use; None while it is whole."""
        return self._end.reason

    def submit(self, job: Callable[[Communicator], T]) -> Ticket[T]:
        """Queue a job for the communication thread; takes microseconds.

        All members must submit the same jobs in the same order.  On a broken group the ticket
        has failed already.  A job that raises breaks the group: members would go out of step.
        """
        ticket: Ticket[T] = Ticket(self)
        with self._lock:
            if self._end.ended:
                ticket._resolve(None, self._end.error())  # noqa: SLF001
                return ticket
            self._open.add(ticket)
            self._jobs.put((job, ticket))
        if self._thread is None:
            self._work_one()
        return ticket

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return every member's small vector as rows in rank order.  All members must call.

        ``values``: one dimension, equal length and dtype on all members.  For the metadata of
        each step and for headers; ``values`` may be reused when it returns or raises.
        """
        row = values.clone()
        return self.submit(lambda comm: comm.rows(row)).wait()

    def share(self, name: str, payload: bytes) -> list[bytes]:
        """Return what each member gives under ``name``, in rank order; see ``Communicator``.

        Raises:
            GroupBroken: a member is gone, or the group was abandoned while others were waited for.
        """
        return self.submit(lambda comm: comm.share(name, payload)).wait()

    def abandon(self, reason: str) -> None:
        """Break the group at once, from any thread; every waiter raises GroupBroken.

        Only the first reason counts.  Not for a signal handler.  Its connections end, which fails
        the peers' pending operations too.  When it returns or a ticket fails, nothing reads or
        writes what the group was given any more; a result whose ticket had succeeded stays valid.
        """
        self._communicator.abandon(reason)
        self._jobs.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()  # it is at most in the middle of an addition
        self._give_up()

    def retire(self) -> None:
        """Give up a group that is no longer needed and whose own jobs have all ended.

        A slower member still gets everything.
        """
        self._end.set(None)
        self._jobs.put(None)
        self._give_up()

    def _give_up(self) -> None:
        with self._lock:
            for ticket in self._open:
                ticket._resolve(None, self._end.error())  # noqa: SLF001
            self._open.clear()
        self._communicator.share_memory(None)

    def _work(self) -> None:
        """Run on the communication thread until the group ends."""
        while self._work_one():
            pass
        self._communicator.close()

    def _work_one(self) -> bool:
        item = self._jobs.get()
        if item is None or self._end.ended:
            return False
        job, ticket = item
        value: Any = None
        error: Exception | None = None
        try:
            value = job(self._communicator)
            self._communicator.settled()
        except OperationFailed as failed:
            error = self._communicator.broken(str(failed))
        except Exception as raised:  # thread boundary: becomes the ticket's error
            error = raised
        reason = error.reason if isinstance(error, GroupBroken) else f"a job failed: {error}"
        if error is not None:
            let_go(error)
            if not isinstance(error, GroupBroken):
                # The others may be about to find the same: they get what they were sent for it.
                self._end.set(reason)
                self._communicator.close()
        with self._lock:
            ticket._resolve(value, error)  # noqa: SLF001
            self._open.discard(ticket)
        if error is None:
            return True
        self.abandon(reason)
        return False


def let_go(error: BaseException) -> None:
    """Drop what the frames of an error hold: it would keep windows and buffers in memory."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__context__
    if isinstance(error, GroupBroken):  # one sentence says it all
        error.__traceback__ = error.__context__ = None
