"""Other scripts: what is started under pliant and was not written for it.

Owns how long a script may take until it makes its session, and the sentence for one that made none.
Must not know how a worker ends.

    missing RANK ----------> uncaught: explained by script_errors
    no session in time ----> ended by the link's thread, wherever the script is
    none at the end -------> its last sentence
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from pliant.engine import script_files

WAYS_IN = (
    "Give its model, optimizer and dataset to a pliant.Session, take a trainer's from "
    "pliant.integrations, or start the script as it is with --mode restart, in which each change "
    "of size starts it again from its own checkpoint; pliant docs bring-your-script shows the lines"
)

NO_SESSION = (
    "the script ended without opening a pliant.Session; train inside"
    f" `with pliant.Session(...) as session:`. {WAYS_IN}"
)


class ScriptWatch:
    """Watches one script from its start until it makes a session, or ends without one."""

    def __init__(self, *, limit_s: float, end: Callable[[str], None]) -> None:
        """Of one script, from the thread that runs it.

        Args:
            limit_s: in which it is to make its session.
            end: ends the process with a sentence; it may be called from any thread.
        """
        self._limit_s = limit_s
        self._end = end
        self._since_s = time.monotonic()
        self._main = threading.get_ident()
        self._lock = threading.Lock()
        self._is_open = False
        self.waits_for = ""
        """What another process does that the script waits for, for people; empty: nothing."""

    def open(self) -> None:
        """Begin to watch."""
        self._is_open = True

    def close(self) -> None:
        """Watch no more: the script makes its session.  A second call does nothing."""
        with self._lock:
            self._is_open = False

    def end_if_late(self) -> None:
        """End a script that has not made its session in time; any thread may call it, often."""
        with self._lock:
            if not self._is_open or time.monotonic() - self._since_s < self._limit_s:
                return
            self._is_open = False
        # A documented function in spite of its name: what else tells where another thread is?
        frame = sys._current_frames().get(self._main)  # noqa: SLF001
        place = script_files.place_of_call(frame)
        where = f" and is at {place}" if place is not None else ""
        late = f"the script has made no pliant.Session in {self._limit_s:g} s{where}"
        if self.waits_for:
            why = f": it waits for {self.waits_for}. If that needs longer"
            self._end(f"{late}{why}, say so: --session-timeout 2h")
            return
        self._end(
            f"{late}. If it needs longer to get there, say so: --session-timeout 2h; if it trains "
            f"otherwise: {WAYS_IN}"
        )
