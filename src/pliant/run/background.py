"""Starting what runs on by itself: a process in the background that is found once it serves.

Owns the wait for its discovery record, and the sentence if there is none.  Knows nothing of what
it does.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.machine.discovery import Served

FOUND_S = 30.0
"""Longest wait for the record of a process in the background, in seconds."""

POLL_S = 0.05


class EndedError(ConfigError):
    """The process ended before it was found; its last words say why."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def start(arguments: Sequence[str], *, log: Path, find: Callable[[], Served | None]) -> Served:
    """Start ``pliant`` with these arguments in the background; return its record.

    Raises:
        EndedError: it has ended.
        ConfigError: it was not found in time.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "pliant", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    waited_s, pause = 0.0, threading.Event()
    while waited_s < FOUND_S:
        found = find()
        if found is not None and found.pid == process.pid:
            return found
        if process.poll() is not None:
            raise EndedError(_last_line(log), process.returncode)
        pause.wait(POLL_S)
        waited_s += POLL_S
    raise ConfigError(f"nothing was served within {FOUND_S:g} s; see {log}")


def _last_line(log: Path) -> str:
    said = [line for line in log.read_text(errors="replace").split("\n") if line.strip()]
    return said[-1].removeprefix("pliant: ") if said else f"it ended at once; see {log}"
