"""How often agents and workers give signs of life, and who falls silent together.

Owns both rules, for the coordinator, which tells its agents the pause between two signs, and for
whoever notices that none came: so many agents are heard by one coordinator on one core, and what
is lost at once is found lost at once.  Must not know what a sign of life says.
"""

from __future__ import annotations

from collections.abc import Iterable

NEVER = float("inf")

HEARTBEAT_S = 0.5
"""Between two heartbeats of a worker, in seconds, unless there are too many workers for that."""

MOST_PER_S = 400
"""Signs of life of one kind that a coordinator hears in a second; with more workers each gives
them less often.  800 of both kinds take about a tenth of a core."""


SILENCE_S = 10.0
"""After which one is taken for lost unless told otherwise, in seconds."""


def interval_s(count: int, silence_s: float = SILENCE_S) -> float:
    """Return how far apart the signs of life of each of so many are, in seconds.

    ``silence_s``: after which one is taken for lost.  Four signs fit into that, however many give
    them: one may come late and nobody is lost for it.
    """
    return min(max(HEARTBEAT_S, count / MOST_PER_S), silence_s / 4)


def found_at_s(due_s: Iterable[float]) -> float:
    """Return when the first of these are to be found silent, and with them all that are due then.

    ``due_s``: when the silence of each has lasted long enough.  Those who fall silent at one moment
    gave their last signs within one interval before it, give or take half a heartbeat, so the first
    waits for so long, if others are due by then; one that is silent by itself waits for nobody.
    """
    moments = tuple(due_s)
    if not moments:
        return NEVER
    until_s = min(moments) + interval_s(len(moments)) + HEARTBEAT_S / 2
    return max(one for one in moments if one <= until_s)
