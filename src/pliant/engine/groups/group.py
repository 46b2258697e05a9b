"""Groups: the members of one generation, connected, and how that ends.

Owns building in the background, the one communication thread of a generation, waiting for
collectives, breaking a group and giving it up.  Must not know: what tensors mean, slots, steps,
who decides on membership.

                 build                 abandon, a failed operation, a deadline
    (meeting) ----------> whole ----------------------------------------------> broken
        |                   |  retire (all operations complete)                   |
        | abort, deadline   +------------> grace ------------> reaper <-------+
        +--------------------------------------------------------^

Rules that gloo dictates:

- All collectives of a group are issued by one thread, in the same order on all members.
- Nobody blocks in ``wait()`` of a collective: its future rings a bell, and so does ``abandon``.
- What operations of a broken group may still write into is never used again, unless ``quiesced``
  says that nothing writes any more.
- A send that gloo takes up after the peer's death is lost: it neither fails nor ends before its
  time-out, and keeps a thread as long.  So a collective looks whether its peers are there, and
  nobody waits for the end of a group whose connections are closed.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from torch._C._distributed_c10d import Store

from pliant.core.errors import PliantError
from pliant.engine.groups.gloo import OperationFailed, StoreServer, first_line
from pliant.engine.groups.reaper import GRACE_S, REAPER
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.windows import WindowCache, Windows, WindowSize

__all__ = [
    "Abort",
    "Backend",
    "Group",
    "GroupBroken",
    "LayoutMismatch",
    "OperationFailed",
    "StoreServer",
    "Ticket",
    "let_go",
]

T = TypeVar("T")

_LOOK_S = 0.2
"""How often a collective that takes long looks whether a member's connection has ended."""
_LAST_WORDS_S = 0.4
"""How long gloo has to read what a member sent before its connection ended."""
_DESTROY_S = 0.2
"""Destroying a group takes 10 ms, or as long as an operation that gloo has lost may take."""


class GroupBroken(PliantError):  # noqa: N818  an event of a run, not a mistake
    """The group of one generation is of no more use: a peer failed, or it was abandoned."""

    def __init__(self, generation: int, reason: str) -> None:
        super().__init__(f"group of generation {generation}: {reason}")
        self.generation = generation
        self.reason = reason


class LayoutMismatch(PliantError):  # noqa: N818
    """This worker's model differs from the members'; the text is one sentence for the user."""


class Backend(Protocol):
    """What depends on the device: a connected group of W members.

    Used by one communication thread, except for ``has_lost_a_peer``, ``cut``, ``is_silent`` and
    ``destroy``.  What the collectives return has ``get_future()``; what ``send`` and ``receive``
    return is for ``wait``.  All but those four may raise OperationFailed.
    """

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Add up ``tensor`` in place."""
        ...

    def all_to_all(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        source_splits: Sequence[int],
    ) -> Any:
        """Send piece ``r`` of ``source`` to rank ``r``; receive likewise."""
        ...

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        """Send ``tensor`` of rank ``root`` to all."""
        ...

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Any:
        """Start sending to one rank."""
        ...

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Any:
        """Start receiving from one rank."""
        ...

    def wait(self, work: Any) -> None:
        """Block until a point-to-point operation has ended; ``cut`` ends it."""
        ...

    def has_lost_a_peer(self) -> bool:
        """Whether a member's connection has ended; from any thread, returns at once."""
        ...

    def cut(self) -> None:
        """Break every connection, from any thread; returns at once."""
        ...

    def is_silent(self) -> bool:
        """Whether every connection is closed: nothing can write into a buffer any more."""
        ...

    def destroy(self) -> None:
        """Free everything; blocks until all operations have ended."""
        ...


class Abort:
    """A reason to give up, set once from any thread; wakes whoever waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason: str | None = None

    def set(self, reason: str) -> None:
        """Give the reason; the first one counts."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the reason is set, on the thread that sets it."""
        with self._lock:
            if self.reason is None:
                self._callbacks.append(callback)
                return
        callback()


