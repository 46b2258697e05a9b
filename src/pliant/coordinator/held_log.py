"""When the log of a job is written: while nothing comes that an order may wait for.

Owns how long it may wait.  Each record has the moment at which it was made, and all stay in order;
who asks something is answered once all is written.  Knows nothing of what is logged.
"""

from __future__ import annotations

from pliant.coordinator.inbox import Inbox
from pliant.observe.log import EventLog

MANY = 50
"""Replicas of a job whose log is held back: the answers of fewer are logged in a millisecond."""

AT_ONCE = 32
"""Records that are written before it is looked whether more has come: some milliseconds."""

LONGEST_S = 0.5
"""How long records are held back while more comes all the time, in seconds."""


def hold_back_of_many(log: EventLog, num_replicas: int) -> None:
    """Hold back what is logged from now on, if an order waits for the answers of many."""
    if num_replicas >= MANY:
        log.hold()


async def write_what_is_held(log: EventLog, inbox: Inbox) -> None:
    """Write what is held back, some of it at once, until more comes."""
    while (held_s := log.held_s) is not None:
        if held_s < LONGEST_S and await inbox.has_more():
            return
        log.release(AT_ONCE)
    log.release()  # hold back no more
