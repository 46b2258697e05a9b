"""Device health: which accelerators of this host get no worker for now, and why.

Owns how often that is looked at, and what is said of it.  Must not know how a device is asked, nor
who is on it.
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
    """Of the devices of one agent."""

    def __init__(self, names: Mapping[int, str], tell: Callable[[Mapping[str, str]], None]) -> None:
        """``names``: of the devices, by their numbers; ``tell`` takes what ails which of them."""
        self._names = {n: name for n, name in names.items() if kind_of(name) not in ("", CPU)}
        self._tell = tell
        self.ailments: dict[str, str] = {}
        """What ails those that get no worker for now, by their names."""

    @property
    def ailing(self) -> set[int]:
        """Return the numbers of those."""
        return {number for number, name in self._names.items() if name in self.ailments}

    async def watch(self) -> None:
        """Look again and again, if there is an accelerator."""
        asked = sorted(set(self._names.values()))
        while asked:
            found = await aside(accelerators.ailments, asked)
            if found.keys() != self.ailments.keys():  # of the same, numbers may change
                self.ailments = found
                self._tell(found)
            await asyncio.sleep(LOOK_S)
