"""Gloo: torch's process group for the CPU and its TCP store; the only importer of both.

Owns ``ProcessGroupGloo`` and ``TCPStore``, which torch does not document as public: used here as
seen in torch 2.13, and ``tests/engine/groups/test_gloo.py`` fails when they change.  Must not know:
generations' meaning, tensors' meaning, when to give up.

**Cutting.**  Neither ``abort`` nor ``shutdown`` of a gloo group wakes an operation that waits for a
stopped peer, and its late completion writes into buffers that may have another use by then.
Shutting down the group's own TCP sockets ends both: every pending operation fails within a
millisecond and destroying the group takes 10 ms instead of its time-out.  Gloo does not tell its
sockets, so they are found by the ports of the members' listening sockets.
"""

from __future__ import annotations

import os
import re
import select
import socket
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

_Gloo = cast("Any", dist.ProcessGroupGloo)
Address = tuple[str, int]
_OPEN_DEVICE = threading.Lock()
"""Held from before a device opens its listening socket until that socket is found."""


class OperationFailed(Exception):  # noqa: N818  becomes GroupBroken
    """An operation could not be started or did not succeed, usually because a peer is gone."""


class StoreServer:
    """The one TCPStore server of a worker; opened at its start, lives as long as it.

    It listens on ``address`` alone: left to itself, TCPStore listens on every interface.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=1024)
        port = listener.getsockname()[1]
        self.address = address
        self.endpoint = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        """``host:port``, as it goes into the registration."""
        self._store = TCPStore(
            address,
            port,
            None,
            is_master=True,
            timeout=timedelta(seconds=30),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )


def parse_endpoint(endpoint: str) -> Address:
    """Split ``host:port`` or ``[host]:port``."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def open_store(endpoint: str, prefix: str, *, timeout_s: float) -> Store:
    """Connect to a store server; may block for ``timeout_s``.

    Look with ``check`` for keys, not with ``wait``: that logs a warning at every time-out.
    """
    host, port = parse_endpoint(endpoint)
    store = TCPStore(
        host,
        port,
        None,
        is_master=False,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )
    return PrefixStore(prefix, store)


@dataclass(frozen=True, slots=True)
class Device:
    """A listening socket and the thread that moves the bytes; one per group."""

    handle: Any
    listens_at: Address | None
    """Where it listens; None where the system does not tell."""

    @classmethod
    def open(cls, address: str) -> Device:
        """Listen on ``address``: without it gloo looks up the node's name."""
        with _OPEN_DEVICE:
            before = _listening()
            handle = _Gloo.create_device(hostname=address, lazy_init=False)
            new = _listening() - before
        return cls(handle, new.pop() if len(new) == 1 else None)


