"""Who of several hosts coordinates a job: when another takes over, and when one steps down.

Owns how long nothing must be seen of a coordinator before another host coordinates, and in which
order they try.  Knows nothing of the register, which alone says who counts (R1, R2): two that take
over at one moment, or one that was only slow, cost time and never a step.  No wall clocks are
compared: a coordinator raises a number every few seconds, and a candidate sees by its own clock for
how long that number stood still.

    candidate:  connected, or the number moves --> follow;  it stands still --> take over, in turn:
                soon where the coordinator's own host says that nobody listens at its place
    coordinator: it sees that the register is its own --> stay;  not for long --> step down
"""

from __future__ import annotations

from dataclasses import dataclass, replace

PATIENCE_S = 20.0
"""How long the sign of a coordinator stands still before another host takes over, in seconds: ten
of its beats, and twice what an agent waits for a coordinator that is silent."""

TURN_S = 5.0
"""How much longer each candidate waits than the one before it in the list, in seconds: by then the
one before has begun."""

GONE_S = 4.0
"""The same where the host of the coordinator refuses connections to its place, which it does once
that process has ended, in seconds: two beats, for a firewall may refuse them as well."""

GONE_TURN_S = 2.0
"""How much longer each candidate waits than the one before it in that case, in seconds."""

STEP_DOWN_S = 15.0
"""How long a coordinator goes on that does not see the register, in seconds: less than the others
wait, so that its agents look for the next one when that begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSign:
    """What a coordinator writes beside the register while the register is its own."""

    url: str
    """Where its agents find it."""

    incarnation: int
    beat: int
    """How often it has seen that the register is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a candidate has seen of the coordinator, and since when that has not changed."""

    seen: CoordinatorSign | None = None
    since_s: float
    is_first: bool = True
    """It has looked once at most."""
    gone_since_s: float | None = None
    """Since when every connection to that coordinator's place was refused, and the number stood
    still."""


def looked(watch: Watch | None, found: CoordinatorSign | None, *, now_s: float) -> Watch:
    """Take in one look; a sign that cannot be read at this moment is no look."""
    if watch is None:
        return Watch(seen=found, since_s=now_s)
    if found != watch.seen:
        return Watch(seen=found, since_s=now_s, is_first=False)
    return replace(watch, is_first=False)


def knocked(watch: Watch, *, is_refused: bool, now_s: float) -> Watch:
    """Take in whether a connection to the place of the coordinator was refused, and not only
    unanswered: silence may be a cut, or a process that was stopped.
    """
    if not is_refused:
        return replace(watch, gone_since_s=None)
    return watch if watch.gone_since_s is not None else replace(watch, gone_since_s=now_s)


def looking_again(now_s: float) -> Watch:
    """Return what a host has seen that has just stopped coordinating: others are to go first."""
    return Watch(since_s=now_s, is_first=False)


def why_take_over(
    watch: Watch | None, *, own_place: str, turn: int, is_connected: bool, now_s: float
) -> str | None:
    """Return why a host that may coordinate does so now; None: it does not.

    Args:
        watch: what it has seen; None: it has never been able to look.
        own_place: where it would be found, ``HOST:PORT``.
        turn: its place in the list of those that may coordinate, from 0.
        is_connected: whether its agent has a coordinator.
        now_s: monotonic seconds, as those of ``looked``.
    """
    if is_connected or watch is None:
        return None
    sign, still_s = watch.seen, now_s - watch.since_s
    is_own = sign is not None and sign.url.rpartition("/")[2] == own_place
    if watch.is_first and is_own:
        return f"the one before was at {own_place} too, where nobody listens now"
    if sign is None and watch.is_first and turn == 0:
        return "nobody has coordinated yet, and this host is the first of the list"
    if sign is not None and watch.gone_since_s is not None and not is_own:
        gone_s = now_s - watch.gone_since_s
        if gone_s > GONE_S + GONE_TURN_S * turn:
            return f"nobody has listened at {sign.url} for {gone_s:.0f} s"
    if still_s <= PATIENCE_S + TURN_S * turn:
        return None
    if sign is None:
        return f"no coordinator has given a sign for {still_s:.0f} s"
    return f"the coordinator at {sign.url} has given no sign for {still_s:.0f} s"


def steps_down(*, unseen_s: float, num_candidates: int) -> bool:
    """Whether a coordinator that has not seen the register for so long leaves it to others."""
    return num_candidates > 1 and unseen_s > STEP_DOWN_S
