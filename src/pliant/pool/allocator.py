"""The core of one pool: made of what is set; then every event is answered and logged.

Owns the core as it is before anybody has a claim, and what has followed from events since it was
last published: for whom, and why.  Decides nothing; knows no claimant and no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version

from pliant.core import allocation
from pliant.core.allocation import Action, Asked, Event, Overdue, Refuse, kinds
from pliant.core.allocation.kinds import KindedPool, PoolBeginning, begun
from pliant.core.device_names import kind_of
from pliant.machine.clock import Clock
from pliant.observe.core_values import written
from pliant.observe.log import EventLog
from pliant.pool.state import SavedPool
from pliant.spec.pool import team_of

MOST_REFUSED = 1000
"""Refused claims of which it is known what they were told; one more is logged again."""


class RefusedError(Exception):
    """What was asked is impossible, or not possible now; the sentence says why."""

    def __init__(self, sentence: str, *, is_temporary: bool = False) -> None:
        super().__init__(sentence)
        self.is_temporary = is_temporary
        """Whether the same may be granted a moment later."""


class ReleasedError(RefusedError):
    """The claim was ended by who may end it; its claimant is to end what runs."""


@dataclass(slots=True, kw_only=True)
class Allocator:
    """Runs the core of one pool."""

    beginning: PoolBeginning
    log: EventLog
    clock: Clock
    on_overdue: Callable[[Overdue], None]

    core: KindedPool = field(init=False)

    has_changed: bool = True
    """Whether there is anything to publish."""

    touched: set[str] = field(default_factory=set)
    """Claims of which something has changed."""

    reasons: dict[str, list[str]] = field(default_factory=dict)
    """Why, of the actions that were not published yet."""

    _refused: dict[str, str] = field(default_factory=dict)
    """Why, of who asked for the impossible last; who asks on and on is not logged again."""

    def __post_init__(self) -> None:
        """Let the core begin."""
        self.core = begun(self.beginning, now_s=self.clock.now_s())

    def write_beginning(self) -> None:
        """Log with what the core began, before anything that it was told."""
        self.log.write(
            "pool_began",
            now_s=self.clock.now_s(),
            version=version("pliant"),
            beginning=written(PoolBeginning, self.beginning),
        )

    def apply(self, event: Event) -> str | None:
        """Let the core answer an event; return why a claim is refused, if it is."""
        now_s = self.clock.now_s()
        is_due = kinds.next_deadline_of_kinds_s(self.core) <= now_s
        self.core, actions = kinds.step_kinds(self.core, event, now_s=now_s)
        refused = next((action.reason for action in actions if isinstance(action, Refuse)), None)
        if isinstance(event, Asked):
            is_again = self._is_refused_again(event.claim.name, refused, actions)
            if is_again and not is_due:
                return refused  # and a replay does not miss it: nothing else has changed
        self.has_changed = True
        self.log.write_value(event, now_s=now_s)
        for action in actions:
            self.log.write_value(action)
            self.touch(action.name)
            self.reasons.setdefault(action.name, []).append(action.reason)
            if isinstance(action, Overdue):
                self.on_overdue(action)
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
        standing = kinds.standing_of(self.core, name)
        return standing.devices if standing is not None else ()

    def owners(self) -> dict[int, str]:
        """Return who has which device, with those that are to be given back."""
        return {
            device: name for name in kinds.claims_of_kinds(self.core) for device in self.owned(name)
        }

    def _is_refused_again(
        self, name: str, refused: str | None, actions: tuple[Action, ...]
    ) -> bool:
        """Whether all that follows is a refusal in the same words as the last."""
        before = self._refused.pop(name, None)
        if refused is not None:
            self._refused[name] = refused
            if len(self._refused) > MOST_REFUSED:  # names cost nothing: the oldest goes
                del self._refused[next(iter(self._refused))]
        return refused is not None and refused == before and len(actions) == 1


def numbered(saved: SavedPool) -> SavedPool:
    """Return the same with the number of devices that there ever were."""
    held = [device for claim in saved.claims for device in claim.devices]
    number = max([saved.number, saved.size, saved.devices, *(device + 1 for device in held)])
    return saved.model_copy(
        update={
            "number": number,
            "cordoned": tuple(device for device in saved.cordoned if device < number),
            "drained": tuple(device for device in saved.drained if device < number),
        }
    )


def classes_of(saved: SavedPool) -> dict[str, int]:
    """Return all priority classes with their values, most important first."""
    known = {one.name: one.value for one in allocation.CLASSES} | saved.classes
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def beginning_of(saved: SavedPool) -> PoolBeginning:
    """Return what the core of a pool begins with that is set like this; it is not open yet."""
    events: list[Event] = [allocation.DevicesSet(count=saved.devices)]
    for device in saved.cordoned:
        events.append(allocation.Cordoned(devices=(device,), note=saved.notes.get(device, "")))
    for device in saved.drained:
        events.append(allocation.Drained(devices=(device,), note=saved.notes.get(device, "")))
    return PoolBeginning(
        devices=saved.number,
        kinds=tuple(map(kind_of, saved.names)),
        classes=tuple(
            allocation.PriorityClass(name=name, value=value)
            for name, value in classes_of(saved).items()
        ),
        teams=tuple(team_of(entry) for entry in saved.teams),
        is_open=False,
        events=tuple(events),
    )
