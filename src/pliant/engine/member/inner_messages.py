"""What the workers of one replica tell each other.

Owns the messages and their bytes.  Both ends are of one installation and one replica, so they carry
no version; one that cannot be read is a bug and raises.

Worker 0 says directives; what the others say are answers (``core.membership.follower_answers``)
and, first of all, ``FollowerCame``.
"""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass
from typing import get_args

from pydantic import TypeAdapter

from pliant.core.membership.failure.worker_activity import Whereabouts
from pliant.core.membership.follower_answers import Answer
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.values import Generation, Lineage, Order


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerCame:
    """A follower is there."""

    place: int
    endpoint: str
    """Where the followers of the same place in other replicas reach it."""

    traits: tuple[tuple[str, str], ...]
    """What every worker of a replica must have alike, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStanding:
    """What of worker 0's membership its followers take over."""

    lineage: Lineage
    committed: int
    calls: int
    made_by: Generation
    current: Generation
    has_state: bool
    leaving: bool

    @classmethod
    def of(cls, member: Member) -> MemberStanding:
        """Return what ``member`` stands at."""
        return cls(
            lineage=member.lineage,
            committed=member.committed,
            calls=member.calls,
            made_by=member.made_by,
            current=member.current,
            has_state=member.has_state,
            leaving=member.leaving,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlace:
    """Connect the group of this worker's place, in the background."""

    order: Order
    """With the endpoints of this place."""

    secret: str
    """Of this place in this generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonPlace:
    """Give up the group of a generation, at once, whatever waits in it."""

    generation: Generation


CALLS = {
    "arrive": "session.steps()",
    "formed": "the loop over a step",
    "reduce": "the end of a step",
    "decide": "the end of a step",
    "recover": "the loop over a step",
    "settle": "the loop over session.steps()",
    "await_kept": "the end of session.steps()",
    "place": "the end of session.steps()",
    "attend": "session.evaluate",
    "exchange": "session.evaluate",
    "save": "session.save",
    "finish": "the end of the session",
}
"""Calls of the membership, by what the script is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReturned:
    """A call of the membership is over: what it gave on worker 0."""

    call: str
    standing: MemberStanding
    number: int = 0
    """What the call returns, as far as that is a number."""

    is_stopped: bool = False
    is_saved: bool = False
    sizes: tuple[int, ...] = ()
    """Slots of each replica from now on, if the call divides them."""

    parts: tuple[str, ...] | None = None
    """What all members of the generation gave, each byte a character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBroke:
    """A call of the membership ended with GroupBroken on worker 0."""

    generation: Generation
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveNow:
    """The job goes on without this replica, or is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseMember:
    """A member of the generation is gone, or may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpAttempt:
    """Forget the unfinished attempt at a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitVoted:
    """Commit the step that was voted for, under this generation."""

    generation: Generation
    standing: MemberStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Give or take state over the group of ``order``."""

    order: Order
    resolution: Resolution
    owes_tail: bool
    standing: MemberStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterPlace:
    """Compute in this generation from now on."""

    order: Order
    standing: MemberStanding
    sizes: tuple[int, ...]
    """Slots of each replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepPart:
    """Keep the state of this boundary: hand over this worker's share of it."""

    seat: tuple[int, int]
    """Rank of this replica, and the number of members."""

    standing: MemberStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishKeeping:
    """Say once this worker has done its part of all that was to be kept."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereAreYou:
    """Say at once where the main thread is."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIsAt:
    """Where the main thread of a follower is; the answer to ``WhereAreYou``."""

    place: int
    number: int
    where: Whereabouts


Deed = (
    LeaveNow
    | LoseMember
    | GiveUpAttempt
    | CommitVoted
    | HandOver
    | EnterPlace
    | KeepPart
    | FinishKeeping
)
"""What is done in the middle of a call of the membership."""

Directive = BuildPlace | AbandonPlace | WhereAreYou | CallReturned | CallBroke | Deed
InnerMessage = FollowerCame | WorkerIsAt | Answer | Directive

_KINDS = {kind.__name__: kind for kind in get_args(InnerMessage)}
_adapter = functools.cache(TypeAdapter)


def pack_message(message: InnerMessage) -> bytes:
    """Return the bytes of a message."""
    return json.dumps([type(message).__name__, asdict(message)], separators=(",", ":")).encode()


def unpack_message(data: bytes) -> InnerMessage:
    """Return the message that these bytes are."""
    name, fields = json.loads(data)
    message: InnerMessage = _adapter(_KINDS[name]).validate_json(json.dumps(fields), strict=True)
    return message
