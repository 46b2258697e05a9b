"""How many replicas numbers of hosts stand for, as people used to torchrun say them.

Owns that arithmetic, and its refusals.  Knows nothing of which hosts there are.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pliant.cli.resolved import Resolved, Settings
from pliant.core.errors import ConfigError

BOUNDS = ("min_replicas", "max_replicas")


def replicas_on(devices: int, workers: int, hosts: int = 1) -> int:
    """Return how many replicas of so many workers so many hosts have room for, each like this one.

    Raises:
        ConfigError: for none.
    """
    if devices < (share := workers // hosts):
        over = "" if hosts == 1 else f" over {hosts} hosts"
        raise ConfigError(
            f"--workers-per-replica {workers}{over} needs --devices-per-node {share} or more, not "
            f"{devices}"
        )
    return devices // share


def bounds_of(settings: Settings, replicas: int, hosts: int = 1) -> dict[str, Resolved]:
    """Return the settings that numbers of hosts stand for, if there are so many replicas on
    ``hosts`` of them.

    Raises:
        ConfigError: they are no such numbers, or other bounds are given as well.
    """
    nodes = settings["nnodes"]
    if nodes.value is None:
        return {}
    found = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", nodes.value)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high:
        raise ConfigError(f"{nodes.given} is neither MIN nor MIN:MAX, such as 2:8")
    if low < hosts:
        raise ConfigError(
            f"{nodes.given} begins with fewer hosts than one replica needs; begin with {hosts}, as "
            f"{settings['hosts_per_replica'].given} says, or more"
        )
    for name in BOUNDS:
        if settings[name].source == settings[name].setting.flag:
            raise ConfigError(
                f"{settings[name].given} and {nodes.given} both say how many; leave out one"
            )
    return {
        name: replace(settings[name], value=nodes_wanted // hosts * replicas, source=nodes.source)
        for name, nodes_wanted in zip(BOUNDS, (low, high), strict=True)
    }
