"""Connection: one member's socket, and what is to be sent on it and awaited from it.

Owns frames: a head, then the memory of one piece, or a note.  Never waits.  Must not know threads,
collectives, or that there are other members.

    head (24 bytes)    kind, number of this piece, length
    DATA               a piece: its bytes go straight into the tensor that awaits it
    NOTE               length of a name, the name, its payload

A piece that nobody awaits yet stays in the socket, and everything behind it: whoever sends it is
ahead, and waits.  That the other end is closed matters where something is awaited from it or sent
to it: a member that has left may have given all that this one needed.  That it was reset matters
always: that member has abandoned the generation, or died in the middle of something.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import ssl
import struct
import sys
import termios
from collections import deque
from enum import IntEnum
from itertools import islice

import torch

from pliant.engine.comm.communicator import Transfer
from pliant.engine.device import host

LOW_WATER_BYTES = 1024 * 1024
"""So many bytes are waited for, where so many are to come: each waking costs as much as moving some
ten thousand (``SO_RCVLOWAT``)."""

MAX_NOTE_BYTES = 64 << 20
"""Largest note that is taken; who gives one waits for ours, so there is one at a time."""

_HEAD = struct.Struct("<QQQ")
_NAME = struct.Struct("<H")
_SMALL_BYTES = 16 * 1024
"""Up to here a head and its piece go into one record of TLS."""

_RECORDS_BYTES = 1 << 20
"""Most that TLS is given at once: it counts in ``int``."""

_AT_ONCE = 8
_RESET = struct.pack("ii", 1, 0)
"""Linger for no time: to close sends a reset, which passes by what waits to be sent."""

_TCP_INFO = struct.Struct("=2xBB52xI")
"""Of ``struct tcp_info`` (linux/tcp.h): how often the newest data, or a question whether there is
room for more, was sent in vain so far, and for how many milliseconds nothing was acknowledged."""

_VAIN_TRIES = 3
"""Sent in vain so often, a silence is not that of a connection on which nothing happened."""

_NOBODY = struct.pack("H14x", socket.AF_UNSPEC)
_libc = ctypes.CDLL(None)

_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Kind(IntEnum):
    DATA = 1
    NOTE = 2


class PeerGone(Exception):  # noqa: N818  becomes GroupBroken
    """A member's connection has ended, or it says what cannot be."""


class _Part:
    """Memory on its way, and whose it is."""

    __slots__ = ("number", "transfer", "view")

    def __init__(self, view: memoryview, transfer: Transfer | None = None, number: int = 0) -> None:
        self.view = view
        self.transfer = transfer
        self.number = number
        if transfer is not None:
            transfer.add()

    def moved(self, count: int) -> bool:
        """Take note that ``count`` bytes of it have been moved; return whether that was all."""
        self.view = self.view[count:]
        if self.view:
            return False
        if self.transfer is not None:
            self.transfer.moved()
        return True


