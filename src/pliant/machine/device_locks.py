"""The locks of a pool's devices: who uses one holds the lock of its file, and dying frees it.

Owns how a process takes a device, how another sees whether it is taken, and how one that must go
is ended without ever ending a stranger; and how the files are made in a pool that several users
share.  Knows nothing of pools or offers, and decides nothing.

    <directory>/3.lock    an exclusive flock; who took it last is inside: {"claim": "gpt", "pid": 7}

The kernel frees a lock when the last process that shares it has died, so that a device cannot stay
taken, and two processes that ask cannot both have it.  Whose lock it is says the kernel as well
(``/proc/<pid>/fdinfo``), never the file alone: a process id in a file may be another's by now.

In a shared pool the pool makes the files, so that the kernel, and no claimant's word, says who may
lock one and for which claim: a file is new for each claim, the pool's own, and readable by the user
of the claim alone (an access control list).  Who keeps an older file open can lock that one only,
which says nothing any more.

    devices/        0710  of the pool's owner and the group: entered by its members, not listed
    devices/3.lock  0600 + u:1001:r   {"claim": "ada/gpt", "pid": 0, "uid": 1001}
"""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.machine.files import (
    PRIVATE,
    SHARED_DIRECTORY,
    SHARED_MARK,
    NoFileError,
    fresh_beside,
    is_shared_directory,
    open_regular,
    open_to_read,
    write_new,
)
from pliant.machine.locks import lock, lock_file
from pliant.machine.processes import process_started, process_user

DEVICES_VARIABLE = "PLIANT_DEVICES"
"""Environment variable that tells a process the numbers of its devices, commas between them."""

TAKE_S = 2.0
"""How long ``take_device`` tries, in seconds: a look of the pool is shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A process that holds the lock of a device, as the kernel says."""

    pid: int
    taker: int
    """Who took it: this one or an ancestor of it that is gone; 0: one that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockNote:
    """What the last process that took a device has written into its file, or the pool for it."""

    claim: str
    pid: int
    uid: int | None = None
    """Whose processes may take the device, in a pool that users share."""


class DeviceLock:
    """One device that this process uses; held until ``release``, or until it dies.

    Processes that it forks share the lock, and one that it execs does if it is handed ``fd``.
    """

    def __init__(self, device: int, fd: int) -> None:
        self.device = device
        self.fd = fd

    def release(self) -> None:
        """Give the device back; a second call does nothing.

        What is written in the file stays: a process that shares the lock still is told by it.
        """
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def path_of(directory: Path, device: int) -> Path:
    """Return a device's file."""
    return directory / f"{device}.lock"


def take_device(
    directory: Path, device: int, *, claim: str, within_s: float = TAKE_S
) -> DeviceLock | None:
    """Take a device for a claim; None if another process holds it for so long.

    Raises:
        OSError: the directory cannot be written.
    """
    if is_shared_directory(directory):
        try:  # the file is the pool's, for this user; it may be replaced by another's
            granted = lock_file(path_of(directory, device), within_s=within_s)
        except (PermissionError, FileNotFoundError):
            return None  # it was given to somebody else, or to nobody
        return None if granted is None else DeviceLock(device, granted)
    fd = open_regular(path_of(directory, device), os.O_RDWR | os.O_CREAT)
    if not lock(fd, within_s=within_s):
        os.close(fd)
        return None
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps({"claim": claim, "pid": os.getpid()}).encode(), 0)
    return DeviceLock(device, fd)


def is_free(directory: Path, device: int) -> bool:
    """Whether no process uses a device; asked with a shared lock that lasts for a moment.

    One whose file is none (a pipe, a directory) is used by whoever put that there.
    """
    try:
        fd = open_regular(path_of(directory, device))
    except FileNotFoundError:
        return True
    except NoFileError:
        return False
    try:
        return lock(fd, shared=True, within_s=0)
    finally:
        os.close(fd)


def ever_used(directory: Path) -> set[int]:
    """Return the devices that have a file: of the others nothing need be asked."""
    names = (path.stem for path in directory.glob("*.lock"))
    return {int(name) for name in names if name.isdecimal()}


