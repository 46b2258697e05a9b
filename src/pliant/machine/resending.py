"""How soon the kernel sends again what a link has lost.

TCP waits twice as long before each further attempt, so a link that was cut for 7 s is used again
after up to 13, and a peer that waits for 10 has given up on one that is well.  Newer kernels (Linux
6.15) let a socket say how long it waits at most.
"""

from __future__ import annotations

import contextlib
import socket

_TCP_RTO_MAX_MS = 44
_LONGEST_MS = 1000
"""The shortest that the kernel takes for a longest wait: what it costs is a packet a second."""


def send_again_soon(sock: socket.socket) -> None:
    """Let a socket, and each that a listening one accepts, be used again soon after a cut."""
    with contextlib.suppress(OSError):  # an older kernel, or no TCP
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_MS)
