"""Run ``python WORDS`` as another user of this machine.

    python tests/pool/as_user.py UID GID WORDS...

Where the interpreter lies in a directory that is root's alone, this process, and nobody else, sees
that directory open to all: it has a table of mounts of its own.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000

libc = ctypes.CDLL(None, use_errno=True)


def closed_above(path: Path) -> Path | None:
    """Return the outermost directory above a file that others may not enter."""
    for directory in reversed(path.parents):
        if not directory.stat().st_mode & 0o001:
            return directory
    return None


def mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    words = (source.encode(), os.fsencode(target), kind.encode())
    if libc.mount(*words, flags, options.encode() or None) != 0:
        raise OSError(ctypes.get_errno(), f"mount of {target}")


def open_up(directory: Path, inner: Path) -> None:
    """Let everybody enter a directory, in which only what is below ``inner`` is seen."""
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", Path("/"), "none", MS_REC | MS_PRIVATE)
    first = directory / inner.relative_to(directory).parts[0]
    kept = os.open(first, os.O_PATH)
    mount("tmpfs", directory, "tmpfs", 0, "mode=755")
    first.mkdir()
    mount(f"/proc/self/fd/{kept}", first, "none", MS_BIND | MS_REC)


def become(uid: int, gid: int) -> None:
    """Be this user, in this group and no other; all that is imported later is found."""
    python = Path(sys.executable).resolve()
    if (closed := closed_above(python)) is not None:
        open_up(closed, python)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]))
    os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
