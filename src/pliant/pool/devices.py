"""The locks of a pool's devices, as the pool sees them: who uses what, and who must leave.

Owns the looks at the locks, and that whoever does not leave a device in time is ended, if it is
certain whose process that is (``machine.device_locks``).  Knows nothing of shares and priorities.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pliant.machine import device_locks as locks
from pliant.machine.interfaces import user_name
from pliant.machine.locks import who_holds
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
        self.directory = directory
        self._log = log
        self._evictions: dict[int, _Eviction] = {}

    def free(self, devices: Iterable[int]) -> set[int]:
        """Return those that no process uses."""
        return {device for device in devices if locks.is_free(self.directory, device)}

    def used(self, devices: Iterable[int]) -> set[int]:
        """Return those that a process uses."""
        there = locks.ever_used(self.directory).intersection(devices)
        return {device for device in there if not locks.is_free(self.directory, device)}

    def granted(self, claim: str, devices: Iterable[int]) -> tuple[int, ...]:
        """Return those of the devices that a claim may hold; its word is taken for it."""
        return tuple(devices)

    def grant(self, claim: str, devices: Iterable[int], *, uid: int | None) -> None:
        """Let a claim take these from now on."""

    def revoke(self, claim: str, devices: Iterable[int]) -> None:
        """Let a claim take these no more: it has left them."""

    def user_text(self, device: int) -> str:
        """Name who uses a device that is not its own."""
        return locks.holder_text(self.directory, device)

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
            by = locks.claim_on(self.directory, device)
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
            by = locks.claim_on(self.directory, device)  # "": being written
            is_anothers = by not in (eviction.claim, "")
            if is_anothers or locks.is_free(self.directory, device):
                del self._evictions[device]
            elif now_s >= eviction.due_s:
                await self._end(device, eviction)
                eviction.due_s = now_s + AGAIN_S

    async def _end(self, device: int, eviction: _Eviction) -> None:
        pids = await asyncio.to_thread(
            locks.end_holders, self.directory, device, claim=eviction.claim
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
                reason=f"{self._user_text(device)}; it is free once that has ended",
            )

    def _user_text(self, device: int) -> str:
        return "who uses it cannot be told for certain"


class SharedDeviceWatch(DeviceWatch):
    """The same where users share the pool: the kernel says who may lock what.

    What shares the lock of a file that was made for a claim is ended if it is of the claim's user,
    which for other users than itself only root can; else it is told who keeps what, and the device
    stays out of use until it is free.
    """

    def __init__(self, directory: Path, log: EventLog, *, gid: int) -> None:
        locks.make_entered(directory, gid)
        locks.require_rights(directory)
        super().__init__(directory, log)

    def granted(self, claim: str, devices: Iterable[int]) -> tuple[int, ...]:
        """Return those that were made for the claim."""
        there = locks.ever_used(self.directory).intersection(devices)
        return tuple(
            device for device in sorted(there) if locks.claim_on(self.directory, device) == claim
        )

    def grant(self, claim: str, devices: Iterable[int], *, uid: int | None) -> None:
        """Make the files by which the claim, and nobody else, can take these devices."""
        for device in devices:
            locks.grant_lock(
                self.directory, device, claim=claim, uid=os.geteuid() if uid is None else uid
            )

    def user_text(self, device: int) -> str:
        """Name who uses a device that is not its own."""
        return who_holds(locks.path_of(self.directory, device))

    def revoke(self, claim: str, devices: Iterable[int]) -> None:
        """Let nobody take these until they are granted again."""
        for device in devices:
            if locks.claim_on(self.directory, device) == claim:
                with suppress(OSError):  # they are free, and stay so
                    locks.grant_lock(self.directory, device, claim="", uid=os.geteuid())

    def _user_text(self, device: int) -> str:
        return f"{self.user_text(device)} keeps it and is not ended by {user_name(os.geteuid())}"
