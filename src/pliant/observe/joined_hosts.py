"""Hosts of a job that are one node, and hosts that wait for others, as its log tells of them.

Owns what a status says of both, and how that is worded.  Knows nothing of who is joined with whom,
nor why.  A record ``joint_nodes``::

    hosts    of one node
    nodes    [[head, parts ...]], all that are
    alone    hosts that are of none, and wait
    joined   those of ``nodes`` that have become one since the record before
    missed   [[host, [others that it was to be one with, and is not]]], said since then
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pliant.core.counts import counted
from pliant.core.printable import printable
from pliant.observe.log import Record, listed, whole

SHOWN = 8
"""Of hosts or nodes in one line."""


def after(record: Record) -> dict[str, Any]:
    """Return {hosts (of a node), nodes: [[head, parts ...]], alone: [hosts]} as of this record."""
    return {
        "hosts": whole(record.get("hosts"), 1),
        "nodes": _sets(record, "nodes"),
        "alone": [str(node) for node in listed(record, "alone")],
    }


def without(known: Mapping[str, Any], gone: set[str]) -> dict[str, Any]:
    """Return the same without nodes that are lost; what is left of theirs will say what it is."""
    return {
        **known,
        "nodes": [hosts for hosts in known["nodes"] if gone.isdisjoint(hosts)],
        "alone": [node for node in known["alone"] if node not in gone],
    }


def of_node(known: Mapping[str, Any] | None, node: str) -> list[str]:
    """Return the hosts of a node, itself first; none if it has no name."""
    joint = [] if known is None else known["nodes"]
    alone = [node] if node else []
    return next((list(hosts) for hosts in joint if hosts[:1] == [node]), alone)


def hosts_of(status: Mapping[str, Any], name: str) -> list[str]:
    """Return where a replica runs, or one of its workers, by a status; none: it does not."""
    replica, dot, place = name.partition(".")
    hosts: list[str] = next(
        (one.get("hosts") or [] for one in status["replicas"] if one["name"] == replica), []
    )
    if not dot or not hosts:
        return hosts
    each = (status.get("workers_per_replica") or 1) // len(hosts)
    is_place = place.isascii() and place.isdecimal() and each > 0
    return hosts[int(place[:9]) // each :][:1] if is_place else []


def lines(known: Mapping[str, Any] | None) -> list[str]:
    """Say to a person who is one node, and who waits for others."""
    if known is None:
        return []
    said = [_waiting(known["alone"], known["hosts"])] if known["alone"] else []
    if known["nodes"]:
        said.append(_joined(known["nodes"]))
    return [printable(one) for one in said]


def line(record: Record) -> str | None:
    """Say what is new in a record; None: nothing that is worth a line."""
    known, said = after(record), []
    if joined := _sets(record, "joined"):
        said.append(_joined(joined))
    for one in listed(record, "missed"):
        match one:
            case [str() as node, [*others]] if others:
                whom = _shown([str(other) for other in others])
                said.append(f"host {node} has not become one node with {whom}")
            case _:
                pass  # damaged
    if known["alone"]:
        said.append(_waiting(known["alone"], known["hosts"]))
    return "; ".join(said) or None


def _joined(nodes: Sequence[Sequence[str]]) -> str:
    """Say which hosts are joint nodes, the head of each first."""
    word = "joint node" if len(nodes) == 1 else "joint nodes"
    return f"{word}: {_shown([' with '.join(one) for one in nodes])}"


def _waiting(alone: Sequence[str], hosts: int) -> str:
    """Say for whom hosts wait that are no node."""
    word = "host waits" if len(alone) == 1 else "hosts wait"
    missing = hosts - len(alone)
    if missing > 0:
        whom = "another" if missing == 1 else counted(missing, "other")
    else:
        whom = "each other"
    return f"{len(alone)} {word} for {whom}: hostsPerReplica is {hosts} ({_shown(alone)})"


def _sets(record: Record, name: str) -> list[list[str]]:
    return [[str(node) for node in one] for one in listed(record, name) if isinstance(one, list)]


def _shown(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
