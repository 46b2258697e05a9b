"""The page that a restart worker shares with each process of its script: a file of 4 KiB in memory.

Owns its layout, and how both sides agree on the call at which all processes of a job learn of an
event, without a collective.  Imported by scripts: nothing here is slow to import.

    the script counts its calls   |  the restart worker writes at which call, first provisionally
    call n: calls = n             |  at = T, stage = PROVISIONAL
            n < at: no event      |  after SETTLE_S: calls >= T means that T was too low
            n >= at, PROVISIONAL: |  stage = CONFIRMED once this holds on no page of the job, or a
              wait                |  higher T
            n >= at, CONFIRMED: the event

Both sides write before they read.  What one has written may reach the other a moment later, but not
``SETTLE_S`` later: a call that saw no T is counted by then.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any

PAGE_VARIABLE = "PLIANT_EVENT_PAGE"
"""In the environment of a process: the path of its page."""

NONE, PROVISIONAL, CONFIRMED = range(3)
"""Stages of ``at``."""

SETTLE_S = 0.01
WAIT_S = 60.0
"""Longest wait of a process at a provisional call, in seconds."""

_BYTES = 4096
_CALLS, _AT, _STAGE, _SAVES, _STEP, _SAVED_AT, _FAILED = range(0, 56, 8)
_EVENT, _PATH = 64, 2048
_WORD = struct.Struct("@Q")
"""Native, so that it is copied at once: byte by byte, 255 to 256 would pass through 0."""

_LENGTH = struct.Struct("<H")


class Page:
    """Either side of one page."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """Open it; ``is_new``: make it.

        Raises:
            OSError: there is no room for it, or it is not there.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if is_new else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            if is_new:
                os.ftruncate(descriptor, _BYTES)
            self._memory = mmap.mmap(descriptor, _BYTES)
        finally:
            os.close(descriptor)

    def _get(self, at: int) -> int:
        return int(_WORD.unpack_from(self._memory, at)[0])

    def _put(self, at: int, value: int) -> None:
        _WORD.pack_into(self._memory, at, value)

    def _get_text(self, at: int) -> str:
        (length,) = _LENGTH.unpack_from(self._memory, at)
        start = at + _LENGTH.size
        return self._memory[start : start + length].decode(errors="replace")

    def _put_text(self, at: int, text: str, room: int) -> None:
        data = text.encode(errors="replace")[: room - _LENGTH.size]
        self._memory[at + _LENGTH.size : at + _LENGTH.size + len(data)] = data
        _LENGTH.pack_into(self._memory, at, len(data))

    # --- of the restart worker ----------------------------------------------------------

    @property
    def calls(self) -> int:
        """Return how often the process has asked."""
        return self._get(_CALLS)

    @property
    def saved(self) -> tuple[int, int, int, str]:
        """Return how many saves were acknowledged, and of the last its step, call and path."""
        saves, step, at = (self._get(one) for one in (_SAVES, _STEP, _SAVED_AT))
        return saves, step, at, self._get_text(_PATH)

    def propose(self, at: int, event: dict[str, Any]) -> None:
        """Have the process wait at this call, which may turn out to be too low."""
        self._put_text(_EVENT, json.dumps(event), _PATH - _EVENT)
        self._put(_STAGE, PROVISIONAL)
        self._put(_AT, at)

    def confirm(self) -> None:
        """Let the process see the event from the proposed call on."""
        self._put(_STAGE, CONFIRMED)

    # --- of the script --------------------------------------------------------------------

    def call(self) -> dict[str, Any] | None:
        """Count a call; return the event from the agreed one on."""
        number = self._get(_CALLS) + 1
        self._put(_CALLS, number)
        at = self._get(_AT)
        if not at or number < at:
            return None
        until_s = time.monotonic() + WAIT_S
        while self._get(_STAGE) != CONFIRMED:
            if number < self._get(_AT) or time.monotonic() > until_s:
                return None
            time.sleep(0.001)  # the other side is another process
        return None if number < self._get(_AT) else json.loads(self._get_text(_EVENT))

    def save(self, step: int, path: str) -> None:
        """Acknowledge that the state of a step is saved."""
        self._put(_STEP, step)
        self._put(_SAVED_AT, self._get(_CALLS))
        self._put_text(_PATH, path, _BYTES - _PATH)
        self._put(_SAVES, self._get(_SAVES) + 1)
