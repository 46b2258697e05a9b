"""The locks of a pool's devices, as the pool sees them: who uses what, and who must leave.

Owns the looks at the locks, and that whoever does not leave a device in time is ended, if it is
certain whose process that is (``machine.device_locks``).  Knows nothing of shares and priorities.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pliant.machine import device_locks as locks
from pliant.observe.log import EventLog

AGAIN_S = 1.0
"""Between two tries to end what uses a device, in seconds."""


@dataclass(slots=True)
class _Eviction:
    """A claim that must leave a device."""

    claim: str
    due_s: float
    reason: str
    has_told: bool = False
    """Whether the log says already that its process cannot be found."""


class DeviceWatch:
    """Looks at the devices of one pool."""

    def __init__(self, directory: Path, log: EventLog) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._log = log
        self._evictions: dict[int, _Eviction] = {}

    def free(self, devices: Iterable[int]) -> set[int]:
        """Return those that no process uses."""
        return {device for device in devices if locks.is_free(self._directory, device)}

    def used(self, devices: Iterable[int]) -> set[int]:
        """Return those that a process uses."""
        there = locks.ever_used(self._directory).intersection(devices)
        return {device for device in there if not locks.is_free(self._directory, device)}

    def evict(self, claim: str, devices: Iterable[int], *, due_s: float, reason: str) -> None:
        """From ``due_s`` on, end what uses these devices for a claim; earlier if said before."""
        for device in devices:
            known = self._evictions.get(device)
            if known is None or known.claim != claim:
                self._evictions[device] = _Eviction(claim, due_s, reason)

    def find_blocked(
        self, number: int, *, owners: Mapping[int, str], claims: Container[str], due_s: float
    ) -> set[int]:
        """Return the devices that are used and nobody's; end in time who uses what is another's.

        Only of one of the ``claims`` it is certain whose process that is.
        """
        used = self.used(range(number))
        for device in used:
            by = locks.claim_on(self._directory, device)
            if by in claims and by != owners.get(device):
                reason = f"device {device} is not its own any more"
                self.evict(by, [device], due_s=due_s, reason=reason)
        return used - owners.keys()

    def call_off(self, rightful: Mapping[int, str]) -> None:
        """Forget the evictions of claims from devices that are their own (again)."""
        for device, claim in rightful.items():
            eviction = self._evictions.get(device)
            if eviction is not None and eviction.claim == claim:
                del self._evictions[device]

    async def end_overdue(self, *, now_s: float) -> None:
        """End what should have left by now."""
        for device, eviction in list(self._evictions.items()):
            by = locks.claim_on(self._directory, device)  # "": being written
            is_anothers = by not in (eviction.claim, "")
            if is_anothers or locks.is_free(self._directory, device):
                del self._evictions[device]
            elif now_s >= eviction.due_s:
                await self._end(device, eviction)
                eviction.due_s = now_s + AGAIN_S

    async def _end(self, device: int, eviction: _Eviction) -> None:
        pids = await asyncio.to_thread(
            locks.end_holders, self._directory, device, claim=eviction.claim
        )
        if pids:
            self._log.write(
                "ended", name=eviction.claim, device=device, pids=pids, reason=eviction.reason
            )
        elif not eviction.has_told:
            eviction.has_told = True
            self._log.write(
                "not_ended",
                name=eviction.claim,
                device=device,
                reason="who uses it cannot be told for certain; it is free once that has ended",
            )
