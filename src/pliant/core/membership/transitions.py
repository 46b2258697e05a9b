"""The states of a membership and of a member, and what may follow each of them.

Owns the two tables, as data; ``docs/states.md`` shows them.  ``state.moved`` follows the one,
``member_value.became`` the other.

What a worker says is heard in a phase whose row names it; it is stale in any other.  Hearing
changes no phase by itself: what does is what the core concludes, in words of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pliant.core.events import (
    Broken,
    Busy,
    Finished,
    Prepared,
    Progressed,
    PublishAsked,
    Refused,
    Registered,
    Saved,
    Spare,
    Switched,
    Unrestorable,
    WorkerEvent,
)
from pliant.core.transitions import Machine


class Phase(StrEnum):
    """Where the membership is in a change."""

    EMPTY = "empty"
    """No Switch was ever sent in this lineage, so that nobody can hold state of it yet."""

    REMEMBERED = "remembered"
    """A new coordinator knows the members from the register and has not heard from all of them."""

    STEADY = "steady"
    PREPARING = "preparing"
    SWITCHING = "switching"
    REFORMING = "reforming"

    LOST = "lost"
    """Nobody is left of a generation that had state.  Only a restore helps, and that is another
    membership, EMPTY, in a new lineage."""


ANYWHERE: tuple[type[WorkerEvent], ...] = (
    Spare,
    Progressed,
    Busy,
    # The controller acts on these; here they are signs of life.
    Registered,
    Unrestorable,
    PublishAsked,
    Saved,
)
"""What is heard in every phase in which workers are heard."""

IN_GENERATION = (*ANYWHERE, Broken, Finished)
ENTERING = (*IN_GENERATION, Switched, Refused)


def _row(
    phase: Phase, heard: tuple[type[WorkerEvent], ...], moves: Mapping[str, frozenset[Phase]]
) -> Mapping[str, frozenset[Phase]]:
    return {**{event.__name__: frozenset({phase}) for event in heard}, **moves}


AT_REST = frozenset({Phase.EMPTY, Phase.STEADY})
REFORMS = frozenset({Phase.REFORMING})
LOSES_ALL = frozenset({Phase.LOST})

PHASES = Machine(
    name="membership",
    initial=Phase.EMPTY,
    rows={
        Phase.EMPTY: _row(
            Phase.EMPTY,
            ANYWHERE,
            {
                "planned": frozenset({Phase.PREPARING}),
                "register read": frozenset({Phase.REMEMBERED, Phase.LOST}),
                "not restorable": REFORMS,
            },
        ),
        Phase.REMEMBERED: {
            "reunited": frozenset({Phase.STEADY}),
            "not all reunited": REFORMS,
            "nobody left": LOSES_ALL,
        },
        Phase.STEADY: _row(
            Phase.STEADY,
            IN_GENERATION,
            {
                "planned": frozenset({Phase.PREPARING}),
                "member lost": REFORMS,
                "still broken": REFORMS,
                "all wait": REFORMS,
                "nobody left": LOSES_ALL,
                "given up": LOSES_ALL,
            },
        ),
        Phase.PREPARING: _row(
            Phase.PREPARING,
            (*IN_GENERATION, Prepared, Refused),
            {
                "planned": frozenset({Phase.PREPARING}),
                "all prepared": frozenset({Phase.SWITCHING}),
                "not wanted": AT_REST,
                "not built": AT_REST,
                "joiner lost": AT_REST,
                "late": AT_REST,
                "broken": frozenset({Phase.STEADY}),
                "next call": frozenset({Phase.STEADY}),
                "finished": frozenset({Phase.STEADY}),
                "member lost": REFORMS,
                "joiner behind": REFORMS,
                "all wait": REFORMS,
                "nobody left": LOSES_ALL,
                "given up": LOSES_ALL,
            },
        ),
        Phase.SWITCHING: _row(
            Phase.SWITCHING,
            ENTERING,
            {
                "all switched": frozenset({Phase.STEADY}),
                "member lost": REFORMS,
                "joiner behind": REFORMS,
                "still broken": REFORMS,
                "late": REFORMS,
                "nobody left": LOSES_ALL,
                "given up": LOSES_ALL,
            },
        ),
        Phase.REFORMING: _row(
            Phase.REFORMING,
            ENTERING,
            {
                "all switched": frozenset({Phase.STEADY}),
                "member lost": REFORMS,
                "joiner behind": REFORMS,
                "still broken": REFORMS,
                "late": REFORMS,
                "nobody left": LOSES_ALL,
                "given up": LOSES_ALL,
            },
        ),
        Phase.LOST: _row(Phase.LOST, ANYWHERE, {"given up": LOSES_ALL}),
    },
)


class MemberState(StrEnum):
    """What a member is in the middle of, as ``member_value.state_of`` reads it off its fields."""

    SPARE = "spare"
    """In no generation; waits to join one."""

    TRAINING = "training"
    """In a generation, and no other is under way."""

    PREPARING = "preparing"
    """Builds the groups of an attempt beside what it does."""

    PREPARED = "prepared"
    """Has built them and said so; a leaver has nothing to build."""

    ORDERED = "ordered"
    """Their Switch has arrived: names the generation in its metadata, and enters where all do."""

    UNREADY = "unready"
    """The same, but the group broke before it was in: names nothing, and waits for a Reform."""

    BROKEN = "broken"
    """A collective of its generation failed: waits for a Reform."""

    REFORMING = "reforming"
    """Has accepted a Reform, which seals all older generations; builds its groups."""

    MEETING = "meeting"
    """Has built them: meets the others once its script comes by."""

    LEAVING = "leaving"
    """Takes part in nothing any more, and waits for Release, or was dismissed."""


COMMANDS = ("Prepare", "Switch", "Reform", "RollCall", "Stop")
"""May come at any time, and be too late to mean anything."""

IN_STEPS = ("vote", "commit", "call finished")


def _member_row(
    state: MemberState, stays: tuple[str, ...], moves: Mapping[str, set[MemberState]]
) -> Mapping[str, frozenset[MemberState]]:
    row = {cause: frozenset({state}) for cause in (*COMMANDS, *stays)}
    row["Dismiss"] = frozenset({MemberState.LEAVING})
    return row | {cause: row.get(cause, frozenset()) | after for cause, after in moves.items()}


MEMBERS = Machine(
    name="member",
    initial=MemberState.SPARE,
    rows={
        MemberState.SPARE: _member_row(
            MemberState.SPARE,
            ("call finished",),
            {"Prepare": {MemberState.PREPARING}, "Reform": {MemberState.REFORMING}},
        ),
        MemberState.TRAINING: _member_row(
            MemberState.TRAINING,
            (*IN_STEPS, "restored"),
            {
                "Prepare": {MemberState.PREPARING, MemberState.PREPARED},
                "Reform": {MemberState.REFORMING},
                "broken": {MemberState.BROKEN},
            },
        ),
        MemberState.PREPARING: _member_row(
            MemberState.PREPARING,
            IN_STEPS,
            {
                "Prepare": {MemberState.PREPARED},
                "Switch": {MemberState.UNREADY},
                "Reform": {MemberState.REFORMING, MemberState.SPARE},
                "built": {MemberState.PREPARED},
                "not built": {MemberState.SPARE, MemberState.TRAINING},
                "broken": {MemberState.BROKEN},
            },
        ),
        MemberState.PREPARED: _member_row(
            MemberState.PREPARED,
            IN_STEPS,
            {
                "Prepare": {MemberState.PREPARING},
                "Switch": {MemberState.ORDERED},
                "Reform": {MemberState.REFORMING, MemberState.SPARE},
                "broken": {MemberState.BROKEN, MemberState.PREPARING},
            },
        ),
        MemberState.ORDERED: _member_row(
            MemberState.ORDERED,
            (*IN_STEPS, "resolved", "received"),
            {
                "Reform": {MemberState.REFORMING, MemberState.SPARE},
                "entered": {MemberState.TRAINING},
                "left": {MemberState.LEAVING},
                "broken": {MemberState.BROKEN, MemberState.UNREADY},
            },
        ),
        MemberState.UNREADY: _member_row(
            MemberState.UNREADY,
            IN_STEPS,
            {
                "Reform": {MemberState.REFORMING, MemberState.SPARE},
                "left": {MemberState.LEAVING},
                "broken": {MemberState.BROKEN},
            },
        ),
        MemberState.BROKEN: _member_row(
            MemberState.BROKEN,
            ("built", "not built", "broken"),
            {"Reform": {MemberState.REFORMING}, "left": {MemberState.LEAVING}},
        ),
        MemberState.REFORMING: _member_row(
            MemberState.REFORMING,
            ("call finished",),
            {
                "Reform": {MemberState.SPARE},
                "built": {MemberState.MEETING},
                "left": {MemberState.LEAVING},
            },
        ),
        MemberState.MEETING: _member_row(
            MemberState.MEETING,
            ("call finished", "resolved", "received"),
            {
                "Reform": {MemberState.REFORMING, MemberState.SPARE},
                "entered": {MemberState.TRAINING},
                "left": {MemberState.LEAVING},
                "broken": {MemberState.REFORMING},
            },
        ),
        MemberState.LEAVING: _member_row(MemberState.LEAVING, ("built", "not built"), {}),
    },
)
