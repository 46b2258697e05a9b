"""The states of a membership and of a member, and what may follow each of them.

Owns the two tables, as data; ``docs/reference/states.md`` shows them.  ``state.moved`` follows one,
``member.became`` the other.

What a worker says is heard in a phase whose row names it; it is stale in any other.  Hearing
changes no phase by itself: what does is what the core concludes, in words of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pliant.core import events
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


ANYWHERE: tuple[type[events.WorkerEvent], ...] = (
    events.Spare,
    events.Progressed,
    events.Busy,
    # The controller acts on these; here they are signs of life.
    events.Registered,
    events.Unrestorable,
    events.PublishAsked,
    events.Saved,
)
"""What is heard in every phase in which workers are heard."""

IN_GENERATION = (*ANYWHERE, events.Broken, events.Finished)
ENTERING = (*IN_GENERATION, events.Switched, events.Refused)


STEADY = (Phase.STEADY,)
AT_REST = (Phase.EMPTY, Phase.STEADY)
PREPARES = (Phase.PREPARING,)
REFORMS = (Phase.REFORMING,)
LOSES_ALL = (Phase.LOST,)

Moves = Mapping[tuple[Phase, ...], tuple[str, ...]]
"""What may follow, and the causes that lead there."""

ENTERS: Moves = {
    STEADY: ("all switched",),
    REFORMS: ("member lost", "joiner behind", "still broken", "late"),
    LOSES_ALL: ("nobody left", "given up"),
}

_PHASES: Mapping[Phase, tuple[tuple[type[events.WorkerEvent], ...], Moves]] = {
    Phase.EMPTY: (
        ANYWHERE,
        {
            PREPARES: ("planned",),
            (Phase.REMEMBERED, Phase.LOST): ("register read",),
            REFORMS: ("not restorable",),
        },
    ),
    Phase.REMEMBERED: (
        (),
        {
            STEADY: ("reunited",),
            REFORMS: ("not all reunited",),
            LOSES_ALL: ("nobody left", "given up"),
        },
    ),
    Phase.STEADY: (
        IN_GENERATION,
        {
            PREPARES: ("planned",),
            REFORMS: ("member lost", "still broken", "all wait"),
            LOSES_ALL: ("nobody left", "given up"),
        },
    ),
    Phase.PREPARING: (
        (*IN_GENERATION, events.Prepared, events.Refused),
        {
            PREPARES: ("planned",),
            (Phase.SWITCHING,): ("all prepared",),
            AT_REST: ("not wanted", "not built", "joiner lost", "late"),
            STEADY: ("broken", "next call", "finished"),
            REFORMS: ("member lost", "joiner behind", "all wait"),
            LOSES_ALL: ("nobody left", "given up"),
        },
    ),
    Phase.SWITCHING: (ENTERING, ENTERS),
    Phase.REFORMING: (ENTERING, ENTERS),
    Phase.LOST: (ANYWHERE, {LOSES_ALL: ("given up",)}),
}
"""What is heard in each phase, and what may follow it."""

PHASES = Machine(
    name="membership",
    initial=Phase.EMPTY,
    rows={
        phase: {event.__name__: frozenset({phase}) for event in heard}
        | {cause: frozenset(after) for after, causes in moves.items() for cause in causes}
        for phase, (heard, moves) in _PHASES.items()
    },
)


class MemberState(StrEnum):
    """What a member is in the middle of, as ``member.state_of`` reads it off its fields."""

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


_MEMBERS: Mapping[MemberState, tuple[tuple[str, ...], Mapping[str, set[MemberState]]]] = {
    MemberState.SPARE: (
        ("call finished",),
        {"Prepare": {MemberState.PREPARING}, "Reform": {MemberState.REFORMING}},
    ),
    MemberState.TRAINING: (
        (*IN_STEPS, "restored"),
        {
            "Prepare": {MemberState.PREPARING, MemberState.PREPARED},
            "Reform": {MemberState.REFORMING},
            "broken": {MemberState.BROKEN},
        },
    ),
    MemberState.PREPARING: (
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
    MemberState.PREPARED: (
        IN_STEPS,
        {
            "Prepare": {MemberState.PREPARING},
            "Switch": {MemberState.ORDERED},
            "Reform": {MemberState.REFORMING, MemberState.SPARE},
            "broken": {MemberState.BROKEN, MemberState.PREPARING},
        },
    ),
    MemberState.ORDERED: (
        (*IN_STEPS, "resolved", "received"),
        {
            "Reform": {MemberState.REFORMING, MemberState.SPARE},
            "entered": {MemberState.TRAINING},
            "left": {MemberState.LEAVING},
            "broken": {MemberState.BROKEN, MemberState.UNREADY},
        },
    ),
    MemberState.UNREADY: (
        IN_STEPS,
        {
            "Reform": {MemberState.REFORMING, MemberState.SPARE},
            "left": {MemberState.LEAVING},
            "broken": {MemberState.BROKEN},
        },
    ),
    MemberState.BROKEN: (
        ("built", "not built", "broken"),
        {"Reform": {MemberState.REFORMING}, "left": {MemberState.LEAVING}},
    ),
    MemberState.REFORMING: (
        ("call finished",),
        {
            "Reform": {MemberState.SPARE},
            "built": {MemberState.MEETING},
            "left": {MemberState.LEAVING},
        },
    ),
    MemberState.MEETING: (
        ("call finished", "resolved", "received"),
        {
            "Reform": {MemberState.REFORMING, MemberState.SPARE},
            "entered": {MemberState.TRAINING},
            "left": {MemberState.LEAVING},
            "broken": {MemberState.REFORMING},
        },
    ),
    MemberState.LEAVING: (("built", "not built"), {}),
}
"""In each state, the causes after which it stays, and those after which it may not."""


def _member_row(
    state: MemberState, stays: tuple[str, ...], moves: Mapping[str, set[MemberState]]
) -> Mapping[str, frozenset[MemberState]]:
    row = {cause: frozenset({state}) for cause in (*COMMANDS, *stays)}
    row["Dismiss"] = frozenset({MemberState.LEAVING})
    return row | {cause: row.get(cause, frozenset()) | after for cause, after in moves.items()}


MEMBERS = Machine(
    name="member",
    initial=MemberState.SPARE,
    rows={state: _member_row(state, stays, moves) for state, (stays, moves) in _MEMBERS.items()},
)
