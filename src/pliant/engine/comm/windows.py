"""Windows: memory of one worker that the others on its node read in place.

Owns how such memory is made, found by the others and given back.  Must not know tensors' meaning,
buckets, plans, or who trains with whom.

A window is an anonymous file (``memfd_create``): it has no name that could stay behind, and is gone
with the last process that maps it.  Its owner alone can write into it; everybody else maps it for
reading, which the kernel enforces (seals).  It is found as ``/proc/<pid>/fd/<descriptor>``, and a
random token at its start proves that it is the one that was meant.  Where that fails (another
node, another container, hidden processes) there is no window and the members use their sockets.

**One window, many generations.**  New memory costs a page fault per 4 KB, so a worker keeps its
window.  Its *mark* says which generation it serves.  The owner changes the mark first and writes
afterwards; a reader copies first and looks at all marks afterwards.  Hence a member that was
stopped in the middle and wakes when the others have gone on may read anything, but cannot take it
for a result.  On the owner's side a lock keeps the mark from changing while a thread of an older
generation still writes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from pliant.engine.comm.communicator import OperationFailed, SharedMemory, WindowSize
from pliant.engine.device import host, memory

HEADER_BYTES = 4096
"""Token and mark; a page, so that what follows is aligned for everything."""

_NAME = "pliant-window"
_LINK = f"/memfd:{_NAME} (deleted)"
_TOKEN_BYTES = 16
_MARK_AT = 64
_F_SEAL_FUTURE_WRITE = 0x10
"""Nobody maps it for writing from now on; Linux 5.1, not in Python's ``fcntl``."""

_LOOSE = 2
"""A window more than this many times as large as needed is replaced by a smaller one."""

_NOTHING = torch.empty(0, dtype=torch.uint8, device=host.LOCATION)


class WindowError(Exception):
    """A window cannot be mapped; the text is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a window is found by the other processes of its node; fields are JSON values."""

    pid: int
    descriptor: int
    nbytes: int
    """Without the header."""
    token: str


class Window:
    """Memory of this worker that the others may read."""

    def __init__(self, size: WindowSize) -> None:
        """Allocate; blocks while the system provides the memory.

        Raises:
            OSError: the system has no such memory.
        """
        nbytes = HEADER_BYTES + -(-size.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        os.ftruncate(self._descriptor, nbytes)
        whole = memory.of_file(self._descriptor, nbytes, mmap.PROT_READ | mmap.PROT_WRITE)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)
        token = secrets.token_bytes(_TOKEN_BYTES)
        whole[:_TOKEN_BYTES] = host.tensor_of(bytearray(token))
        self.memory = whole[HEADER_BYTES:]
        """Flat bytes."""
        used = self.memory[size.reserved : size.nbytes - size.spare]
        used.zero_()  # page faults now, on a builder's thread
        self._mark = whole[_MARK_AT : _MARK_AT + 8].view(torch.int64)
        self._lock = threading.Lock()
        self.address = Address(
            pid=os.getpid(),
            descriptor=self._descriptor,
            nbytes=nbytes - HEADER_BYTES,
            token=token.hex(),
        )

    def enter(self, generation: int) -> None:
        """Serve ``generation`` from now on; waits until no thread writes for an earlier one."""
        with self._lock:
            self._mark.fill_(generation)

    @contextmanager
    def writing(self, generation: int) -> Iterator[None]:
        """Write into it for a generation, from any thread but the one that calls ``enter``.

        Raises:
            OperationFailed: it serves another one by now.
        """
        with self._lock:
            if int(self._mark) != generation:
                raise OperationFailed("this worker has gone on to another generation")
            yield

    def fence(self) -> None:
        """Complete all loads before this call before any that follows."""
        with self._lock:  # a full barrier; the owner has the same between its mark and its data
            pass


