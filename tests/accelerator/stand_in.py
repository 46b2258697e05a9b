"""A stand-in for a vendor's library, with NCCL's manners: what is true of it is true of NCCL.

It moves the memory of the test accelerator between members, through sockets of its own, and is:

    asynchronous       what is exchanged waits its turn in the stream, and so does what comes behind
    in progress        for a while after each call; only then it is in the stream
    silent             a member that died is waited for, for ever
    a liar             aborted work looks complete: the stream goes on, with garbage
    jealous            of two groups on one device, the second one's work waits for the first one's

``slow_abort_s`` makes an abort take as long; ``journal`` tells what happened in which order.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pliant.engine.comm.communicator import Piece
from pliant.engine.comm.device_communicator import DeviceGroup, Library, LibraryError
from pliant.engine.device import host

IN_PROGRESS_S = 0.003
GARBAGE = 0x41


class StandIn(Library):
    """One per member, as of one process."""

    name = "stand-in 1"

    def __init__(self, *, slow_abort_s: float = 0.0, refuses: str = "") -> None:
        super().__init__()
        self.slow_abort_s = slow_abort_s
        self.refuses = refuses
        self.journal: list[tuple[str, int]] = []
        self.device = threading.Lock()
        """Held by the work that runs on the device."""
        self._number = 0

    def unique_id(self) -> bytes:
        return os.urandom(8).hex().encode()

    def connect(
        self, unique_id: bytes, *, rank: int, size: int, where: torch.device
    ) -> DeviceGroup:
        if self.refuses:
            raise LibraryError(self.refuses)
        self._number += 1
        return StandInGroup(self, self._number, unique_id.decode(), rank, size, where)


@dataclass
class Work:
    """What one call exchanges: bytes in host memory, and what the stream waits for."""

    gate: Any
    copied: torch.Event
    sends: list[tuple[int, torch.Tensor]]
    receives: list[tuple[int, torch.Tensor]]


@dataclass
class StandInGroup(DeviceGroup):
    library: StandIn
    number: int
    name: str
    rank: int
    size: int
    where: torch.device
    peers: dict[int, socket.socket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._is_accepted = threading.Event()
        self._over = threading.Event()
        self._gates: list[Any] = []
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._launch, self._move)
        ]
        for thread in self._threads:
            thread.start()

    def is_ready(self) -> bool:
        return self._is_accepted.is_set()

    def exchange(self, sends: Sequence[Piece], receives: Sequence[Piece]) -> None:
        if not self.is_ready():
            raise LibraryError("called while in progress")
        self._is_accepted.clear()
        stream = torch.accelerator.current_stream(self.where)
        self._calls.put((stream, list(sends), list(receives)))

    def revoke(self) -> None:
        self._is_accepted.clear()
        self._end()
        self._is_accepted.set()

    def abort(self) -> None:
        self._end()
        threading.Event().wait(self.library.slow_abort_s)
        for thread in self._threads:
            thread.join()
        self.library.journal.append(("aborted", self.number))

    def _end(self) -> None:
        self._over.set()
        self._calls.put(None)
        self._works.put(None)
        for gate in list(self._gates):
            gate.open()
        for peer in self.peers.values():
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    # --- the library's threads --------------------------------------------------------------

    def _launch(self) -> None:
        """Connect; then put calls into their streams, a while after they were made."""
        with contextlib.suppress(OSError):
            self._connect()
            self._is_accepted.set()
        while (call := self._calls.get()) is not None and not self._over.is_set():
            threading.Event().wait(IN_PROGRESS_S)
            stream, sends, receives = call
            with stream:
                self._queue(sends, receives)
            self._is_accepted.set()

    def _queue(self, sends: Sequence[Piece], receives: Sequence[Piece]) -> None:
        work = Work(_sim().Gate(), torch.Event(self.where), [], [])
        self._gates.append(work.gate)
        for rank, tensor in sends:
            work.sends.append((rank, _pinned(tensor).copy_(_flat(tensor), non_blocking=True)))
        work.copied.record(torch.accelerator.current_stream(self.where))
        work.receives = [(rank, _pinned(tensor).fill_(GARBAGE)) for rank, tensor in receives]
        self._works.put(work)
        self.library.journal.append(("queued", self.number))
        if self._over.is_set():
            work.gate.open()
        work.gate.hold(self.where.index)
        for (_, tensor), (_, landed) in zip(receives, work.receives, strict=True):
            _flat(tensor).copy_(landed, non_blocking=True)

    def _move(self) -> None:
        """Exchange what the streams have come to; whoever is missing is waited for."""
        while (work := self._works.get()) is not None:
            while not work.copied.query():
                threading.Event().wait(0.0005)
            self.library.device.acquire()
            try:
                self._exchange_now(work)
            except OSError:
                self._over.wait()  # silent: nothing says that a member is gone
            finally:
                self.library.device.release()
            work.gate.open()

    def _exchange_now(self, work: Work) -> None:
        to_each = {rank: [part for to, part in work.sends if to == rank] for rank, _ in work.sends}
        sending = [
            threading.Thread(target=self._send_all, args=each, daemon=True)
            for each in to_each.items()
        ]
        for thread in sending:
            thread.start()
        for rank, landed in work.receives:
            view = host.bytes_of(landed)
            while view:
                if not (count := self.peers[rank].recv_into(view)):
                    raise OSError("gone")
                view = view[count:]
        for thread in sending:
            thread.join()

    def _send_all(self, rank: int, parts: list[torch.Tensor]) -> None:
        with contextlib.suppress(OSError):
            for staged in parts:
                self.peers[rank].sendall(host.bytes_of(staged))

    def _connect(self) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address(self.rank))
            listener.listen(self.size)
            listener.settimeout(0.05)
            for other in range(self.rank):
                self.peers[other] = self._connected_to(other)
                self.peers[other].sendall(bytes([self.rank]))
            while len(self.peers) < self.size - 1 and not self._over.is_set():
                with contextlib.suppress(TimeoutError):
                    peer, _ = listener.accept()
                    peer.settimeout(None)
                    self.peers[peer.recv(1)[0]] = peer

    def _connected_to(self, other: int) -> socket.socket:
        while not self._over.is_set():
            peer = socket.socket(socket.AF_UNIX)
            try:
                peer.connect(self._address(other))
            except OSError:
                peer.close()
                time.sleep(0.002)
            else:
                return peer
        raise OSError("over")

    def _address(self, rank: int) -> str:
        return f"\0pliant-stand-in-{self.name}-{rank}"


def _sim() -> Any:
    return torch.get_device_module("sim")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
