"""What people ask of a pool: devices, teams and classes, while it runs.

Owns the sentence that answers each request.  Decides nothing about claims: what follows from a
request is for the core to say, and what is impossible it refuses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from pliant.core import allocation
from pliant.core.text import counted, in_one_line
from pliant.machine.interfaces import user_name
from pliant.observe.prose import quota_of
from pliant.pool.allocator import RefusedError
from pliant.pool.driver import PoolDriver
from pliant.pool.state import name_of
from pliant.spec.pool import ClassEntry, TeamEntry, promised_too_much, team_of


class PoolAdmin:
    """The requests of people to one pool; each may raise ``RefusedError`` with its reason."""

    def __init__(self, driver: PoolDriver) -> None:
        self._driver = driver

    async def set_devices(self, number: int) -> str:
        """Change how many devices there are."""
        driver = self._driver
        if driver.saved.names:
            raise RefusedError(
                "the devices have names, and more of them would have none; cordon or drain some"
            )
        async with driver.changing():
            _refuse_promises(driver.saved.teams, number)
            most = max(driver.saved.number, number)
            driver.configure(
                allocation.DevicesSet(count=number), size=number, devices=number, number=most
            )
        return counted(number, "device")

    async def cordon(self, device: int, *, by: str = "", reason: str = "") -> str:
        """Hand a device out no more; who has it keeps it."""
        async with self._driver.changing() as driver:
            cordoned, note = _with(driver.saved.cordoned, device), self._note(by, reason)
            event = allocation.Cordoned(devices=self._existing(device), note=note)
            driver.configure(event, cordoned=cordoned, notes={**driver.saved.notes, device: note})
        return f"{self._called(device)} is handed out no more{self._kept_by(device)}"

    async def drain(self, device: int, *, by: str = "", reason: str = "") -> str:
        """Take a device back, and hand it out no more."""
        async with self._driver.changing() as driver:
            drained, note = _with(driver.saved.drained, device), self._note(by, reason)
            event = allocation.Drained(devices=self._existing(device), note=note)
            driver.configure(event, drained=drained, notes={**driver.saved.notes, device: note})
        return f"{self._called(device)} is taken back{self._kept_by(device)}"

    async def uncordon(self, device: int) -> str:
        """Hand a device out again."""
        async with self._driver.changing() as driver:
            event = allocation.Uncordoned(devices=self._existing(device))
            driver.configure(
                None if device in driver.kept_back() else event,
                cordoned=tuple(one for one in driver.saved.cordoned if one != device),
                drained=tuple(one for one in driver.saved.drained if one != device),
                notes={one: note for one, note in driver.saved.notes.items() if one != device},
            )
            until = (
                ", once it is healthy and nobody uses it" if device in driver.kept_back() else ""
            )
        return f"{self._called(device)} is handed out again{until}"

    async def set_team(self, entry: TeamEntry) -> str:
        """Make a team, or change what is said of it; all else stays."""
        async with self._driver.changing() as driver:
            teams = {team.name: team for team in driver.saved.teams}
            if entry.name in teams:
                entry = _changed(teams[entry.name], entry)
            teams[entry.name] = entry
            _refuse_promises(teams.values(), driver.saved.size)
            driver.configure(allocation.TeamSet(team=team_of(entry)), teams=tuple(teams.values()))
        return quota_of(entry.name, entry.quota)

    async def remove_team(self, name: str) -> str:
        """Forget a team that has no claims."""
        async with self._driver.changing() as driver:
            teams = tuple(team for team in driver.saved.teams if team.name != name)
            driver.configure(allocation.TeamRemoved(name=name), teams=teams)
        return f"team {name} is forgotten"

    async def set_class(self, entry: ClassEntry) -> str:
        """Make a priority class, or change its value; whose it is stays unless that is said."""
        priority = allocation.PriorityClass(name=entry.name, value=entry.value)
        async with self._driver.changing() as driver:
            whose = dict(driver.saved.class_users)
            if "users" in entry.model_fields_set:
                whose.pop(entry.name, None)
            if entry.users is not None:
                whose[entry.name] = tuple(entry.users)
            classes = {**driver.saved.classes, entry.name: entry.value}
            driver.configure(
                allocation.ClassSet(priority=priority), classes=classes, class_users=whose
            )
        return f"class {entry.name} has the value {entry.value}"

    def _note(self, by: str, reason: str) -> str:
        """Say by whom, since when and why a device is out of use."""
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self._driver.wall()))
        why = f": {in_one_line(reason)}" if reason else ""
        return f"by {by or user_name(os.geteuid())} since {since}{why}"

    def _called(self, device: int) -> str:
        return name_of(self._driver.saved, device) or f"device {device}"

    def _kept_by(self, device: int) -> str:
        owner = self._driver.allocator.owners().get(device)
        return "" if owner is None else f"; {owner} has it"

    def _existing(self, device: int) -> tuple[int]:
        if device not in self._driver.known_devices():
            size = self._driver.saved.size
            there = f"they are 0 to {size - 1}" if size else "there are none"
            raise RefusedError(f"there is no device {device}; {there}")
        return (device,)


def _with(devices: Iterable[int], device: int) -> tuple[int, ...]:
    return tuple(sorted({*devices, device}))


def _refuse_promises(teams: Iterable[TeamEntry], devices: int) -> None:
    if excess := promised_too_much(teams, devices):
        raise RefusedError(excess)


def _changed(team: TeamEntry, entry: TeamEntry) -> TeamEntry:
    """Return a team with what was said; a limit of borrowing goes with the quota it counts from."""
    said = _said(entry)
    if "quota" in said and entry.quota is None:
        said["borrow_limit"] = None
    if "reclaim" in said:
        said["reclaim"] = team.reclaim.model_copy(update=_said(entry.reclaim))
    return team.model_copy(update=said)


def _said(entry: BaseModel) -> dict[str, Any]:
    """Return the fields that a request gives."""
    return {name: getattr(entry, name) for name in entry.model_fields_set}
