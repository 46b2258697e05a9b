"""Device health: which accelerators of this host get no worker for now, and why.

Owns how often that is looked at, and what is said of it: the last word of a vendor's library stays
until it answers again.  Must not know how a device is asked, nor who is on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pliant.core.device_names import CPU, kind_of
from pliant.machine import accelerators
from pliant.machine.event_loop import aside

LOOK_S = 10.0
"""Between two looks, in seconds."""


class DeviceHealth:
    """Of the devices of one agent, or of one pool."""

    def __init__(
        self,
        names: Mapping[int, str],
        tell: Callable[[Mapping[str, str]], None] = lambda found: None,
    ) -> None:
        """``names``: of the devices, by their numbers; ``tell`` takes what ails which of them."""
        self._names = {n: name for n, name in names.items() if kind_of(name) not in ("", CPU)}
        self._tell = tell
        self.ailments: dict[str, str] = {}
        """What ails those that get no worker for now, by their names."""

    @property
    def ailing(self) -> dict[int, str]:
        """Return what ails those, by their numbers."""
        known = self.ailments
        return {number: known[name] for number, name in self._names.items() if name in known}

    async def watch(self) -> None:
        """Look again and again, if there is an accelerator."""
        while self._names:
            await self.look_once()
            await asyncio.sleep(LOOK_S)

    async def look_once(self) -> None:
        """Look at all once."""
        asked = sorted(set(self._names.values()))
        found = self.ailments | (await aside(accelerators.ailments, asked) if asked else {})
        found = {name: why for name, why in found.items() if why}
        if found.keys() != self.ailments.keys():  # of the same, numbers may change
            self.ailments = found
            self._tell(found)
