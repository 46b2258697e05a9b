"""What worker 0 of a replica concludes from what the other workers have said.

A replica of several workers has one voice: its worker 0 speaks the protocol, the others follow it
(``docs/decisions/0014-one-voice-per-replica.md``).  Owns what counts as an answer, and when all
have given one: a vote, ``Prepared`` and holding a state each stand for all workers of a replica.
Knows nothing of sockets, threads, tensors or time.

    worker 0 waits for     whole when every follower said   lost once one said     or
    its groups             Built(g)                         NotBuilt(g)            g was given up
    the sums of a step     Reduced(g, step)                 Failed(g)              g was given up
    its vote               Voted(g, step)                   Failed(g)              g was given up
    a state                Received(g)                      Failed(g)              g was given up
    what is being kept     Kept(g)                          Failed(g)              g was given up
    names of a state       StateNamed(g)                    Failed(g)              g was given up

An answer of a generation or step that nobody waits for is stale and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pliant.core.values import Generation, ReplicaId


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfGeneration:
    """What the worker of a place says of a generation."""

    place: int
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Built(_OfGeneration):
    """The group of this place is connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotBuilt(_OfGeneration):
    """The group of this place cannot be connected."""

    reason: str
    unreached: tuple[ReplicaId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced(_OfGeneration):
    """All bucket results of ``step`` are complete in this worker's memory."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted(_OfGeneration):
    """This worker is ready to commit ``step``; what it says beside that."""

    step: int
    stop: bool
    digests: tuple[int, ...]
    alike: tuple[int, ...] = ()
    """Digests of what all workers of a replica must have alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(_OfGeneration):
    """This worker holds its part of the state that was handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(_OfGeneration):
    """This worker has done its part of all that was to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNamed(_OfGeneration):
    """What this worker's state consists of: a short text of each value, by its name."""

    names: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(_OfGeneration):
    """What this worker did in a generation has failed."""

    reason: str
    is_refusal: bool = False
    """The state that it was given cannot be its own: who asks again gets the same."""

    is_damage: bool = False
    """The checkpoint that it was to load cannot be used."""


Answer = Built | NotBuilt | Reduced | Voted | Received | Kept | StateNamed | Failed

Asked = type[Built] | type[Reduced] | type[Voted] | type[Received] | type[Kept] | type[StateNamed]
"""What worker 0 may wait for."""

_FAILURES: Mapping[type, type] = {
    Built: NotBuilt,
    Reduced: Failed,
    Voted: Failed,
    Received: Failed,
    Kept: Failed,
    StateNamed: Failed,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Every follower has said it."""

    answers: tuple[Answer, ...]
    """By place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """It will not come about in this generation."""

    reason: str
    is_refusal: bool = False
    is_damage: bool = False
    unreached: tuple[ReplicaId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowersSaid:
    """What the followers of one replica have said so far; a plain value."""

    places: tuple[int, ...]
    """Of the followers."""

    answers: Mapping[tuple[type, int], Answer] = field(default_factory=dict)
    """The newest of each kind from each place."""

    given_up: frozenset[Generation] = frozenset()


def hear_answer(said: FollowersSaid, answer: Answer) -> FollowersSaid:
    """Take note of an answer; one of a generation that was given up is stale.

    Of two failures in a generation the first counts: what follows from it is no cause.
    """
    key = (type(answer), answer.place)
    known = said.answers.get(key)
    is_late = known is not None and known.generation > answer.generation
    if isinstance(known, Failed) and known.generation == answer.generation:
        return said
    if answer.place not in said.places or answer.generation in said.given_up or is_late:
        return said
    return replace(said, answers={**said.answers, key: answer})


def give_up(said: FollowersSaid, generation: Generation) -> FollowersSaid:
    """Expect nothing of a generation any more."""
    answers = {key: one for key, one in said.answers.items() if one.generation != generation}
    return replace(said, answers=answers, given_up=said.given_up | {generation})


def taken(said: FollowersSaid, kind: Asked) -> FollowersSaid:
    """Forget the answers of a kind: they were acted on, and count once."""
    answers = {key: one for key, one in said.answers.items() if key[0] is not kind}
    return replace(said, answers=answers)


def conclude(
    said: FollowersSaid, kind: Asked, generation: Generation, step: int | None = None
) -> Whole | Lost | None:
    """Return what follows for ``generation``; None while somebody has still to answer.

    Args:
        said: by the followers.
        kind: of the answers that are awaited.
        generation: that they are to be of.
        step: that they are to be of, where the kind has one.
    """
    if generation in said.given_up:
        return Lost(reason=f"generation {generation} was given up")
    for place in said.places:
        failure = said.answers.get((_FAILURES[kind], place))
        if isinstance(failure, NotBuilt | Failed) and failure.generation == generation:
            return Lost(
                reason=f"worker {place}: {failure.reason}",
                is_refusal=isinstance(failure, Failed) and failure.is_refusal,
                is_damage=isinstance(failure, Failed) and failure.is_damage,
                unreached=failure.unreached if isinstance(failure, NotBuilt) else (),
            )
    answers = [said.answers.get((kind, place)) for place in said.places]
    fitting = [one for one in answers if one is not None and _fits(one, generation, step)]
    return Whole(answers=tuple(fitting)) if len(fitting) == len(said.places) else None


def joint_digests(
    own: Sequence[int], others: Sequence[Sequence[int]], *, unknown: int
) -> tuple[int, ...]:
    """Return what a replica says of its state: of each aspect one number for all its workers.

    One that some worker does not know is unknown.
    """
    joint = []
    for column in zip(own, *others, strict=True):
        if unknown in column:
            joint.append(unknown)
            continue
        mixed = 0
        for digest in column:  # the order of places counts
            mixed = (mixed * _ODD + digest) & _MASK
        joint.append((column[0] if len(column) == 1 else mixed) or 1)
    return tuple(joint)


_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 63) - 1


def _fits(answer: Answer, generation: Generation, step: int | None) -> bool:
    if answer.generation != generation:
        return False
    return not isinstance(answer, Reduced | Voted) or answer.step == step
