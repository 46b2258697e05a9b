"""The lock files of a pool that several users share: one for each device, for whom it was given to.

Owns how such a file is made, so that the kernel, and no claimant's word, says who may lock it and
for which claim: a file is new for each claim, the pool's own, and readable by the user of the claim
alone (an access control list).  Who keeps an older file open can lock that one only, which says
nothing any more.  Knows nothing of who is given what.

    devices/        0710  of the pool's owner and the group: entered by its members, not listed
    devices/3.lock  0600 + u:1001:r   {"claim": "ada/gpt", "pid": 0, "uid": 1001}
"""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.machine.device_locks import path_of, written_on
from pliant.machine.files import PRIVATE, SHARED_DIRECTORY, SHARED_MARK, fresh_beside, write_new

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
