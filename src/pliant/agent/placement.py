"""Which devices of a node each of its replicas is on: one for each of its workers.

Owns the set of devices that workers may be put on, which can change at any time, and who is on
which.  Knows nothing of processes, locks, pools or time: it is told when a device is free again,
and when one that somebody else uses, or that fails, has rested for long enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pliant.core.values import ReplicaId

REST_S = 1.0
"""How long a device rests that a worker has found in use, in seconds; each further time in a row
twice as long."""

FAILURES = 3
"""Workers in a row that end as their device fails, until it rests."""

MAX_REST_S = 30.0
"""No rest is longer, in seconds."""


class Devices:
    """The devices of one node; each has at most one worker."""

    def __init__(self, usable: Iterable[int]) -> None:
        self._allowed = self._usable = frozenset(usable)
        self._cordoned: frozenset[int] = frozenset()
        self._idle = sorted(self._usable)
        self._used: dict[int, ReplicaId] = {}
        self._resting: set[int] = set()
        self._refusals: dict[int, int] = {}

    @property
    def used(self) -> Mapping[int, ReplicaId]:
        """Return who is on which; those included that may not be used any more."""
        return dict(self._used)

    def devices_of(self, replica: ReplicaId) -> tuple[int, ...]:
        """Return the devices of a replica, in the order of its workers; empty: it is on none."""
        return tuple(device for device, name in self._used.items() if name == replica)

    def allow(self, usable: Iterable[int]) -> None:
        """Replace the set of devices that workers may be put on; who is on one stays there."""
        self._allowed = frozenset(usable)
        self._renew()

    def cordon(self, devices: Iterable[int]) -> None:
        """Put nobody on these until they are left out here; who is on one is ``displaced``."""
        self._cordoned = frozenset(devices)
        self._renew()

    @property
    def displaced(self) -> tuple[ReplicaId, ...]:
        """Return those that are on one that is cordoned, each once."""
        here = (name for device, name in self._used.items() if device in self._cordoned)
        return tuple(dict.fromkeys(here))

    @property
    def room(self) -> int:
        """Return how many workers there may be: on one that is cordoned who is there already."""
        return len(self._usable | self._used.keys())

    def _renew(self) -> None:
        self._usable = self._allowed - self._cordoned
        idle = self._usable - self._used.keys() - self._resting
        known = [device for device in self._idle if device in idle]
        self._idle = [*known, *sorted(idle.difference(known))]

    def put(self, replica: ReplicaId, count: int = 1) -> tuple[int, ...]:
        """Put the workers of a replica on the devices that were idle for longest; on none (empty)
        unless there are enough for all of them.

        Not on the lowest: one that fails whoever is put on it must not be the next to be tried.
        """
        if len(self._idle) < count:
            return ()
        taken, self._idle = tuple(self._idle[:count]), self._idle[count:]
        self._used.update(dict.fromkeys(taken, replica))
        return taken

    def leave(self, replica: ReplicaId) -> None:
        """Take note that a replica's processes are gone; a second call does nothing."""
        for device in self.devices_of(replica):
            del self._used[device]
            self._refusals.pop(device, None)
            if device in self._usable:
                self._idle.append(device)

    def rest(
        self, replica: ReplicaId, place: int = 0, *, after: int = 1
    ) -> tuple[int, float] | None:
        """Take note that a replica is gone of which the worker of this place has found its device
        in use by somebody else, or failing.

        Return the device, and after how many seconds to ``wake`` it; None if it was on none, or
        does not rest before this has happened ``after`` times in a row.
        """
        devices = self.devices_of(replica)
        if place >= len(devices):  # it is on none here, or that worker is on another host
            self.leave(replica)
            return None
        device = devices[place]
        del self._used[device]
        self.leave(replica)
        self._resting.add(device)
        self._refusals[device] = refusals = self._refusals.get(device, 0) + 1
        if refusals < after:
            self.wake(device)
            return None
        return device, min(MAX_REST_S, REST_S * 2.0 ** min(refusals - after, 16))

    def wake(self, device: int) -> None:
        """Let workers be put on a device again that has rested; a second call does nothing."""
        if device in self._resting:
            self._resting.remove(device)
            if device in self._usable:
                self._idle.append(device)
