"""Whether a spare may join a run: in what it differs from the one that the run began with.

Owns the comparison and its sentence.  Does not decide what becomes of the spare.
"""

from __future__ import annotations

from pliant.core.events import Spare


def difference(spare: Spare, reference: Spare) -> str | None:
    """Say in what a spare differs from the run it is to join; None if it may join.

    Outside exact mode only what the collectives need must agree.
    """
    if spare.num_slots != reference.num_slots:
        return f"it has {spare.num_slots} slots in a step, the run has {reference.num_slots}"
    if spare.layout != reference.layout:
        return _other_model(spare.layout.splitlines(), reference.layout.splitlines())
    ours, theirs_ = dict(spare.identity), dict(reference.identity)
    is_exact = theirs_.get("reduction", "exact") == "exact"
    for name in sorted(ours.keys() | theirs_.keys()):
        if ours.get(name) != theirs_.get(name) and (is_exact or name == "reduction"):
            return f"its {name} is {ours.get(name)}, the run has {theirs_.get(name)}"
    return None


def _other_model(mine: list[str], theirs: list[str]) -> str:
    """Say where two descriptions of a model differ first; a line is ``name dtype shape``."""
    my_names = {line.partition(" ")[0] for line in mine}
    their_names = {line.partition(" ")[0] for line in theirs}
    for here, there in zip(mine, theirs, strict=False):
        if here == there:
            continue
        if there.partition(" ")[0] not in my_names:
            return f"its model lacks {there}, which the run has"
        if here.partition(" ")[0] not in their_names:
            return f"its model has {here}, which the run has not"
        return f"its model has {here} where the run has {there}"
    return "its model has other parameters than the run's"
