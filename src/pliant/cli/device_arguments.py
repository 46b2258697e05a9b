"""Devices as people type them: how many, or which; one of them by its number or its name.

Owns the check against this machine.  Knows nothing of what is done with them.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pliant.core.device_names import cores_of
from pliant.core.errors import ConfigError
from pliant.http.client import Caller
from pliant.spec.pool import devices_of

Device = Annotated[str, typer.Argument(metavar="DEVICE", help="Its number, or its name.")]
Kind = Annotated[
    str, typer.Option("--kind", metavar="KIND", help="Of which kind.  [default: the pool's first]")
]
Why = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why, for those who wait for it.")
]


def devices_here(
    typed: str | None, in_file: str | int | None, *, place: str
) -> tuple[int | None, tuple[str, ...] | None]:
    """Return how many devices there are, and what they are called; None: it was not said.

    What was typed comes before what a file says at a place of it.

    Raises:
        ConfigError: there cannot be so many, or a core is not this machine's.
    """
    said, given = (in_file, place) if typed is None else (typed, "--devices")
    if said is None:
        return None, None
    number, names = devices_of(said, given=given)
    if strange := sorted(cores_of(names or ()) - os.sched_getaffinity(0)):
        raise ConfigError(f"{given} {said}: core {strange[0]} is not one of this machine's")
    return number, names


def number_of(device: str, caller: Caller) -> int:
    """Return the number of a device that may be called by its name.

    Raises:
        ConfigError: the pool has none of this name.
    """
    if device.isdecimal():
        return int(device)
    devices = caller.ask("GET", "/v1/status")["devices"]
    names = {str(one["name"]): int(one["device"]) for one in devices if one["name"]}
    if device not in names:
        there = ", ".join(names) or "numbers only"
        raise ConfigError(f"there is no device {device!r}; there are {there}")
    return names[device]