class Ticket(Generic[T]):
    """The result of a job on a group's communication thread."""

    __slots__ = ("_error", "_event", "_group", "_value")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._event = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether the job has ended, well or not."""
        return self._event.is_set()

    def wait(self, deadline_s: float | None = None) -> T:
        """Return the job's result; every later call returns it again.

        Args:
            deadline_s: longest wait; by default a little more than that of one collective.

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
        backend: Backend | None,
        store: Store | None,
        collective_s: float,
        windows: Windows | None = None,
    ) -> None:
        """Wrap a connected backend; ``Group.build`` and ``Group.alone`` call this."""
        self.generation = generation
        self.rank = rank
        """replica_rank in this generation."""
        self.size = size
        self.collective_s = collective_s
        self.windows = windows
        """Of all members; None unless each of them can read those of all others."""
        self.broken: str | None = None
        """Why this group is of no more use; None while it is whole."""
        self.quiesced = threading.Event()
        """Set when nothing can write into its buffers any more: it is destroyed, or silent."""
        self._ended = False
        self._lock = threading.Lock()
        self._open: set[Ticket[Any]] = set()
        self._jobs: queue.SimpleQueue[tuple[Callable[[Comm], Any], Ticket[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._store = store
        self._posted: dict[str, int] = {}
        self._backend = backend
        self._comm = Comm(self, backend)
        self._thread: threading.Thread | None = None
        if backend is not None:
            self._thread = threading.Thread(
                target=self._work, name=f"comm-g{generation}", daemon=True
            )
            self._thread.start()

    @staticmethod
    def build(
        *,
        generation: int,
        seats: Sequence[tuple[str, str]],
        replica: str,
        host: str,
        server: StoreServer,
        layout: Layout,
        deadline_s: float = 30.0,
        collective_s: float = 1800.0,
        abort: Abort | None = None,
        window_cache: WindowCache | None = None,
        window_size: WindowSize | None = None,
    ) -> Group:
        """Connect to the other members; block until done, aborted, or the deadline.

        For a background thread (also fine on the main thread: an abort returns at once).
        All members must call it with the same arguments but ``replica``, ``server``, ``layout``.
        Afterwards they have met, not exchanged anything.

        Args:
            generation: never used before.
            seats: (replica, endpoint) in rank order; survivors first: rank 0 is the reference
                for the layout.
            replica: this one.
            host: the replica whose store is the meeting point.
            server: this worker's own; says on which address to listen.
            layout: of this worker's model.
            deadline_s: longest wait for the others.
            collective_s: longest wait inside one collective before the group counts as broken.
                Long, for it includes a slow member's computing: supervision notices a hang.
            abort: set it to give up from another thread.
            window_cache: where this worker keeps its window; without it no member uses windows.
            window_size: what it needs in it.

        Raises:
            GroupBroken: it could not be built.
            LayoutMismatch: this worker's layout differs from that of rank 0, who does not notice.
        """
        if len(seats) == 1:
            return Group.alone(generation, window_cache=window_cache, window_size=window_size)
        from pliant.engine.groups.build import BuildAttempt

        attempt = BuildAttempt(
            generation=generation,
            endpoints=[endpoint for _, endpoint in seats],
            rank=[name for name, _ in seats].index(replica),
            meeting=dict(seats)[host],
            address=server.address,
            layout=layout,
            deadline_s=deadline_s,
            collective_s=collective_s,
            abort=abort or Abort(),
            window_cache=window_cache,
            window_size=window_size,
        )
        return attempt.run()

    @staticmethod
    def alone(
        generation: int,
        *,
        window_cache: WindowCache | None = None,
        window_size: WindowSize | None = None,
    ) -> Group:
        """Return the group of a single member: no sockets, no threads.

        It goes on using a window that is there: new memory would cost page faults.
        """
        own = (
            None
            if window_cache is None or window_size is None
            else window_cache.existing(window_size)
        )
        return Group(
            generation=generation,
            rank=0,
            size=1,
            backend=None,
            store=None,
            collective_s=1.0,
            windows=None if own is None else Windows(generation, own, [None]),
        )

    def submit(self, job: Callable[[Comm], T]) -> Ticket[T]:
        """Queue a job for the communication thread; takes microseconds.

        All members must submit the same jobs in the same order.  On a broken group the ticket
        has failed already.  A job that raises breaks the group: members would go out of step.
        """
        ticket: Ticket[T] = Ticket(self)
        with self._lock:
            if self._ended or self.broken is not None:
                ticket._resolve(None, self._error())  # noqa: SLF001
                return ticket
            self._open.add(ticket)
            self._jobs.put((job, ticket))
        if self._thread is None:
            self._work_off()
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
            step: what was given in earlier steps is deleted: everybody has read it.
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
            if reason is not None and self.broken is None:
                self.broken = reason
            if self._ended:
                return
            self._ended = True
            for ticket in self._open:
                ticket._resolve(None, self._error())  # noqa: SLF001
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
        REAPER.destroy_later(_EndedGroup(backend, self._thread, self.quiesced), grace_s=grace_s)

    def _error(self) -> GroupBroken:
        return GroupBroken(self.generation, self.broken or "it is no longer in use")

    def _work(self) -> None:
        """Run on the communication thread until the group ends."""
        while self._work_one():
            pass
        self._comm.close()

    def _work_off(self) -> None:
        while not self._jobs.empty():
            self._work_one()

    def _work_one(self) -> bool:
        item = self._jobs.get()
        if item is None or self._ended:
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


class Comm:
    """What a job sees of the group; used on the communication thread only."""

    def __init__(self, group: Group, backend: Backend | None) -> None:
        self._group = group
        self._backend = backend
        self._bell: queue.SimpleQueue[torch.futures.Future[Any] | None] = queue.SimpleQueue()

    @property
    def rank(self) -> int:
        """replica_rank of this member."""
        return self._group.rank

    @property
    def size(self) -> int:
        """Number of members."""
        return self._group.size

    @property
    def backend(self) -> Backend:
        """The device's operations; only where ``size`` > 1.

        Raises:
            GroupBroken: the group has ended.
        """
        self.check()
        return cast("Backend", self._backend)

    def check(self) -> None:
        """Raise GroupBroken if the group has ended; long jobs call it now and then."""
        if self._group._ended:  # noqa: SLF001
            raise self._group._error()  # noqa: SLF001

    def run(self, *works: Any) -> None:
        """Wait until all of these collectives have completed.

        Raises:
            OperationFailed: one failed; breaks the group.
            GroupBroken: the group was abandoned, or ``collective_s`` passed.
        """
        for work in works:
            work.get_future().add_done_callback(self._bell.put)
        deadline_at = time.monotonic() + self._group.collective_s
        for _ in works:
            future = self._listen(deadline_at)
            self.check()
            if future is not None:
                self._examine(future)

    def block(self, work: Any) -> None:
        """Wait for a point-to-point operation; a cut of the connections ends it.

        Raises:
            OperationFailed: it failed; breaks the group.
        """
        self.backend.wait(work)
        self.check()

    def all_gather(self, row: torch.Tensor) -> torch.Tensor:
        """Return every member's row; see ``Group.all_gather``."""
        size, length = self.size, row.numel()
        if size == 1:
            return row.clone().view(1, length)
        # Not gloo's all-gather: it passes the rows along a ring, W - 1 delays instead of one.
        source = row.repeat(size)
        rows = torch.empty_like(source)
        splits = [length] * size
        self.run(self.backend.all_to_all(rows, source, splits, splits))
        return rows.view(size, length)

    def meet(self) -> None:
        """Return when all members have come to this call; the smallest collective there is.

        What a member wrote before it, the others see after it.
        """
        here = torch.zeros(self.size, dtype=torch.uint8)
        ones = [1] * self.size
        self.run(self.backend.all_to_all(torch.empty_like(here), here, ones, ones))

    def wake(self) -> None:
        """Ring the bell, from any thread: the group has ended."""
        self._bell.put(None)

    def close(self) -> None:
        """Let go of the backend, so that it can be destroyed."""
        self._backend = None

    def _listen(self, deadline_at: float) -> torch.futures.Future[Any] | None:
        """Wait for the bell; look now and then whether it can still ring.

        Gloo fails what waits for a peer whose connection ends, but not a send that it took up in
        that very moment: that one would wait for the deadline.
        """
        lost_at: float | None = None
        while (now := time.monotonic()) < deadline_at:
            try:
                return self._bell.get(timeout=min(_LOOK_S, deadline_at - now))
            except queue.Empty:
                if self._backend is None or not self._backend.has_lost_a_peer():
                    continue
            lost_at = now if lost_at is None else lost_at
            if now - lost_at >= _LAST_WORDS_S:
                raise self.broken("the connection of a member is closed")
        raise self.broken(f"no answer within {self._group.collective_s:g} s")

    def _examine(self, future: torch.futures.Future[Any]) -> None:
        try:
            future.value()
        except RuntimeError as error:
            raise OperationFailed(first_line(error)) from None

    def broken(self, reason: str) -> GroupBroken:
        """Return the error to raise: the reason of the group's end, else this one."""
        return GroupBroken(self._group.generation, self._group.broken or reason)


class _EndedGroup:
    """A group without its owner, for the reaper."""

    def __init__(
        self, backend: Backend, thread: threading.Thread | None, quiesced: threading.Event
    ) -> None:
        self._backend = backend
        self._thread = thread
        self._quiesced = quiesced
        self._destroyer: threading.Thread | None = None

    def destroy(self) -> bool:
        if self._thread is not None:
            self._thread.join(0.1)
            if self._thread.is_alive():  # in the middle of an addition, or of a caller's code
                return False
        if self._destroyer is None:
            self._destroyer = threading.Thread(
                target=self._backend.destroy, name="destroy", daemon=True
            )
            self._destroyer.start()
        self._destroyer.join(_DESTROY_S)
        if self._destroyer.is_alive() and not self._backend.is_silent():
            return False
        self._quiesced.set()
        return True


def let_go(error: BaseException) -> None:
    """Drop what the frames of an error hold: an operation would keep its connections open."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__context__
    if isinstance(error, GroupBroken):  # one sentence says it all
        error.__traceback__ = error.__context__ = None
