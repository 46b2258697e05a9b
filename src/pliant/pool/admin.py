"""What people wish of a pool: devices, teams and classes, while it runs.

Owns the sentence that answers each wish.  Decides nothing about claims: what follows from a wish
is for the core to say, and what is impossible it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping

from pliant.core.allocation import (
    ClassSet,
    Cordoned,
    DevicesSet,
    Drained,
    PriorityClass,
    TeamRemoved,
    TeamSet,
    Uncordoned,
)
from pliant.core.counts import counted
from pliant.pool.claims import team_of
from pliant.pool.driver import PoolDriver, RefusedError
from pliant.spec.pool import TeamEntry, promised, promised_too_much


class PoolAdmin:
    """The wishes of people about one pool; each may raise ``RefusedError`` with its reason."""

    def __init__(self, driver: PoolDriver) -> None:
        self._driver = driver
        self._orders = driver.orders

    async def set_devices(self, number: int) -> str:
        """Change how many devices there are."""
        if self._orders.follows:
            follows = self._orders.follows
            raise RefusedError(f"the number of devices follows {follows}; change that")
        async with self._driver.changing():
            self._refuse_promises(self._orders.teams, number)
            self._driver.wish(DevicesSet(count=number))
            self._orders.size = self._orders.limit = number
            self._orders.number = max(self._orders.number, number)
        return counted(number, "device")

    async def follow(self, number: int) -> None:
        """Let so many devices be in use, as a file or a trace says."""
        async with self._driver.changing():
            self._driver.wish(DevicesSet(count=number))
            self._orders.limit = number

    async def cordon(self, device: int) -> str:
        """Hand a device out no more; who has it keeps it."""
        async with self._driver.changing():
            self._driver.wish(Cordoned(devices=self._existing(device)))
            self._orders.cordoned.add(device)
        return f"device {device} is handed out no more{self._kept_by(device)}"

    async def drain(self, device: int) -> str:
        """Take a device back, and hand it out no more."""
        async with self._driver.changing():
            self._driver.wish(Drained(devices=self._existing(device)))
            self._orders.drained.add(device)
        return f"device {device} is taken back{self._kept_by(device)}"

    async def uncordon(self, device: int) -> str:
        """Hand a device out again."""
        async with self._driver.changing():
            devices = self._existing(device)
            self._orders.cordoned.discard(device)
            self._orders.drained.discard(device)
            if device not in self._driver.blocked:
                self._driver.wish(Uncordoned(devices=devices))
        return f"device {device} is handed out again"

    async def set_team(self, entry: TeamEntry) -> str:
        """Make a team, or change what it may use."""
        async with self._driver.changing():
            self._refuse_promises({**self._orders.teams, entry.name: entry}, self._orders.size)
            self._driver.wish(TeamSet(team=team_of(entry)))
            self._orders.teams[entry.name] = entry
        quota = "no quota" if entry.quota is None else f"a quota of {entry.quota}"
        return f"team {entry.name} has {quota}"

    async def remove_team(self, name: str) -> str:
        """Forget a team that has no claims."""
        async with self._driver.changing():
            self._driver.wish(TeamRemoved(name=name))
            self._orders.teams.pop(name, None)
        return f"team {name} is forgotten"

    async def set_class(self, name: str, value: int) -> str:
        """Make a priority class, or change its value."""
        async with self._driver.changing():
            self._driver.wish(ClassSet(priority=PriorityClass(name=name, value=value)))
            self._orders.classes[name] = value
        return f"class {name} has the value {value}"

    def _kept_by(self, device: int) -> str:
        owner = self._driver.owners().get(device)
        return "" if owner is None else f"; {owner} has it"

    def _existing(self, device: int) -> tuple[int]:
        if not 0 <= device < self._orders.number:
            last = self._orders.number - 1
            raise RefusedError(f"there is no device {device}; they are 0 to {last}")
        return (device,)

    @staticmethod
    def _refuse_promises(teams: Mapping[str, TeamEntry], devices: int) -> None:
        if promised(teams.values()) > devices:
            raise RefusedError(promised_too_much(teams.values(), devices))
