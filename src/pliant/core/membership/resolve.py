"""Who holds the state of the run when a generation forms, and what must be committed first.

Owns rule R15.  Every member of a new generation runs ``resolve`` over the same headers and gets
the same answer; no coordinator takes part, and no state has to move between survivors.  Knows
nothing of groups, tensors or how the headers travelled.

The argument for safety: a step commits on a member only after *every* member of that generation
voted, that is, held its complete reduced result.  So if anyone at all committed step ``s``, each
survivor either has committed it too or can do so from its own memory, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from pliant.core.errors import NoStateError
from pliant.core.values import NO_GENERATION, Generation, Lineage, Restore

NO_STEP = -1
"""In a header: holds no complete result of a step that it has not committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a member says about itself on entering a generation: seven integers."""

    lineage: Lineage

    committed: int
    """Committed steps; 0 without state."""

    made_by: Generation
    """Generation that made its last commit; 0 before the first."""

    vote_step: int = NO_STEP
    """Step whose complete reduced result it holds uncommitted; then equal to ``committed``."""

    vote_generation: Generation = NO_GENERATION
    """Generation in which it voted for that step."""

    has_state: bool
    calls: int

    def to_ints(self) -> tuple[int, ...]:
        """Return the fixed-size form that is exchanged: the fields in their order."""
        return tuple(map(int, astuple(self)))

    @classmethod
    def from_ints(cls, values: Sequence[int]) -> Header:
        """Read what ``to_ints`` wrote."""
        lineage, committed, made_by, vote_step, vote_generation, has_state, calls = values
        return cls(
            lineage=Lineage(lineage),
            committed=committed,
            made_by=Generation(made_by),
            vote_step=vote_step,
            vote_generation=Generation(vote_generation),
            has_state=bool(has_state),
            calls=calls,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What the members of a new generation do before its first step.  Ranks are replica_ranks."""

    survivors: tuple[int, ...]
    """Hold the state, once ``commits`` is done; they send it to ``joiners``."""

    commits: tuple[int, ...]
    """Survivors that first commit the step they voted for, from their own reduced gradient."""

    committed: int
    """Committed steps of every member once all this is done."""

    made_by: Generation
    """Generation under which the last of them is recorded; 0 before the first step."""

    lineage: Lineage

    calls: int
    """Finished ``steps()`` calls of the survivors."""

    joiners: tuple[int, ...]
    """Receive state, whatever they had."""

    restore: Restore | None = None
    """Nobody held state: the one survivor is the origin, which first loads this checkpoint; None:
    somebody did, or the origin has its initial state, at step 0."""


def resolve(
    headers: Sequence[Header], origin_rank: int | None = None, restore: Restore | None = None
) -> Resolution:
    """Decide from the headers of all members, in replica_rank order, how a generation begins.

    Args:
        headers: one per member; members without state take no part in the decision.
        origin_rank: whose initial state counts if nobody holds any; None when the run has begun.
        restore: what the origin loads in place of its initial state.

    Raises:
        NoStateError: nobody holds state and there is no origin.
    """
    holders = [rank for rank, header in enumerate(headers) if header.has_state]
    if not holders:
        return _first_state(headers, origin_rank, restore)
    lineage = max(headers[rank].lineage for rank in holders)
    holders = [rank for rank in holders if headers[rank].lineage == lineage]
    committed = max(headers[rank].committed for rank in holders)
    # Two makers of the newest commit cannot be (5.6); max keeps the answer the same everywhere.
    made_by = max(headers[r].made_by for r in holders if headers[r].committed == committed)
    newest = (committed, made_by)
    done = [r for r in holders if (headers[r].committed, headers[r].made_by) == newest]
    behind = [r for r in holders if _lacks_only(headers[r], committed, made_by)]
    survivors = tuple(sorted(done + behind))
    commits = tuple(behind)
    votes = {(headers[r].vote_step, headers[r].vote_generation) for r in survivors}
    if not behind and len(votes) == 1 and (vote := votes.pop())[0] == committed:
        commits = survivors
        committed, made_by = committed + 1, vote[1]
    return Resolution(
        survivors=survivors,
        commits=commits,
        committed=committed,
        made_by=made_by,
        lineage=lineage,
        calls=max(headers[rank].calls for rank in survivors),
        joiners=tuple(rank for rank in range(len(headers)) if rank not in survivors),
    )


def _first_state(
    headers: Sequence[Header], origin_rank: int | None, restore: Restore | None
) -> Resolution:
    if origin_rank is None:
        raise NoStateError(f"none of {len(headers)} members holds the state of the run")
    return Resolution(
        survivors=(origin_rank,),
        commits=(),
        committed=restore.committed if restore else 0,
        made_by=NO_GENERATION,
        lineage=restore.lineage if restore else headers[origin_rank].lineage,
        calls=headers[origin_rank].calls,
        joiners=tuple(rank for rank in range(len(headers)) if rank != origin_rank),
        restore=restore,
    )


def _lacks_only(header: Header, committed: int, made_by: Generation) -> bool:
    """Whether this holder is one step behind and voted for exactly the commit it lacks."""
    return header.committed == committed - 1 and (
        (header.vote_step, header.vote_generation) == (committed - 1, made_by)
    )
