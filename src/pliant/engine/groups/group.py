"""Groups: the members of one generation, connected, and how that ends.

Owns the one communication thread of a generation, its jobs, breaking a group and giving it up.
Must not know: what tensors mean, slots, steps, who decides on membership.

                 build                 abandon, a failed operation, a deadline
    (meeting) ----------> whole ----------------------------------------------> broken
        |                   |  retire (all operations complete)                   |
        | abort, deadline   +------------> grace ------------> reaper <-----------+
        +--------------------------------------------------------^
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import torch
from torch._C._distributed_c10d import Store

from pliant.engine.groups.comm import Comm
from pliant.engine.groups.ending import GroupBroken, GroupEnd, let_go
from pliant.engine.groups.gloo import GlooBackend, OperationFailed, first_line
from pliant.engine.groups.reaper import GRACE_S, REAPER, EndedGroup
from pliant.engine.reduce.windows import Window, Windows

T = TypeVar("T")


class Ticket(Generic[T]):
    """The result of a job on a group's communication thread."""

    __slots__ = ("_error", "_event", "_group", "_value")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._event = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

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

    def __init__(
        self,
        *,
        generation: int,
        rank: int,
        size: int,
        backend: GlooBackend | None,
        store: Store | None,
        collective_s: float,
        windows: Windows | None = None,
    ) -> None:
        self.generation = generation
        self.rank = rank
        """replica_rank in this generation."""
        self.size = size
        self.collective_s = collective_s
        self.windows = windows
        """Of all members; None unless each of them can read those of all others."""
        self.quiesced = threading.Event()
        """Set when nothing can write into its buffers any more: it is destroyed, or silent.

        Gloo may write into what operations of a broken group were given until then.
        """
        self._group_end = GroupEnd(generation)
        self._lock = threading.Lock()
        self._open: set[Ticket[Any]] = set()
        self._jobs: queue.SimpleQueue[tuple[Callable[[Comm], Any], Ticket[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._store = store
        self._posted: dict[str, int] = {}
        self._backend = backend
        self._comm = Comm(self._group_end, backend, rank=rank, size=size, collective_s=collective_s)
        self._thread: threading.Thread | None = None
        if backend is not None:
            # Gloo pairs collectives by their order, so one thread issues all of them.
            self._thread = threading.Thread(
                target=self._work, name=f"comm-g{generation}", daemon=True
            )
            self._thread.start()

    @staticmethod
    def alone(generation: int, window: Window | None = None) -> Group:
        """Return the group of a single member: no sockets, no threads."""
        return Group(
            generation=generation,
            rank=0,
            size=1,
            backend=None,
            store=None,
            collective_s=1.0,
            windows=None if window is None else Windows(generation, window, [None]),
        )

    @property
    def broken(self) -> str | None:
        """Why this group is of no more use; None while it is whole."""
        return self._group_end.reason

    def submit(self, job: Callable[[Comm], T]) -> Ticket[T]:
        """Queue a job for the communication thread; takes microseconds.

        All members must submit the same jobs in the same order.  On a broken group the ticket
        has failed already.  A job that raises breaks the group: members would go out of step.
        """
        ticket: Ticket[T] = Ticket(self)
        with self._lock:
            if self._group_end.ended:
                ticket._resolve(None, self._group_end.error())  # noqa: SLF001
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
        return self.submit(lambda comm: comm.all_gather(row)).wait()

    def exchange(
        self, name: str, payload: bytes, *, step: int, look: Callable[[], None]
    ) -> list[bytes]:
        """Return what each member gives under ``name``, in rank order; no collective.

        Through the store: should a script call it on some replicas only, nobody takes one's data
        for something else.

        Args:
            name: unique in the run.
            payload: text in UTF-8.
            step: what was given in earlier ones is deleted: everybody has read it.
            look: called while others are waited for; may raise.

        Raises:
            GroupBroken: the store is gone, or a member that has given nothing; or the deadline of
                a collective has passed.
        """
        store, backend = self._store, self._backend
        if store is None or backend is None:
            return [payload]
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        deadline_at = time.monotonic() + self.collective_s
        try:
            for old in [key for key, posted in self._posted.items() if posted < step]:
                store.delete_key(old)
                del self._posted[old]
            store.set(keys[self.rank], payload.decode())
            self._posted[keys[self.rank]] = step
            while not store.check(keys):
                # No operation is pending that would fail, and nobody else tells: whoever leaves at
                # the next boundary may die without a Reform.
                if backend.has_lost_a_peer() and not store.check(keys):
                    raise GroupBroken(self.generation, "a member is gone that others wait for")
                if time.monotonic() > deadline_at:
                    raise GroupBroken(self.generation, f"no answer within {self.collective_s:g} s")
                look()
            return list(store.multi_get(keys))
        except RuntimeError as error:
            raise GroupBroken(self.generation, first_line(error)) from error

    def abandon(self, reason: str) -> None:
        """Break the group at once, from any thread; every waiter raises GroupBroken.

        Returns immediately; only the first reason counts.  Not for a signal handler.  Its
        connections are cut, which fails the peers' pending operations too, and the reaper
        destroys it in the background.
        What its unfinished operations read or write (partials too) must not be used again before
        ``quiesced`` is set; a result whose ticket had succeeded stays valid.
        """
        self._end(reason, grace_s=None)

    def retire(self, *, grace_s: float = GRACE_S) -> None:
        """Give up a group that is no longer needed and whose own jobs have all ended.

        Its connections stay for ``grace_s``: a slower member may not have read everything.
        """
        self._end(None, grace_s=grace_s)

    def _end(self, reason: str | None, *, grace_s: float | None) -> None:
        with self._lock:
            if not self._group_end.set(reason):
                return
            for ticket in self._open:
                ticket._resolve(None, self._group_end.error())  # noqa: SLF001
            self._open.clear()
        self._jobs.put(None)
        self._comm.wake()
        backend, self._backend = self._backend, None
        self._store = self.windows = None
        if backend is None:
            self.quiesced.set()
            return
        if reason is not None:
            backend.cut()
        REAPER.destroy_later(EndedGroup(backend, self._thread, self.quiesced), grace_s=grace_s)

    def _work(self) -> None:
        """Run on the communication thread until the group ends."""
        while self._work_one():
            pass
        self._comm.close()

    def _work_one(self) -> bool:
        item = self._jobs.get()
        if item is None or self._group_end.ended:
            return False
        job, ticket = item
        value: Any = None
        error: Exception | None = None
        try:
            value = job(self._comm)
        except OperationFailed as failed:
            error = self._comm.broken(str(failed))
        except Exception as raised:  # thread boundary: becomes the ticket's error
            error = raised
        if error is not None:
            let_go(error)
        with self._lock:
            ticket._resolve(value, error)  # noqa: SLF001
            self._open.discard(ticket)
        if error is None:
            return True
        self.abandon(error.reason if isinstance(error, GroupBroken) else f"a job failed: {error}")
        return False
