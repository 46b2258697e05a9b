"""What the workers of replicas are called where people read it: ``r3``, or ``r3.1`` of several.

Owns these names: in front of lines, of log files, in sentences.  Must not know who runs where.
"""

from __future__ import annotations


def worker_name(replica: str, worker: int | None) -> str:
    """Name a worker by its place in its replica; None: it is the only one."""
    return replica if worker is None else f"{replica}.{worker}"


def replica_of(name: str) -> str:
    """Return the replica of a worker by its name."""
    return name.partition(".")[0]


def place_of(name: str) -> int | None:
    """Return the place of a worker in its replica by its name; None: it is the only one."""
    place = name.partition(".")[2]
    return int(place) if place else None


def is_follower(name: str) -> bool:
    """Whether a worker is one of several, and not the one that speaks for its replica."""
    return name.partition(".")[2] not in ("", "0")


def order_of(name: str) -> tuple[tuple[int, str], ...]:
    """Return what names of workers are sorted by: ``r2.10`` comes after ``r2.9``."""
    return tuple((len(part), part) for part in name.split("."))
