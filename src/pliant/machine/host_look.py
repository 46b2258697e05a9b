"""What is found on this host of what a job needs.

Owns how each thing is found out, and that none of it takes long.  Leaves nothing behind.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time

from pliant.core.text import last_line

TORCH_S = 60.0
"""Longest that importing torch may take, in seconds."""

CONNECT_S = 3.0

CLOSED_PORT = 61_001
"""Just above those that Linux gives out: a host that is reached says that nobody listens there."""

_IMPORT = "import torch, pliant.engine.session; print(torch.__version__)"


def torch_here() -> tuple[str, str]:
    """Import what trains, in a process of its own; return its version, and why it has none."""
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", _IMPORT],
            capture_output=True,
            text=True,
            timeout=TORCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"importing it takes longer than {TORCH_S:g} s"
    if done.returncode:
        return "", last_line(done.stderr) or f"importing it ended with code {done.returncode}"
    return done.stdout.strip(), ""


def host_obstacle(address: str) -> str:
    """Say why a host is not reached; empty: it is, though nothing listens where it was asked."""
    why, _ = connect_obstacle(address, CLOSED_PORT)
    return "" if why == os.strerror(errno.ECONNREFUSED).lower() else why


def connect_obstacle(address: str, port: int) -> tuple[str, float]:
    """Say why a place is not reached; empty: it is; and how long the answer took, in seconds."""
    began_s, why = time.monotonic(), ""
    try:
        socket.create_connection((address, port), CONNECT_S).close()
    except TimeoutError:
        why = f"no answer within {CONNECT_S:g} s"
    except OSError as error:
        why = (error.strerror or str(error)).lower()
    return why, time.monotonic() - began_s
