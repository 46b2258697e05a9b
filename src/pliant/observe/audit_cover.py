"""What an audit cannot cover: of which committed steps records may be missing, and why.

Owns the reasons that an event log gives.  On a host that does not see the directory of the run a
ledger is sent once a second, so that what a replica computed last goes with a host that is lost;
and a coordinator that was started anew on another host has neither the log nor the ledgers of the
one before.  Such records are missing, which proves no fault, and nothing else either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field

from pliant.core.text import in_words
from pliant.observe.log import Record

MOST_RUNS = 5
"""Ranges of steps that one sentence names."""

BEFORE = "a coordinator before this one had them, and its files are not here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """What an event log says of records that may be missing."""

    members: Mapping[int, Set[str]] = field(default_factory=dict)
    """generation -> the replicas that trained in it."""

    ended: Set[str] = frozenset()
    """Replicas that were reaped: their hosts have sent all that they recorded."""

    is_later: bool = False
    """Another coordinator led the job before, with a log of its own."""

    def gap(self, generation: int, told: Set[str]) -> str:
        """Say why not all of a committed step may be recorded; empty: all must be.

        ``told``: who has recorded that commit, and so all that it computed for it.
        """
        if generation not in self.members:
            return BEFORE if self.is_later else ""
        lost = sorted(self.members[generation] - told - self.ended)
        return f"{in_words(lost)} went with the host before it had sent them" if lost else ""

    def gap_in_steps(self) -> str:
        """Say why nothing at all may be recorded of a step; empty: something must be."""
        lost = sorted(set().union(*self.members.values()) - self.ended)
        if self.is_later:
            return BEFORE
        return f"{in_words(lost, 3)} went with the host before it had sent them" if lost else ""


def cover_of(records: Iterable[Record]) -> Cover:
    """Return what a whole event log says."""
    members: dict[int, Set[str]] = {}
    ended, is_later, has_begun = set[str](), False, False
    for record in records:
        kind = record.get("kind")
        if kind == "core_began" and not has_begun:
            has_begun, is_later = True, bool(record.get("register"))
        elif kind == "exited":
            ended.add(str(record.get("replica")))
        elif kind in ("switch", "reform"):
            with suppress(KeyError, TypeError, ValueError):
                order = record["order"]
                names = {str(seat["replica"]) for seat in order["members"]}
                members[int(order["generation"])] = names
    return Cover(members=members, ended=ended, is_later=is_later)


class Gaps:
    """The steps of which records are missing, in their order, by reason."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._runs: dict[str, list[range]] = {}

    def add(self, step: int, why: str) -> None:
        """Take in one step; what was taken in last may come again."""
        runs = self._runs.setdefault(why, [])
        if runs and step in runs[-1]:
            return
        self.num_steps += 1
        if runs and runs[-1].stop == step:
            runs[-1] = range(runs[-1].start, step + 1)
        else:
            runs.append(range(step, step + 1))

    def sentences(self) -> list[str]:
        """Return one for each reason."""
        return [
            f"records of {_in_words(runs)} are missing: {why}" for why, runs in self._runs.items()
        ]


def _in_words(runs: list[range]) -> str:
    words = [f"{one.start} to {one[-1]}" if len(one) > 1 else f"{one.start}" for one in runs]
    is_one = len(runs) == 1 and len(runs[0]) == 1
    return f"step{'' if is_one else 's'} {in_words(words, MOST_RUNS)}"
