"""What the kernel does for a socket: says who is at its other end, and sends again what was lost.

Owns the credentials of a connection, and the names of users.  Knows nothing of what is said on it.
"""

from __future__ import annotations

import contextlib
import pwd
import socket
import struct
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The process that opened a connection, as it was then."""

    uid: int
    gid: int
    pid: int


def peer_of(sock: socket.socket) -> Credentials | None:
    """Return who has connected; None: it is no Unix socket."""
    if sock.family != socket.AF_UNIX:
        return None
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return Credentials(uid=uid, gid=gid, pid=pid)


_names: dict[int, str] = {}
"""Users that were looked up: a directory service may be slow, or be away for a while."""


def user_name(uid: int) -> str:
    """Return what a user is called; its number if it has no name here.

    Once known, a name stays: in a shared pool claims are called by it.
    """
    if uid not in _names:
        try:
            _names[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            return str(uid)
    return _names[uid]


_TCP_RTO_MAX_MS = 44
_LONGEST_MS = 1000
"""The shortest that the kernel takes for a longest wait: what it costs is a packet a second."""


def send_again_soon(sock: socket.socket) -> None:
    """Let a socket, and each that a listening one accepts, be used again soon after a cut.

    TCP waits twice as long before each further attempt, so a link that was cut for 7 s is used
    again after up to 13, and a peer that waits for 10 has given up on one that is well.  Newer
    kernels (Linux 6.15) let a socket say how long it waits at most.
    """
    with contextlib.suppress(OSError):  # an older kernel, or no TCP
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_MS)
