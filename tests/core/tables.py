"""What tables of transitions allow, and which of their entries were used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any
from unittest import mock

from pliant.core.transitions import Machine

Entry = tuple[str, str, str, str]
"""Machine, state, cause, and the state that follows."""


def entries(machine: Machine[Any]) -> set[Entry]:
    return {
        (machine.name, state, cause, after)
        for state, row in machine.rows.items()
        for cause, following in row.items()
        for after in following
    }


def reached(machine: Machine[Any]) -> set[StrEnum]:
    """Return the states to which some way leads from the first."""
    found = {machine.initial}
    while (
        more := found.union(*(s for state in found for s in machine.rows[state].values()))
    ) != found:
        found = more
    return found


@contextmanager
def recorded() -> Iterator[set[Entry]]:
    """Note every entry of every table that is used."""
    seen: set[Entry] = set()
    follow, hears = Machine.follow, Machine.hears

    def following(
        machine: Machine[StrEnum],
        state: StrEnum,
        cause: str,
        after: StrEnum,
        *,
        history: Sequence[object] = (),
    ) -> StrEnum:
        after = follow(machine, state, cause, after, history=history)
        seen.add((machine.name, state, cause, after))
        return after

    def hearing(machine: Machine[StrEnum], state: StrEnum, cause: str) -> bool:
        is_heard = hears(machine, state, cause)
        if is_heard:
            seen.add((machine.name, state, cause, state))
        return is_heard

    with mock.patch.multiple(Machine, follow=following, hears=hearing):
        yield seen