def written_on(directory: Path, device: int) -> LockNote:
    """Return what was written when a device was taken last; empty if nothing was."""
    try:
        with open_to_read(path_of(directory, device)) as file:
            values = json.loads(file.read())
        uid = values.get("uid")
        return LockNote(
            claim=str(values["claim"]),
            pid=int(values["pid"]),
            uid=uid if isinstance(uid, int) else None,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return LockNote(claim="", pid=0)


def claim_on(directory: Path, device: int) -> str:
    """Return for whom a device was taken last; empty if nobody wrote that."""
    return written_on(directory, device).claim


def holders(directory: Path, device: int) -> list[LockHolder]:
    """Return the processes that hold the lock of a device now: by the kernel's word, not by ids.

    Those of other users are not seen.  Looks at every process: for exceptions, not for a loop.
    """
    path = path_of(directory, device).resolve()
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    takers = ((pid, _taker(pid, path)) for pid in pids)
    return [LockHolder(pid=pid, taker=taker) for pid, taker in takers if taker is not None]


def holder_text(directory: Path, device: int) -> str:
    """Name who holds the lock of a device, for people; the claim only if its holder wrote it."""
    found, written = holders(directory, device), written_on(directory, device)
    if not found:
        return "another process"
    is_known = written.claim and found[0].taker == written.pid
    return f"process {found[0].pid}" + (f" of claim {written.claim}" if is_known else "")


def end_holders(directory: Path, device: int, *, claim: str) -> list[int]:
    """SIGKILL the processes that use a device for ``claim``; return their ids.

    A process dies only if it holds the lock, and who took that lock is who wrote this claim into
    the file.  Where the pool has made the file for that claim, it dies only if it is of the user of
    the claim: who has an open file can hand it to anybody's process.  It is pinned (pidfd) before
    that is looked at, so that its id cannot pass to a stranger meanwhile.
    """
    path, written = path_of(directory, device).resolve(), written_on(directory, device)
    if not claim or written.claim != claim:
        return []
    return [
        holder.pid
        for holder in holders(directory, device)
        if holder.pid != os.getpid() and _end(holder.pid, path, written)
    ]


def _end(pid: int, path: Path, written: LockNote) -> bool:
    with suppress(OSError):
        pinned = os.pidfd_open(pid)
        try:
            if _is_its(pid, _taker(pid, path), written):
                signal.pidfd_send_signal(pinned, signal.SIGKILL)
                return True
        finally:
            os.close(pinned)
    return False


def _is_its(pid: int, taker: int | None, written: LockNote) -> bool:
    """Whether a process that shares a lock is of the claim that stands in its file."""
    if taker is None:
        return False
    if written.uid is not None:
        return process_user(pid) == written.uid
    is_orphan = taker == 0 and process_started(written.pid) is None
    return written.pid > 0 and (taker == written.pid or is_orphan)


def _taker(pid: int, path: Path) -> int | None:
    """Return who took the exclusive lock of a file that a process shares; None: it shares none.

    A line of fdinfo: ``lock:   1: FLOCK  ADVISORY  WRITE 23019 fe:00:9977965 0 EOF``.
    """
    process = Path(f"/proc/{pid}")
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return None  # gone, or another user's
    for descriptor in descriptors:
        with suppress(OSError, ValueError):
            if descriptor.readlink() != path:
                continue
            for line in (process / "fdinfo" / descriptor.name).read_text().splitlines():
                words = line.split()
                if words[:1] == ["lock:"] and words[2] == "FLOCK" and words[4] == "WRITE":
                    return int(words[5])
    return None


_ACL = "system.posix_acl_access"
_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF
_READ, _WRITE = 4, 2


def make_entered(directory: Path, gid: int) -> None:
    """Make a directory that members of a group may enter, if it is not there.

    Raises:
        ConfigError: it cannot be made, is another user's, or its file system has no such rights.
    """
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
            raise ConfigError(f"{directory} is another user's; choose another --name")
        os.chown(directory, -1, gid)
        directory.chmod(SHARED_DIRECTORY)
        (directory / SHARED_MARK).touch(mode=PRIVATE)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be shared: {error.strerror}") from error


def require_rights(directory: Path) -> None:
    """Refuse a directory whose file system cannot give one file to one user.

    Raises:
        ConfigError: it cannot.
    """
    path = directory / ".rights"
    try:
        path.unlink(missing_ok=True)
        write_new(path, b"", mode=PRIVATE)
        _give(path, os.geteuid() + 1)
    except OSError as error:
        raise ConfigError(
            f"the file system of {directory} gives no file to a single user"
            f" ({error.strerror or errno.errorcode[error.errno or errno.EIO]}); a shared pool needs"
            " access control lists"
        ) from error
    finally:
        path.unlink(missing_ok=True)


def grant_lock(directory: Path, device: int, *, claim: str, uid: int) -> None:
    """Let processes of a user take a device for a claim; nobody else may from now on.

    Only of a device that nobody uses, or that is this claim's already: then nothing is changed.

    Raises:
        OSError: the file cannot be made.
    """
    path = path_of(directory, device)
    if written_on(directory, device).claim == claim:
        return
    note = json.dumps({"claim": claim, "pid": 0, "uid": uid}).encode()
    with fresh_beside(path, is_contended=False) as fresh:
        write_new(fresh, note, mode=PRIVATE)
        if uid != os.geteuid():
            _give(fresh, uid)
        fresh.replace(path)


def _give(path: Path, uid: int) -> None:
    """Let one more user read a file."""
    entries = (
        (_OWNER, _READ | _WRITE, _NOBODY),
        (_USER, _READ, uid),
        (_GROUP, 0, _NOBODY),
        (_MASK, _READ, _NOBODY),
        (_OTHERS, 0, _NOBODY),
    )
    packed = b"".join(_ENTRY.pack(*entry) for entry in entries)
    os.setxattr(path, _ACL, struct.pack("<I", 2) + packed)
