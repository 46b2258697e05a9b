"""Which members cannot reach each other, and whom a generation leaves out because of it (R19).

Owns the graph of links that are broken, by what members say when their groups could not be built.
Must not know when that is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from pliant.core.values import ReplicaId

Link = tuple[ReplicaId, ReplicaId]
"""Two members, in the order of their names, one of which could not connect to the other."""


def added(
    links: frozenset[Link], sender: ReplicaId, unreached: Iterable[ReplicaId]
) -> frozenset[Link]:
    """Return the links with those that a member has found broken."""
    return links | {(min(sender, other), max(sender, other)) for other in unreached}


def left_out(
    names: Sequence[ReplicaId], links: Collection[Link], holders: Collection[ReplicaId]
) -> frozenset[ReplicaId]:
    """Return whom to leave out so that all others reach each other.

    Whoever has most broken links goes first, among equals the last in order; that leaves the larger
    part of two.  One of those that hold the state stays in any case.
    """
    there = list(names)
    while broken := [link for link in links if set(link) <= set(there)]:
        holding = [name for name in there if name in holders]
        count = Counter(name for link in broken for name in link)
        free = [name for name in there if count[name] and holding != [name]]
        there.remove(max(free, key=lambda name: (count[name], there.index(name))))
    return frozenset(names) - frozenset(there)


def no_link_between(cut: Collection[ReplicaId], links: Collection[Link]) -> str:
    """Say why these are left out."""
    ends = {end for link in links if set(link) & set(cut) for end in link} - set(cut)
    others = ", ".join(sorted(ends)) or "each other"
    return f"no connection between {', '.join(sorted(cut))} and {others} could be made"
