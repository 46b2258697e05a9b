"""Who can be reached at all: asked once the members of a generation have not met in time.

Owns what a connection attempt tells of the way to a member.  One that is refused was answered: the
way is whole and nobody listens, as a member does that has given up or not begun.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Mapping

from pliant.engine.groups.port import parse_endpoint

PROBE_S = 2.0
"""How long an answer may take, in seconds: the first repetition of a lost packet is in it."""

_ANSWERS = (0, errno.ECONNREFUSED)


def unreachable(endpoints: Mapping[str, str]) -> tuple[str, ...]:
    """Return the members whose endpoints do not answer; blocks for ``PROBE_S`` at most."""
    silent: set[str] = set(endpoints)
    waiting: dict[int, tuple[str, socket.socket]] = {}
    poll = select.poll()
    for name, endpoint in endpoints.items():
        address = parse_endpoint(endpoint)
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        sock.setblocking(False)
        waiting[sock.fileno()] = name, sock
        if sock.connect_ex(address) in _ANSWERS:
            silent.discard(name)
        poll.register(sock, select.POLLOUT)
    deadline_at = time.monotonic() + PROBE_S
    try:
        while waiting and (left_s := deadline_at - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left_s * 1000):
                poll.unregister(descriptor)
                name, sock = waiting.pop(descriptor)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _ANSWERS:
                    silent.discard(name)
                sock.close()
    finally:
        for _, sock in waiting.values():
            sock.close()
    return tuple(name for name in endpoints if name in silent)
