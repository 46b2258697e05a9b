"""Enters the namespaces of a process, as ``nsenter`` does, without another interpreter."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import NoReturn

from pliant.machine.processes import die_with_parent

_NAMES = ("net", "uts", "ipc", "pid", "mnt")
"""The last one changes what paths mean."""

_libc = ctypes.CDLL(None, use_errno=True)


def enter(process: int) -> None:
    """Go on in a child that is where ``process`` is; this one waits and ends as the child does.

    Of this process one thread may live.
    """
    places = [os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in _NAMES]
    for place in places:
        if _libc.setns(place, 0):
            raise OSError(ctypes.get_errno(), f"process {process} cannot be followed")
        os.close(place)
    if pid := os.fork():  # processes of another process namespace are children of those who enter
        _end_as(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    die_with_parent(0, code=1)  # who has no number there


def _end_as(code: int) -> NoReturn:
    if code < 0:
        with contextlib.suppress(OSError):  # nobody handles SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
