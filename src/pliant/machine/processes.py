"""Whether another process of this machine still lives.

Owns that a process is known by its id and the moment it began: ids are used again.
"""

from __future__ import annotations

import os
from pathlib import Path


def process_started(pid: int) -> str | None:
    """Return when a process began, in ticks since boot; ``None`` if there is none that lives."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def process_lives(pid: int, started: str) -> bool:
    """Return whether the process that began then still lives; ids are used again."""
    if started:
        return process_started(pid) == started
    try:  # no /proc when it was written
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
