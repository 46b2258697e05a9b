"""The core of one pool: every event is answered, logged, and whom it concerns is noted.

Owns what has followed from events since it was last published: for whom, and why.  Decides
nothing; knows no claimant and no device.
"""

from __future__ import annotations

from collections.abc import Callable

from pliant.core import allocation
from pliant.core.allocation import Action, Asked, Event, Overdue, Refuse, TimePassed
from pliant.machine.clock import Clock
from pliant.observe.log import EventLog


class RefusedError(Exception):
    """What was asked is impossible, or not possible now; the sentence says why."""

    def __init__(self, sentence: str, *, is_temporary: bool = False) -> None:
        super().__init__(sentence)
        self.is_temporary = is_temporary
        """Whether the same may be granted a moment later."""


class Allocator:
    """Runs the core of one pool."""

    def __init__(
        self,
        core: allocation.Pool,
        *,
        log: EventLog,
        clock: Clock,
        on_overdue: Callable[[Overdue], None],
    ) -> None:
        self.core = core
        self.has_changed = True
        """Whether there is anything to publish."""

        self.touched: set[str] = set()
        """Claims of which something has changed."""

        self.reasons: dict[str, list[str]] = {}
        """Why, of the actions that were not published yet."""

        self._log = log
        self._clock = clock
        self._on_overdue = on_overdue
        self._refused: dict[str, str] = {}
        """Why, of who asked for the impossible last; who asks on and on is not logged again."""

    def apply(self, event: Event) -> str | None:
        """Let the core answer an event; return why a claim is refused, if it is."""
        self.core, actions = allocation.step(self.core, event, now_s=self._clock.now_s())
        refused = next((action.reason for action in actions if isinstance(action, Refuse)), None)
        if isinstance(event, Asked) and self._is_refused_again(event.claim.name, refused, actions):
            return refused
        self.has_changed = True
        if not isinstance(event, TimePassed):
            self._log.write_value(event)
        for action in actions:
            self._log.write_value(action)
            self.touch(action.name)
            self.reasons.setdefault(action.name, []).append(action.reason)
            if isinstance(action, Overdue):
                self._on_overdue(action)
        return refused

    def touch(self, name: str) -> None:
        """Note that something has changed for a claim."""
        self.touched.add(name)
        self.has_changed = True

    def published(self) -> None:
        """Note that everybody was told."""
        self.has_changed = False
        self.touched.clear()
        self.reasons.clear()

    def owned(self, name: str) -> tuple[int, ...]:
        """Return the devices of a claim, with those that it is to give back."""
        standing = allocation.standing(self.core, name)
        return standing.devices if standing is not None else ()

    def owners(self) -> dict[int, str]:
        """Return who has which device, with those that are to be given back."""
        return {
            device: name for name in allocation.claims(self.core) for device in self.owned(name)
        }

    def _is_refused_again(
        self, name: str, refused: str | None, actions: tuple[Action, ...]
    ) -> bool:
        """Whether all that follows is a refusal in the same words as the last."""
        before = self._refused.pop(name, None)
        if refused is not None:
            self._refused[name] = refused
        return refused is not None and refused == before and len(actions) == 1
