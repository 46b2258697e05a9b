"""The locks of a pool's devices: who uses one holds the lock of its file, and dying frees it.

Owns how a process takes a device, how another sees whether it is taken, and how one that must go
is ended without ever ending a stranger.  Knows nothing of pools or offers, and decides nothing.

    <directory>/3.lock    an exclusive flock; inside, for people: {"claim": "gpt", "pid": 4711}

The kernel frees a lock when the last process that shares it has died, so that a device cannot stay
taken, and two processes that ask cannot both have it.  Whose lock it is says the kernel as well
(``/proc/<pid>/fdinfo``), never the file alone: a process id in a file may be another's by now.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TAKE_S = 2.0
"""How long ``take`` tries unless told otherwise, in seconds: a look of the pool lasts less."""

AGAIN_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that holds the lock of a device, as the kernel says."""

    pid: int
    claim: str
    """For whom, as it wrote itself."""


class DeviceLock:
    """One device that this process uses; held until ``release``, or until it dies.

    Processes that it forks share the lock, and one that it execs does if it is handed ``fd``.
    """

    def __init__(self, device: int, fd: int) -> None:
        self.device = device
        self.fd = fd

    def release(self) -> None:
        """Give the device back; a second call does nothing."""
        if self.fd >= 0:
            with suppress(OSError):
                os.ftruncate(self.fd, 0)
            os.close(self.fd)
            self.fd = -1


def path_of(directory: Path, device: int) -> Path:
    """Return the file whose lock stands for a device."""
    return directory / f"{device}.lock"


def take(
    directory: Path, device: int, *, claim: str, within_s: float = TAKE_S
) -> DeviceLock | None:
    """Take a device for a claim; None if another process holds it for so long.

    Raises:
        OSError: the directory cannot be written.
    """
    fd = os.open(path_of(directory, device), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    pause, until = threading.Event(), time.monotonic() + within_s
    while not _locks(fd, fcntl.LOCK_EX):
        if time.monotonic() >= until:
            os.close(fd)
            return None
        pause.wait(AGAIN_S)
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps({"claim": claim, "pid": os.getpid()}).encode(), 0)
    return DeviceLock(device, fd)


def is_free(directory: Path, device: int) -> bool:
    """Whether no process uses a device; asked with a shared lock that lasts for a moment."""
    try:
        fd = os.open(path_of(directory, device), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return _locks(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def claim_on(directory: Path, device: int) -> str:
    """Return for whom a device was taken last, as its file says; empty if nobody wrote that."""
    try:
        values = json.loads(path_of(directory, device).read_bytes())
        return str(values["claim"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def holders(directory: Path, device: int) -> list[Holder]:
    """Return the processes that hold the lock of a device now: by the kernel's word, not by ids.

    Those of other users are not seen.  Looks at every process: for exceptions, not for a loop.
    """
    path = path_of(directory, device)
    with suppress(OSError):
        path = path.resolve()
    claim = claim_on(directory, device)
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [Holder(pid=pid, claim=claim) for pid in pids if _holds(pid, path)]


def end_holders(directory: Path, device: int, *, claim: str) -> list[int]:
    """SIGKILL the processes that use a device for ``claim``; return their ids.

    A process dies only if it holds the lock and the lock was taken for this claim.  It is pinned
    (pidfd) before that is looked at, so that its id cannot pass to a stranger meanwhile.
    """
    path = path_of(directory, device).resolve()
    return [
        holder.pid
        for holder in holders(directory, device)
        if holder.claim == claim and holder.pid != os.getpid() and _end(holder.pid, path)
    ]


def _end(pid: int, path: Path) -> bool:
    try:
        pinned = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _holds(pid, path):
            return False
        signal.pidfd_send_signal(pinned, signal.SIGKILL)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(pinned)


def _holds(pid: int, path: Path) -> bool:
    """Whether a process shares the exclusive lock of a file."""
    process = Path(f"/proc/{pid}")
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return False  # gone, or another user's
    for descriptor in descriptors:
        with suppress(OSError):
            if descriptor.readlink() != path:
                continue
            said = (process / "fdinfo" / descriptor.name).read_text()
            if any("FLOCK" in line and "WRITE" in line for line in said.splitlines()):
                return True
    return False


def _locks(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
