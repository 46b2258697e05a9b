"""Files that other processes read: whole or not there, even after a power cut.

Owns how one is replaced.  Knows nothing of what is in it.
"""

from __future__ import annotations

import os
from pathlib import Path


def replace_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace a file; on return it survives a power cut, and before it the old one does.

    Raises:
        OSError: the storage does not take it; the file is as it was.
    """
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