class GlooBackend:
    """One connected gloo group, used by one communication thread.

    From any thread: ``has_lost_a_peer``, ``cut``, ``is_silent``, ``destroy``.  All others may raise
    OperationFailed.  What the collectives return has ``get_future()``; what ``send`` and
    ``receive`` return is for ``wait``.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        size: int,
        device: Device,
        peers: Iterable[Address],
        connect_s: float,
        collective_s: float,
    ) -> None:
        """Connect to all members; blocks until they do the same or for ``connect_s``."""
        options = _Gloo._Options()  # noqa: SLF001
        options._devices = [device.handle]  # noqa: SLF001
        options._timeout = timedelta(seconds=connect_s)  # noqa: SLF001
        self._group: Any = _Gloo(store, rank, size, options)
        self._group.set_timeout(timedelta(seconds=collective_s))
        others = set(peers) - {device.listens_at}
        self._sockets = tuple(  # accepted where we listen, or connected to where a peer does
            (descriptor, inode)
            for descriptor, inode, local, remote in _tcp_sockets()
            if remote is not None and (local == device.listens_at or remote in others)
        )
        self.is_cuttable = len(self._sockets) == size - 1
        """Whether all its sockets are known, so that ``cut`` breaks every connection."""

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Add up ``tensor`` in place."""
        with failures():
            return self._group.allreduce(tensor)

    def all_to_all(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        source_splits: Sequence[int],
    ) -> Any:
        """Send piece ``r`` of ``source`` to rank ``r``; receive likewise."""
        with failures():
            return self._group.alltoall_base(output, source, output_splits, source_splits)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        """Send ``tensor`` of rank ``root`` to all."""
        with failures():
            return self._group.broadcast(tensor, root)

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Any:
        """Start sending to one rank."""
        with failures():
            return self._group.send([tensor], to, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Any:
        """Start receiving from one rank."""
        with failures():
            return self._group.recv([tensor], source, tag)

    def wait(self, work: Any) -> None:
        """Block until a point-to-point operation has ended; ``cut`` ends it."""
        with failures():
            work.wait()

    def has_lost_a_peer(self) -> bool:
        """Whether a connection has ended; also told where no operation is pending."""
        return any(_has_ended(*each) for each in self._sockets)

    def cut(self) -> None:
        """Break every connection; pending operations fail, here and at the peers.  Idempotent."""
        for each in self._sockets:
            _shut_down(*each)

    def is_silent(self) -> bool:
        """Whether gloo has closed every connection, after which it reads nothing any more.

        An operation that waits then can only run into its time-out.
        """
        return self.is_cuttable and not any(_is_open(*each) for each in self._sockets)

    def destroy(self) -> None:
        """Free the group; blocks until its operations have ended."""
        self._group = None


@contextmanager
def failures() -> Iterator[None]:
    """Turn what torch raises into OperationFailed, one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise OperationFailed(first_line(error)) from None


def first_line(error: BaseException) -> str:
    """Return what matters of torch's message, without file names and stack."""
    lines = str(error).splitlines() or [type(error).__name__]
    text = re.sub(r"^\[\S+:\d+\] ", "", lines[0])
    return text.partition(". This is typically")[0].strip().rstrip(".")


def _listening() -> set[Address]:
    return {here for _, _, here, there in _tcp_sockets() if there is None}


def _tcp_sockets() -> Iterable[tuple[int, int, Address, Address | None]]:
    """Yield (descriptor, inode, local, remote) of this process's TCP sockets.

    ``remote`` is None for a listening socket.
    """
    directory = Path("/proc/self/fd")
    if not directory.exists():
        return
    for name in os.listdir(directory):  # noqa: PTH208  names are what is needed
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue  # most of many: cheap
            copy = os.dup(int(name))
        except OSError:
            continue  # closed meanwhile
        found = _describe(copy)
        if found is not None:
            yield (int(name), *found)


def _describe(descriptor: int) -> tuple[int, Address, Address | None] | None:
    """Describe a TCP socket that listens or talks; None for anything else.  Closes it."""
    status = os.fstat(descriptor)
    if not stat.S_ISSOCK(status.st_mode):
        os.close(descriptor)
        return None
    with socket.socket(fileno=descriptor) as probe:
        if probe.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            local = _address(probe.getsockname())
            if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return status.st_ino, local, None
            return status.st_ino, local, _address(probe.getpeername())
        except OSError:
            return None  # not connected


def _address(name: tuple[Any, ...]) -> Address:
    return str(name[0]).removeprefix("::ffff:"), int(name[1])


def _is_open(descriptor: int, inode: int) -> bool:
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False


def _has_ended(descriptor: int, inode: int) -> bool:
    """Tell whether the other end of a connection is gone; gloo closes it when it notices."""
    try:
        if not _is_open(descriptor, inode):
            return True
        ended = select.poll()
        ended.register(descriptor, select.POLLRDHUP)
        return bool(ended.poll(0))
    except OSError:
        return True


def _shut_down(descriptor: int, inode: int) -> None:
    """Shut a socket down, unless its number belongs to another file by now."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return  # closed already
    if not _is_open(copy, inode):
        os.close(copy)
        return
    with socket.socket(fileno=copy) as held, suppress(OSError):  # the peer may be faster
        held.shutdown(socket.SHUT_RDWR)