class Connection:
    """See the module's text; of one thread, but for ``cut``."""

    def __init__(self, sock: socket.socket, rank: int) -> None:
        sock.setblocking(False)
        self.rank = rank
        """Of the member at the other end."""
        self.notes: dict[str, bytes] = {}
        """By name, what the other member gave and nobody has asked for yet."""
        self._sock = sock
        self._descriptor = sock.fileno()
        self._encrypts = isinstance(sock, ssl.SSLSocket)
        self._out: deque[_Part] = deque()
        self._awaited: deque[_Part] = deque()
        self._num_sent = self._num_awaited = 0
        """Pieces so far, those without elements too: one that only one side counts is noticed."""
        self._expected: str | None = None
        """Name of the note that is awaited."""
        self._rest = 0
        """Bytes of all pieces that are awaited."""
        self._head = bytearray(_HEAD.size)
        self._kind: _Kind | None = None
        """Of the frame that is being read; None in its head."""
        self._body = _Part(memoryview(self._head))
        """What of it is read next; without meaning before a piece that nobody awaits."""
        self._number = self._length = 0
        self._note = bytearray()
        self._low_water = 1
        self.is_over = False
        """It has ended in order, and nobody wished for more."""

    def fileno(self) -> int:
        """Return the descriptor, also after closing it."""
        return self._descriptor

    # --- what is to be moved --------------------------------------------------------------

    def send(self, tensor: torch.Tensor, transfer: Transfer) -> None:
        """Queue a piece; nothing travels for one without elements."""
        view = host.bytes_of(tensor)
        self._num_sent += 1
        if not view:
            return
        self._queue(_HEAD.pack(_Kind.DATA, self._num_sent, len(view)), view, transfer)

    def send_note(self, name: str, payload: bytes, transfer: Transfer) -> None:
        """Queue what is not a tensor."""
        word = name.encode()
        body = b"".join((_NAME.pack(len(word)), word, payload))
        self._queue(_HEAD.pack(_Kind.NOTE, 0, len(body)), memoryview(body), transfer)

    def await_piece(self, tensor: torch.Tensor, transfer: Transfer) -> None:
        """Name where the next piece that nobody awaits yet is to go."""
        view = host.bytes_of(tensor)
        self._num_awaited += 1
        if not view:
            return
        self._awaited.append(_Part(view, transfer, self._num_awaited))
        self._rest += len(view)

    def await_note(self, name: str) -> None:
        """Name the note that is needed next."""
        self._expected = None if name in self.notes else name

    @property
    def awaits_note(self) -> bool:
        """Whether the note that was named last has not come yet."""
        return self._expected is not None

    def _queue(self, head: bytes, view: memoryview, transfer: Transfer) -> None:
        if self._encrypts and len(view) <= _SMALL_BYTES:
            self._out.append(_Part(memoryview(head + bytes(view)), transfer))
        else:
            self._out.append(_Part(memoryview(head)))
            self._out.append(_Part(view, transfer))

    @property
    def is_ahead(self) -> bool:
        """Whether the other member sends a piece that nobody awaits yet."""
        return self._kind is _Kind.DATA and not self._awaited

    # --- moving ---------------------------------------------------------------------------

    @property
    def wishes(self) -> int:
        """What it would have epoll look for."""
        wishes = select.EPOLLOUT | select.EPOLLRDHUP if self._out else 0
        if self._awaited or (self.awaits_note and not self.is_ahead):
            wishes |= select.EPOLLIN | select.EPOLLRDHUP
        return wishes

    def serve(self, events: int) -> None:
        """Do what epoll says can be done.

        Raises:
            PeerGone: the connection has ended, or what comes is not what is awaited.
        """
        wishes = self.wishes
        if events & select.EPOLLERR and (not wishes or self._num_unread() < self._rest):
            error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if wishes or error == errno.ECONNRESET:  # after an orderly end it would be another
                raise self._gone(OSError(error, os.strerror(error)))  # what there is would not do
        if not wishes:
            self.is_over = True
            return
        if events & ~select.EPOLLOUT and self.wishes & select.EPOLLIN:
            self.pull()
        if events & ~select.EPOLLIN:
            self.push()
        if events & select.EPOLLRDHUP and self._out:  # a full window would hide it for ever
            raise self._gone(None)

    def push(self) -> None:
        """Send as much as the socket takes.

        Raises:
            PeerGone: the connection has ended.
        """
        try:
            while self._out:
                views = self._next_views()
                count = self._sock.sendmsg(views) if len(views) > 1 else self._sock.send(views[0])
                is_full = count < sum(map(len, views))
                while count:
                    first = self._out[0]
                    taken = min(count, len(first.view))
                    count -= taken
                    if first.moved(taken):
                        self._out.popleft()
                if is_full:
                    return  # epoll tells when there is room again
        except _AGAIN:
            return
        except OSError as error:
            raise self._gone(error) from None

    def _next_views(self) -> list[memoryview]:
        if self._encrypts:
            return [self._out[0].view[:_RECORDS_BYTES]]
        return [part.view for part in islice(self._out, _AT_ONCE)]

    def pull(self) -> None:
        """Receive what is there, as far as it is awaited.

        Raises:
            PeerGone: the connection has ended, or what comes is not what is awaited.
        """
        try:
            while (body := self._next_body()) is not None:
                view = body.view[:_RECORDS_BYTES] if self._encrypts else body.view
                count = self._sock.recv_into(view)
                if not count:
                    raise self._gone(None)
                if self._kind is _Kind.DATA:
                    self._rest -= count
                if body.moved(count):
                    self._complete()
                elif not self._encrypts:
                    return  # epoll tells if there is more
        except _AGAIN:
            return
        except OSError as error:
            raise self._gone(error) from None
        finally:
            self._set_low_water()

    def _num_unread(self) -> int:
        """Return how many bytes are there; encrypted, and so a few more, with TLS."""
        count = bytearray(4)
        fcntl.ioctl(self._descriptor, termios.FIONREAD, count)
        return int.from_bytes(count, sys.byteorder)

    def _next_body(self) -> _Part | None:
        """Return what is read next; None if nothing is, for now."""
        if not self._awaited and not self.awaits_note:
            return None
        if self._kind is not _Kind.DATA:
            return self._body
        if not self._awaited:
            return None
        piece = self._awaited[0]
        if self._body is not piece:
            if (len(piece.view), piece.number) != (self._length, self._number):
                raise PeerGone(
                    f"rank {self.rank} sends a piece of {self._length} bytes where one of "
                    f"{len(piece.view)} is due: the members are out of step"
                )
            self._body = piece
        return piece

    def _complete(self) -> None:
        """Go on after a head or a body."""
        if self._kind is None:
            self._read_head()
            return
        if self._kind is _Kind.DATA:
            self._awaited.popleft()
        else:
            self._keep_note()
        self._kind = None
        self._body = _Part(memoryview(self._head))

    def _read_head(self) -> None:
        number, count, length = _HEAD.unpack(self._head)
        if number == _Kind.DATA:
            self._kind, self._number, self._length = _Kind.DATA, count, length
        elif number == _Kind.NOTE and _NAME.size < length <= MAX_NOTE_BYTES:
            self._kind, self._note = _Kind.NOTE, bytearray(length)
            self._body = _Part(memoryview(self._note))
        else:
            raise PeerGone(f"rank {self.rank} sends what is no frame")

    def _keep_note(self) -> None:
        (length,) = _NAME.unpack_from(self._note)
        end = _NAME.size + length
        name = self._note[_NAME.size : end].decode("utf-8", "replace")
        self.notes[name] = bytes(self._note[end:])
        if name == self._expected:
            self._expected = None

    def _set_low_water(self) -> None:
        """Be woken when there is something worth waking for, and never too late."""
        if self._encrypts:
            return  # what arrives is longer than what it says
        wanted = max(1, min(self._rest, LOW_WATER_BYTES))
        if wanted < self._low_water or wanted >= max(_SMALL_BYTES, self._low_water + 1):
            self._low_water = wanted
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    # --- the end --------------------------------------------------------------------------

    def check_answered(self, silent_s: float) -> None:
        """See that the other machine answers; its member may take nothing for as long as it likes.

        The kernel looks for that (``SO_KEEPALIVE``) only while there is nothing to be sent.

        Raises:
            PeerGone: for so long it has not, though the kernel has tried again and again.
        """
        if self.is_over:
            return
        said = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        in_flight, no_room, silent_ms = _TCP_INFO.unpack(said)
        if in_flight + no_room >= _VAIN_TRIES and silent_ms >= silent_s * 1000:
            raise self._gone(OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def cut(self) -> None:
        """End it, from any thread: whoever moves something ends that; for ``reset``.

        By a reset without an orderly end before it (connect(2) to nobody), whoever else holds the
        descriptor: so the other side can tell it from that of a member that had left in order.
        """
        if _libc.connect(self._sock.fileno(), _NOBODY, len(_NOBODY)):
            with contextlib.suppress(OSError):  # a system that cannot, or it is closed
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def reset(self) -> None:
        """Give the descriptor back, and drop what has not arrived: it would delay the news."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._sock.close()

    def close(self) -> None:
        """Give the descriptor back; what was sent still arrives."""
        with contextlib.suppress(OSError):  # a child of the script may hold it, too
            socket.socket.shutdown(self._sock, socket.SHUT_WR)
        self._out.clear()
        self._awaited.clear()
        self._sock.close()

    def _gone(self, error: OSError | None) -> PeerGone:
        why = "closed" if error is None else (error.strerror or str(error)).lower()
        return PeerGone(f"the connection to rank {self.rank} has ended: {why}")
