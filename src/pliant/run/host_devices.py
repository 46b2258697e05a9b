"""The devices of this host, for a job without a pool: accelerators by name, else cores.

Owns how many workers have room here.  Must not know how an accelerator is found.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pliant.core.device_masks import Accelerator
from pliant.core.device_names import CPU, confinement, kind_of
from pliant.core.errors import ConfigError
from pliant.core.text import counted
from pliant.machine.accelerators import visible


@dataclass(frozen=True, slots=True)
class HostDevices:
    """What workers may be put on, each on one of its own."""

    names: tuple[str, ...] = ()
    """Of accelerators; empty: workers share the cores."""

    on_cores: str = ""
    """What a worker on cores is told; empty: nothing, and it sees whatever is there."""

    @classmethod
    def of(cls, environ: Mapping[str, str], kind: str | None = None) -> Self:
        """Look at this host: for devices of a kind, or of the first that it has.

        Raises:
            ConfigError: it has none of that kind.
        """
        if kind == CPU:
            return cls(on_cores=CPU)
        found = [one.name for one in visible(environ)]
        wanted = kind or kind_of(found[0] if found else "")
        names = tuple(name for name in found if kind_of(name) == wanted)
        if kind and not names:
            there = ", ".join({CPU: 1} | dict.fromkeys(map(kind_of, found)))
            raise ConfigError(f"--kind {kind}: this host has no such device; it has {there}")
        return cls(names=names)

    def __str__(self) -> str:
        return counted(self.count(), "accelerator" if self.names else "core")

    def count(self, wanted: int | None = None) -> int:
        """Return how many workers may be here: as many as wanted, where they share the cores."""
        return len(self.names) if self.names else wanted or count_cores()

    def require(self, wanted: int, given: str) -> int:
        """Return how many are wanted.

        Raises:
            ConfigError: two workers would be on one accelerator.
        """
        if wanted > self.count(wanted):
            raise ConfigError(
                f"{given}: this host has {self}, each for one worker ({', '.join(self.names)}); "
                "lower it, or train on the CPU with --kind cpu"
            )
        return wanted

    def device_name(self, device: int) -> str:
        """Return what a worker is told of its device."""
        return self.names[device] if self.names else self.on_cores


def count_cores() -> int:
    """Return how many workers this machine has room for by its cores: they train on the CPU."""
    return len(os.sched_getaffinity(0))


def accelerators_called(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, Accelerator]:
    """Return what the devices of these names are, as far as they are of this host."""
    around = confinement(names, environ=environ).variables
    return {one.name: one for one in visible({**environ, **around})} if around else {}
