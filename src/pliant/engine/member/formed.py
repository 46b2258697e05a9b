"""Formed: what is needed to compute in one generation.

Owns which slots this replica has in a generation, and how its sums are reduced there.  Must not
know how the generation came about, or how a step becomes final.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.core.step import batching
from pliant.core.step.balance import Balance, even_sizes, most_partials
from pliant.core.step.batching import Node
from pliant.core.values import Order, ReplicaId
from pliant.engine.comm.communicator import WindowSize
from pliant.engine.comm.group import Group
from pliant.engine.reduce import shared_memory
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.exchange import Reduction
from pliant.engine.reduce.plan import ReductionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a session is the same in all its generations."""

    num_slots: int
    layout: Layout
    is_exact: bool
    balance: Balance = Balance.EVEN

    at_once: int = 1
    """Slots that this replica computes at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """A generation that this replica is in."""

    order: Order
    group: Group
    reduction: Reduction
    sizes: tuple[int, ...]
    """Slots of each replica, in rank order."""

    owned: range
    """Its own slots of every step, until they are divided anew."""


def form(
    order: Order,
    group: Group,
    shape: Shape,
    *,
    replica: ReplicaId,
    sizes: Sequence[int] = (),
    previous: Reduction | None = None,
) -> Formed:
    """Make what is needed to compute in a generation whose group is connected.

    Args:
        sizes: slots of each replica; all members say the same.  None: evenly.
        previous: of the generation before, or of another division in this one.
    """
    sizes = tuple(sizes) or even_sizes(shape.num_slots, len(order.members))
    owners = batching.ranges_of(sizes)
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
        sizes=sizes,
        owned=owners[order.replicas.index(replica)],
    )


def window_size_for(order: Order, shape: Shape, replica: ReplicaId) -> WindowSize:
    """Return how much memory this replica needs where the others can read it."""
    size = len(order.members)
    plan = ReductionPlan.of(shape.num_slots, batching.ownership(shape.num_slots, size))
    most = 1
    if not shape.is_exact:
        plan = plan.one_each()
    elif shape.balance is Balance.SPEED:
        most = most_partials(shape.num_slots, size)
    rank = order.replicas.index(replica)
    return shared_memory.window_size(shape.layout, plan, rank, most_partials=most)


def nodes(formed: Formed, shape: Shape) -> tuple[Node, ...]:
    """Return the sums that this replica adds up by itself."""
    if shape.is_exact:
        return batching.subtrees(shape.num_slots, formed.owned)
    return (Node(formed.owned.start, formed.owned.stop, "root"),)
