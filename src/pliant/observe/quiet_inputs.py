"""What the core is told that changes nothing anybody sees: signs of life, in few words.

Owns which of them are written down, and their form in a ``heard`` record: enough that a core which
hears only those comes to the same state.  A sign of life is left out once the same replica has
given a later one, as long as nothing looked at it in between, and no silence seems longer than it
was.  Knows nothing of files.

    [now_s]                                                        time has passed
    [now_s, replica, generation, committed, calls, waiting, is_spoken_for, held_up_by + 2, slow]
                                                                   a heartbeat
    [now_s, node, [replicas]]                                      what an agent runs
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum, auto
from operator import attrgetter
from typing import Any

from pliant.core.events import Event, Progressed, Running, Ticked
from pliant.core.job.state import History, Job, Sizing
from pliant.core.membership.state import Membership, PhaseWait

Quiet = Ticked | Progressed | Running
"""Events that go into the log on their own only if something came of them."""

Entry = list[Any]

HELD_UP = 2
"""Added to the number of a worker, which may be -1: 0 stands for none."""


def _others(kind: type, *names: str, of: str = "") -> tuple[str, ...]:
    """Return the other fields that count when values are compared, as ``attrgetter`` reads them."""
    return tuple(of + one.name for one in fields(kind) if one.compare and one.name not in names)


# One reader for all fields: a thousand agents send two thousand signs of life a second.
_rest_of_job = attrgetter(
    *_others(Job, "membership", "history", "sizing"),
    *_others(History, "seen_s", of="history."),
    *_others(Sizing, "costs", of="sizing."),
)
_rest_of_membership = attrgetter(
    *_others(Membership, "pulses", "committed", "wait"),
    *_others(PhaseWait, "hung_at_s", of="wait."),
)
_commits_of = attrgetter("committed", "wait.hung_at_s")


class _Effect(Enum):
    LIFE = auto()
    """Somebody lives; the next sign of it says as much."""

    COMMIT = auto()
    """A step is committed; nobody else's signs of life were looked at."""

    OTHER = auto()


@dataclass(slots=True, kw_only=True)
class QuietInputs:
    """Those since they were taken last, in order."""

    most_silence_s: float
    """A silence of so long would be noticed; between two that stay there is never a false one."""

    lasting: int = 0
    """How many of them stay whatever comes."""

    _entries: list[Entry | None] = field(default_factory=list)
    _latest: dict[str, int] = field(default_factory=dict)
    """Whose last sign of life stands where; a later one takes its place."""

    _last: tuple[float, str] = (0.0, "")
    _anchored_s: float = 0.0
    """Of the newest entry that stays."""

    def add(self, event: Quiet, before: Job, after: Job, now_s: float) -> None:
        """Take in one that nothing came of but another state."""
        last_s, last_key = self._last
        if now_s - self._anchored_s > self.most_silence_s / 2 and last_s > self._anchored_s:
            self.lasting += self._latest.pop(last_key, None) is not None
            self._anchored_s = last_s
        effect = _effect(event, before, after, now_s, self.most_silence_s)
        if effect is _Effect.OTHER:
            self.lasting += len(self._latest) + 1
            self._latest = {}
        key = _key(event)
        self._forget(key)
        self._last = (now_s, key)
        if effect is _Effect.LIFE:
            self._latest[key] = len(self._entries)
        else:
            self.lasting += effect is _Effect.COMMIT
            self._anchored_s = now_s
        self._entries.append(_entry(event, after if effect is _Effect.LIFE else None, now_s))
        if len(self._entries) > 64 + 2 * (self.lasting + len(self._latest)):
            self._tidy()

    def taken(self, now_s: float | None = None) -> list[Entry]:
        """Return them, and begin anew; ``now_s``: with an event that is written on its own."""
        found = [entry for entry in self._entries if entry is not None]
        self._entries, self._latest, self.lasting = [], {}, 0
        self._anchored_s = self._last[0] if now_s is None else now_s
        self._last = (self._anchored_s, "")
        return found

    def _forget(self, key: str) -> None:
        at = self._latest.pop(key, None)
        if at is not None:
            self._entries[at] = None

    def _tidy(self) -> None:
        places = {at: key for key, at in self._latest.items()}
        kept: list[Entry | None] = []
        for at, entry in enumerate(self._entries):
            if entry is None:
                continue
            if at in places:
                self._latest[places[at]] = len(kept)
            kept.append(entry)
        self._entries = kept


def _key(event: Quiet) -> str:
    match event:
        case Progressed(replica=replica):
            return f"replica {replica}"
        case Running(node=node):
            return f"node {node}"
        case Ticked():
            return ""


def _entry(event: Quiet, after: Job | None, now_s: float) -> Entry:
    """Return how an event is written; ``after``: one that stands for those of its replica before.

    Then it says how far that replica is, whichever of them said so.
    """
    match event:
        case Ticked():
            return [now_s]
        case Running(node=node, replicas=replicas):
            return [now_s, node, list(replicas)]
        case Progressed(replica=replica, committed=committed):
            pulse = None if after is None else after.membership.pulses.get(replica)
            committed = committed if pulse is None else pulse.committed
            stuck = 0 if event.held_up_by is None else event.held_up_by + HELD_UP
            ends = [int(event.waiting), int(event.is_spoken_for), stuck, event.slow]
            while ends and not ends[-1]:
                ends.pop()
            return [now_s, replica, int(event.generation), committed, event.calls, *ends]


def _effect(event: Quiet, before: Job, after: Job, now_s: float, silence_s: float) -> _Effect:
    """Say what came of an event.  A tick has looked at everybody's signs of life."""
    if isinstance(event, Ticked) or now_s - before.history.seen_s > silence_s:
        return _Effect.OTHER
    if _rest_of_job(before) != _rest_of_job(after):
        return _Effect.OTHER
    old, new = before.membership, after.membership
    if old is new and before.sizing.costs is after.sizing.costs:
        return _Effect.LIFE
    if _rest_of_membership(old) != _rest_of_membership(new):
        return _Effect.OTHER
    if _trouble_of(event, old) != _trouble_of(event, new):
        return _Effect.OTHER
    is_same = before.sizing.costs is after.sizing.costs and _commits_of(old) == _commits_of(new)
    return _Effect.LIFE if is_same else _Effect.COMMIT


def _trouble_of(event: Event, state: Membership) -> tuple[bool, float] | None:
    """Return whether the sender's agent speaks for it, and when it counts as hung."""
    pulse = state.pulses.get(event.replica) if isinstance(event, Progressed) else None
    return None if pulse is None else (pulse.is_mute, pulse.hung_at_s)
