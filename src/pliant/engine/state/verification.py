"""Verification: the whole state of the replicas compared, and who is parted with if it differs.

Owns what follows from a difference: without verification the script is to blame, and the run ends;
with it (``verifyEvery``) memory or a device is, and whoever differs from more than half of the
others leaves.  Must not know how replicas meet, nor how one that left is replaced.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pliant.core.errors import StateCorruptError, UsageError
from pliant.core.step.majority import minority
from pliant.engine.evaluation import EvaluationTeam
from pliant.engine.state import naming
from pliant.engine.state.comparison import StateComparison

_WHO = ""
"""Under which name a replica says who it is, beside those of its state."""


def compare_whole(
    comparison: StateComparison,
    team: EvaluationTeam,
    own: str,
    committed: int,
    *,
    is_verified: bool,
) -> str:
    """Compare the whole state at a boundary; all members of the team must call.

    Returns what is wrong with others, who leave by themselves; empty if all is alike.

    Raises:
        UsageError: the state differs, and there is nobody to part with.
        StateCorruptError: the state of this replica is wrong.
    """
    names = team.gather_names(comparison.whole())
    said = team.exchange(f"state/{committed}", naming.pack({_WHO: naming.summary(names)}))
    if said is None or len(set(said)) == 1:
        return ""
    told = team.exchange(f"state/{committed}/names", naming.pack({**names, _WHO: own}))
    if told is None and is_verified:
        return ""  # they meet anew, and whoever is still wrong is seen at the next look
    found = [naming.unpack(part) for part in told or ()]
    replicas = [one.pop(_WHO) for one in found]
    what = naming.difference(found, replicas) or "the state differs between replicas"
    if not is_verified:
        raise UsageError(naming.sentence(committed, what))
    return part_with_the_wrong(said, replicas, own, f"at step {committed} {what}")


def part_with_the_wrong(
    digests: Sequence[Hashable], replicas: Sequence[str], own: str, what: str
) -> str:
    """Return ``what`` on replicas whose digest is that of more than half.

    Raises:
        UsageError: no digest is.
        StateCorruptError: that of this replica is not.
    """
    wrong = minority(digests)
    if wrong is None:
        raise UsageError(
            f"{what}, and no more than half of the replicas are alike: nobody can say which are "
            "right, so the run ends before a checkpoint holds it; pliant resume goes on from the "
            "one before"
        )
    if replicas.index(own) in wrong:
        raise StateCorruptError(what)
    return what
