"""Handovers: the interpreter's lock changes hands sooner while members meet.

Owns the one setting of the interpreter that says how long a thread may keep others waiting
(``sys.setswitchinterval``).  Must not know who meets.

A meeting is some dozens of calls to the system, each of which gives the lock away and has to ask a
main thread in pure Python for it again: at 5 ms each that is most of a meeting.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERVAL_S = 0.0002
"""While somebody meets; a main thread that gives the lock away itself notices nothing of it."""

_lock = threading.Lock()
_usual_s: list[float] = []
"""What was set before, once for each who meets now: the setting is the interpreter's, too."""


@contextmanager
def quick_handovers() -> Iterator[None]:
    """Have the lock change hands quickly for as long as this; any thread, any number at once."""
    with _lock:
        usual_s = sys.getswitchinterval()
        _usual_s.append(_usual_s[0] if _usual_s else usual_s)
        if usual_s > INTERVAL_S:
            sys.setswitchinterval(INTERVAL_S)
    try:
        yield
    finally:
        with _lock:
            usual_s = _usual_s.pop()
            is_ours = abs(sys.getswitchinterval() - INTERVAL_S) < INTERVAL_S / 100
            if not _usual_s and is_ours:  # else the script has set another one meanwhile
                sys.setswitchinterval(usual_s)
