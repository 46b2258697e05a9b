"""Which device of a node each of its workers is on.

Owns the set of devices that workers may be put on, which can change at any time, and who is on
which.  Knows nothing of processes, locks or pools: it is told when a device is free again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pliant.core.vocabulary import ReplicaId


class Devices:
    """The devices of one node; each has at most one worker."""

    def __init__(self, usable: Iterable[int]) -> None:
        self._usable = frozenset(usable)
        self._idle = sorted(self._usable)
        self._used: dict[int, ReplicaId] = {}

    @property
    def used(self) -> Mapping[int, ReplicaId]:
        """Return who is on which; those included that may not be used any more."""
        return dict(self._used)

    def device_of(self, replica: ReplicaId) -> int | None:
        """Return the device of a worker; None if it is on none."""
        return next((device for device, name in self._used.items() if name == replica), None)

    def allow(self, usable: Iterable[int]) -> None:
        """Replace the set of devices that workers may be put on; who is on one stays there."""
        self._usable = frozenset(usable)
        idle = self._usable - self._used.keys()
        known = [device for device in self._idle if device in idle]
        self._idle = [*known, *sorted(idle.difference(known))]

    def put(self, replica: ReplicaId) -> int | None:
        """Put a worker on the device that was idle for longest; None if none is.

        Not on the lowest: one that fails whoever is put on it must not be the next to be tried.
        """
        if not self._idle:
            return None
        device = self._idle.pop(0)
        self._used[device] = replica
        return device

    def leave(self, replica: ReplicaId) -> None:
        """Take note that a worker's process is gone; a second call does nothing."""
        device = self.device_of(replica)
        if device is not None:
            del self._used[device]
            if device in self._usable:
                self._idle.append(device)
