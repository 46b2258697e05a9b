"""Formed: what is needed to compute in one generation.

Owns which slots this replica has in a generation, and how its sums are reduced there.  Must not
know how the generation came about, or how a step becomes final.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.step import batching
from pliant.core.step.batching import Node
from pliant.core.values import Order, ReplicaId
from pliant.engine.groups.group import Group
from pliant.engine.reduce import shared_memory
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.exchange import Reduction
from pliant.engine.reduce.plan import ReductionPlan
from pliant.engine.reduce.windows import WindowSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a session is the same in all its generations."""

    num_slots: int
    layout: Layout
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """A generation that this replica is in."""

    order: Order
    group: Group
    reduction: Reduction
    owned: range
    """Its slots of every step."""


def form(
    order: Order,
    group: Group,
    shape: Shape,
    *,
    replica: ReplicaId,
    previous: Reduction | None = None,
) -> Formed:
    """Make what is needed to compute in a generation whose group is connected."""
    owners = batching.ownership(shape.num_slots, len(order.members))
    return Formed(
        order=order,
        group=group,
        reduction=Reduction(
            group,
            shape.layout,
            ReductionPlan.of(shape.num_slots, owners),
            exact=shape.is_exact,
            previous=previous,
        ),
        owned=owners[order.replicas.index(replica)],
    )


def window_size_for(order: Order, shape: Shape, replica: ReplicaId) -> WindowSize:
    """Return how much memory this replica needs where the others can read it."""
    plan = ReductionPlan.of(
        shape.num_slots, batching.ownership(shape.num_slots, len(order.members))
    )
    if not shape.is_exact:
        plan = plan.one_each()
    return shared_memory.window_size(shape.layout, plan, order.replicas.index(replica))


def nodes(formed: Formed, shape: Shape) -> tuple[Node, ...]:
    """Return the sums that this replica adds up by itself."""
    if shape.is_exact:
        return batching.subtrees(shape.num_slots, formed.owned)
    return (Node(formed.owned.start, formed.owned.stop, "root"),)
