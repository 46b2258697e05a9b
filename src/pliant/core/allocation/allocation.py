"""The one way to change a pool: an event in, the next pool and the actions that follow out.

Must not know sockets, files, processes, or the wall clock; the caller passes ``now_s`` in.
"""

from __future__ import annotations

from collections.abc import Iterable

from pliant.core.allocation.state import Pool
from pliant.core.allocation.vocabulary import (
    CLASSES,
    Action,
    Event,
    PriorityClass,
    Rules,
    Team,
)


def new_pool(
    devices: int,
    *,
    classes: Iterable[PriorityClass] = CLASSES,
    teams: Iterable[Team] = (),
    rules: Rules | None = None,
    is_open: bool = True,
) -> Pool:
    """Return a pool of idle devices ``0 .. devices-1`` without claims.

    Args:
        devices: how many there are.
        classes: priority classes; more, and other values, by ``ClassSet``.
        teams: beside the default team (or instead of it, if one of them has its name).
        rules: None: the defaults.
        is_open: False: nothing is given or taken before ``Opened``, so that what is held already
            can be told first, by ``Recovered``.

    Raises:
        ConfigError: a number is negative, or a team names a class that is not there.
    """
    raise NotImplementedError


def step(pool: Pool, event: Event, *, now_s: float) -> tuple[Pool, tuple[Action, ...]]:
    """Apply one event; return the next pool and what to tell to whom.

    Pure: same arguments, same result.  Waits that are over by ``now_s`` end first, whatever the
    event.  What a *claimant* asks for and cannot have ever is a ``Refuse``; what is merely not
    there yet is no action, and ``why`` explains it.  Late or repeated news changes nothing.

    Args:
        pool: the value returned by the previous call.
        event: what happened.
        now_s: monotonic seconds; must not run backwards between calls.

    Raises:
        ConfigError: what an *operator* set is impossible (TeamSet, TeamRemoved, ClassSet,
            DevicesSet, Cordoned, Drained, Uncordoned); the pool stays as it is.
    """
    raise NotImplementedError


def next_deadline_s(pool: Pool) -> float:
    """Return when to send ``Ticked`` if nothing happens before; inf: no need to."""
    raise NotImplementedError