class WindowView:
    """Another worker's window, for reading only: writing ends the process."""

    def __init__(self, address: Address) -> None:
        """Map it.

        Raises:
            WindowError: it is not there, or not that one.
        """
        path = Path(f"/proc/{address.pid}/fd/{address.descriptor}")
        try:
            if str(path.readlink()) != _LINK:  # opening a stranger's pipe might block
                raise WindowError(f"{path} is not a window")
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise WindowError(f"{path} cannot be opened: {error.strerror}") from None
        size = HEADER_BYTES + address.nbytes
        try:
            if os.fstat(descriptor).st_size != size:
                raise WindowError(f"{path} is another window")
            whole = memory.of_file(descriptor, size, mmap.PROT_READ)
        except OSError as error:
            raise WindowError(f"{path} cannot be mapped: {error.strerror}") from None
        finally:
            os.close(descriptor)
        if bytes(host.bytes_of(whole[:_TOKEN_BYTES])).hex() != address.token:
            raise WindowError(f"{path} is another window")
        self.memory = whole[HEADER_BYTES:]
        """Flat bytes."""
        self._mark = whole[_MARK_AT : _MARK_AT + 8].view(torch.int64)

    @property
    def mark(self) -> int:
        """The generation that it serves now."""
        return int(self._mark)


class Windows(SharedMemory):
    """The windows of the members of one generation, as one of them sees them."""

    def __init__(
        self,
        generation: int,
        own: Window | None,
        others: Sequence[WindowView | None],
        *,
        rank: int = 0,
        hosts: Sequence[Sequence[int]] = (),
        sizes: Sequence[int] = (),
    ) -> None:
        """Take them together.

        Args:
            own: None if it has none, which no other member reads then.
            others: in rank order, None in the place of this member and of those elsewhere.
            rank: of this member.
            hosts: ranks that read each other's windows, each rank in one; none: all do.
            sizes: bytes of each member's window, 0 of who has none; none: as they are mapped.
        """
        self._generation = generation
        self._own = own
        self._others = tuple(others)
        found = [_NOTHING if view is None else view.memory for view in others]
        if own is not None:
            found[rank] = own.memory
        super().__init__(
            memories=tuple(found),
            hosts=tuple(map(tuple, hosts)) or (tuple(range(len(found))),),
            sizes=tuple(sizes) or tuple(memory.numel() for memory in found),
        )

    def enter(self) -> None:
        """Mark this worker's window as that of this generation."""
        if self._own is not None:
            self._own.enter(self._generation)

    def writing(self) -> AbstractContextManager[None]:
        """Write into the own window on the communication thread; see ``Window.writing``."""
        if self._own is None:
            raise AssertionError("this worker has no window")
        return self._own.writing(self._generation)

    def check(self) -> None:
        """Look at the marks of all windows that were read."""
        if self._own is not None:
            self._own.fence()
        for rank, view in enumerate(self._others):
            if view is not None and view.mark != self._generation:
                raise OperationFailed(f"rank {rank} has gone on to another generation")


class WindowCache:
    """Keeps this worker's window from one generation to the next; one per worker.

    Its memory is at most ``_LOOSE`` times what the present generation needs; while a generation
    that needs more is prepared, both windows are there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: Window | None = None
        self._views: weakref.WeakValueDictionary[str, WindowView] = weakref.WeakValueDictionary()

    def provide(self, size: WindowSize) -> Window:
        """Return a window that is large enough; blocks while the system provides new memory.

        Raises:
            OSError: the system has no such memory.
        """
        with self._lock:
            own = self._own
            most = size.reserved + _LOOSE * (size.nbytes - size.reserved)
            if own is None or not size.nbytes <= own.memory.numel() <= most:
                own = self._own = Window(size)
            return own

    def existing(self, size: WindowSize) -> Window | None:
        """Return the window that is there already, if it is large enough."""
        with self._lock:
            own = self._own
            return own if own is not None and own.memory.numel() >= size.nbytes else None

    def map(self, address: Address) -> WindowView:
        """Map another worker's window, or return the mapping that is still there.

        Raises:
            WindowError: it cannot be mapped.
        """
        with self._lock:
            view = self._views.get(address.token)
            if view is None:
                view = self._views[address.token] = WindowView(address)
            return view


def neighbourhoods(reach: Sequence[Collection[int]]) -> tuple[tuple[int, ...], ...]:
    """Divide members into hosts, each of those who all reach each other; everybody concludes alike.

    ``reach``: in rank order, the ranks whose windows that member has mapped.
    """
    hosts: list[list[int]] = []
    for rank, reached in enumerate(reach):
        for members in hosts:
            if all(other in reached and rank in reach[other] for other in members):
                members.append(rank)
                break
        else:
            hosts.append([rank])
    return tuple(map(tuple, hosts))
