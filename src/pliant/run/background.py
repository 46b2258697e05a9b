"""Starting what runs on by itself: a process in the background that is found once it serves.

Owns the wait for its discovery record.  Knows nothing of what it does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pliant.core.errors import ConfigError
from pliant.core.text import last_line
from pliant.machine.registry import Served

FOUND_S = 30.0
"""Longest wait for the record of a process in the background, in seconds."""

POLL_S = 0.05


class EndedError(ConfigError):
    """The process ended before it was found; its last words say why."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def start(
    module: Sequence[str],
    document: Mapping[str, Any],
    *,
    log: Path,
    find: Callable[[], Served | None],
) -> Served:
    """Start a module, which reads the document from its standard input; return its record.

    Raises:
        EndedError: it has ended.
        ConfigError: it was not found in time.
    """
    memory = os.memfd_create("document")  # a full /tmp keeps nobody from starting
    with log.open("ab") as output, os.fdopen(memory, "w+") as resolved:
        json.dump(document, resolved)
        resolved.seek(0)
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", *module],
            stdin=resolved,  # a file, not a pipe: nobody waits for a reader, nothing is left
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
            said = last_line(log.read_text(errors="replace"))
            raise EndedError(said or f"it ended at once; see {log}", process.returncode)
        pause.wait(POLL_S)
        waited_s += POLL_S
    raise ConfigError(
        f"what was started in the background did not answer within {FOUND_S:g} s; "
        f"{log} has its output"
    )
