"""Place runtime: what a state's handover asks of the protocol, on a follower.

Owns which of it worker 0 is told; the rest is worker 0's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pliant.core.events import Event, Refused, Unrestorable
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.values import Generation, Order
from pliant.wire.messages import WorkerNote


class PlaceFailure(Protocol):
    """Tells worker 0 that this place's part did not come about."""

    def __call__(self, generation: Generation, reason: str, **kind: bool) -> None:
        """``kind``: as the fields of ``Failed``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRuntime:
    """See the module's text."""

    now: Callable[[], Member]
    fail: PlaceFailure
    received: Callable[[Generation], None]

    @property
    def member(self) -> Member:
        """As of worker 0."""
        return self.now()

    def tell(self, message: Event | WorkerNote) -> None:
        """Tell worker 0 why this place takes no state."""
        if isinstance(message, Refused) and message.replica == self.member.replica:
            self.fail(message.generation, message.reason, is_refusal=True)
        elif isinstance(message, Unrestorable):
            self.fail(message.generation, message.reason, is_damage=True)

    def tell_busy(self, max_s: float) -> None:
        """Worker 0 tells."""

    def receive(self, order: Order, resolution: Resolution) -> None:
        """Tell that this place has its part."""
        del resolution
        self.received(order.generation)
