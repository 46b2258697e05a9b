"""This machine to itself: the address at which what runs here talks to what runs here.

Owns the choice between IPv4 and IPv6.  Knows nothing of ports.
"""

from __future__ import annotations

import socket

IPV4, IPV6 = "127.0.0.1", "::1"

INTERFACE = "lo"
"""What Linux calls it."""


def loopback() -> str:
    """Return an address of this machine that no other reaches; on hosts with IPv6 only, that."""
    for family, address in ((socket.AF_INET, IPV4), (socket.AF_INET6, IPV6)):
        try:
            with socket.socket(family) as sock:
                sock.bind((address, 0))
        except OSError:
            continue
        return address
    return IPV4
