"""Who is at the other end of a Unix socket, by the kernel's word.

Owns the credentials of a connection and the names of users.  Knows nothing of what is said on it.
"""

from __future__ import annotations

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
