"""Tables of transitions: which state may follow which, and what brings it about.

Owns the form in which every state machine of the core says what it may do, in the manner of h11:
the rows are data, and each machine sets its state in one function, which asks ``Machine.follow``.
Knows no machine; ``tools/make_pages.py`` draws them all in ``docs/reference/states.md``.

A cause is the name of an event (``Prepared``), or a few words for what the core itself concludes
(``all prepared``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from pliant.core.errors import TransitionError

State = TypeVar("State", bound=StrEnum)

NOTHING: frozenset[str] = frozenset()

EventHistory = tuple[object, ...]
"""The last that happened to one object, oldest first; for the report of a TransitionError."""

HISTORY_LENGTH = 12
"""How much an object remembers: an attempt at a resize and what led to it."""


def extended(history: EventHistory, *news: object) -> EventHistory:
    """Return a history with this at its end."""
    return (*history, *news)[-HISTORY_LENGTH:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Generic[State]):
    """One state machine: its states, and for each of them what may follow."""

    name: str
    """Whose states these are, in a word or two: ``replica``."""

    initial: State

    rows: Mapping[State, Mapping[str, frozenset[State]]]
    """State -> cause -> the states that may follow; the state itself is named where it may stay.
    A row that names no other state is terminal."""

    def follow(
        self, state: State, cause: str, after: State, *, history: Sequence[object] = ()
    ) -> State:
        """Return ``after``, which ``cause`` leads to.

        Raises:
            TransitionError: the table does not allow it; it tells the history.
        """
        if after not in self.rows[state].get(cause, NOTHING):
            event = f"{cause}, to be {after},"
            raise TransitionError(phase=f"{self.name} {state}", event=event, history=history)
        return after

    def hears(self, state: State, cause: str) -> bool:
        """Whether a cause means anything in a state."""
        return cause in self.rows[state]

    @property
    def terminal(self) -> frozenset[State]:
        """Return the states that no other one follows."""
        return frozenset(
            state for state, row in self.rows.items() if not set().union(*row.values()) - {state}
        )
