"""Slot division: the generation that this replica is in, with the slots that each member has there.

Owns what the members know in common of their times, and how a generation is formed anew when they
conclude that others compute more.  That is decided in ``core.step.balance``.  Must not know votes,
or how a generation came about.

    enter       what each said on entering      -> sizes, formed
    hear_times  what each said beside its vote  -> now and then other sizes, formed anew
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pliant.core.step.balance import (
    UNKNOWN_US,
    Division,
    divide,
    even_sizes,
    hear_times,
    pace_of,
    slowness,
)
from pliant.core.values import Order, ReplicaId
from pliant.engine.comm.group import Group
from pliant.engine.member.formed import Formed, Shape, form
from pliant.wire.messages import SlotsMoved


class SlotDivision:
    """See the module's text; for the main thread."""

    def __init__(
        self,
        replica: ReplicaId,
        shape: Shape,
        tell: Callable[[SlotsMoved], None],
        say_slow: Callable[[int], None],
    ) -> None:
        """``say_slow``: how many times as long as the others this replica takes, in tenths."""
        self._replica = replica
        self._shape = shape
        self._tell = tell
        self._division: Division | None = None
        self._say_slow = say_slow
        self._slow = 0
        self.formed: Formed | None = None
        """The generation that was entered last."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Slots of each replica in that generation, in rank order."""
        return () if self._division is None else self._division.sizes

    @property
    def pace_us(self) -> int:
        """How long this replica takes for what it computes at once; 0: it has not computed yet."""
        if self._division is None or self.formed is None:
            return UNKNOWN_US
        return pace_of(self._division, self.formed.group.rank)

    def enter(self, order: Order, group: Group, paces_us: Sequence[int], step: int) -> None:
        """Be in a generation whose members said this of their times; ``step`` is its first."""
        shape = self._shape
        division = divide(shape.num_slots, paces_us, balance=shape.balance, at_once=shape.at_once)
        is_even = division.sizes == even_sizes(shape.num_slots, len(paces_us))
        self._form(order, group, division, step, is_news=not is_even)

    def hear_times(self, slots_us: Sequence[int], step: int) -> None:
        """Take what all said beside their votes; ``step`` is the first of another division."""
        before, formed = self._division, self.formed
        if before is None or formed is None:
            raise AssertionError("a vote in no generation")
        self._division = after = hear_times(before, slots_us)
        if not after.heard:
            self._slow = slowness(after, formed.group.rank, self._slow)
            self._say_slow(self._slow)
        if after.sizes != before.sizes:
            self._form(formed.order, formed.group, after, step, is_news=True)

    def _form(
        self, order: Order, group: Group, division: Division, step: int, *, is_news: bool
    ) -> None:
        self._division = division
        previous = None if self.formed is None else self.formed.reduction
        replica, sizes = self._replica, division.sizes
        self.formed = form(
            order, group, self._shape, replica=replica, sizes=sizes, previous=previous
        )
        if is_news and group.rank == 0:
            self._tell(
                SlotsMoved(
                    replica=replica,
                    generation=order.generation,
                    step=step,
                    replicas=order.replicas,
                    sizes=sizes,
                    paces_us=division.pace_us,
                )
            )
