"""Hosts of a job that are one node, and hosts that wait for others, as its log tells of them.

Owns what a status says of both, and how that is worded.  Knows nothing of who is joined with whom,
nor why.  A record ``joint_nodes``::

    hosts    of one node
    nodes    [[head, parts ...]], all that are
    alone    hosts that are of none, and wait
    joined   those of ``nodes`` that have become one since the record before
    missed   [[host, [others of its node that it does not reach]]], said since then
    unable   [[host that can be one with nobody now, why]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pliant.core.counts import counted
from pliant.core.printable import printable
from pliant.observe.log import Record, listed, whole

SHOWN = 8
"""Of hosts or nodes in one line."""


def after(record: Record, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what is known as of this record: {hosts (of a node), nodes: [[head, parts ...]],
    alone: [hosts], missed: [[two that have not become one node when they were to]], unable:
    [[host, why it can be one with nobody]]}.
    """
    nodes = _sets(record, "nodes")
    told = [*([] if before is None else before["missed"]), *_missed_pairs(record)]
    heads = {host: hosts[0] for hosts in nodes for host in hosts}
    missed = [[*pair] for pair in dict.fromkeys(map(tuple, told))]
    return {
        "hosts": whole(record.get("hosts"), 1),
        "nodes": nodes,
        "alone": [str(node) for node in listed(record, "alone")],
        "missed": [pair for pair in missed if len({heads.get(one, one) for one in pair}) == 2],
        "unable": [one for one in _sets(record, "unable") if len(one) == 2],
    }


def without(known: Mapping[str, Any], gone: set[str]) -> dict[str, Any]:
    """Return the same without nodes that are lost; what is left of theirs will say what it is."""
    return {
        **known,
        "nodes": [hosts for hosts in known["nodes"] if gone.isdisjoint(hosts)],
        "alone": [node for node in known["alone"] if node not in gone],
        "missed": [pair for pair in known["missed"] if gone.isdisjoint(pair)],
        "unable": [[host, why] for host, why in known["unable"] if host not in gone],
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
    """Say to a person who is one node, and who waits for others; a coordinator of before says
    nothing of ``missed`` and ``unable``.
    """
    if known is None:
        return []
    known = {"missed": (), "unable": (), **known}
    said = [_waiting(known)] if known["alone"] else []
    if known["nodes"]:
        said.append(_joined(known["nodes"]))
    said += _unable(known)
    return [printable(one) for one in said]


def line(record: Record) -> str | None:
    """Say what is new in a record; None: nothing that is worth a line."""
    known, said = after(record, None), []
    if joined := _sets(record, "joined"):
        said.append(_joined(joined))
    missed = {host: others for host, others in _missed(record) if others}
    said += [f"host {host} does not reach {_shown(missed[host])}" for host in missed]
    if known["alone"]:
        said.append(_waiting(known))
    said += _unable(known)
    return "; ".join(said) or None


def _joined(nodes: Sequence[Sequence[str]]) -> str:
    """Say which hosts are joint nodes, the head of each first."""
    word = "joint node" if len(nodes) == 1 else "joint nodes"
    return f"{word}: {_shown([' with '.join(one) for one in nodes])}"


def _waiting(known: Mapping[str, Any]) -> str:
    """Say for whom hosts wait that are no node, and what helps."""
    alone, hosts = known["alone"], known["hosts"]
    word = "host waits" if len(alone) == 1 else "hosts wait"
    missing = hosts - len(alone)
    apart = [pair for pair in known["missed"] if set(pair) <= set(alone)]
    if missing > 0:
        whom = "another" if missing == 1 else counted(missing, "other")
        more = "another host" if missing == 1 else f"{missing} more hosts"
        helps = f"; let {more} join the job"
    else:
        whom, helps = "each other", f"; {_unreached(apart)}" if apart else ""
    return f"{len(alone)} {word} for {whom}: hostsPerReplica is {hosts} ({_shown(alone)}){helps}"


def _unable(known: Mapping[str, Any]) -> list[str]:
    """Say which hosts can be one with nobody, and why."""
    unable = known["unable"]
    more = [f"{len(unable) - SHOWN} more hosts can neither"] if len(unable) > SHOWN else []
    said = [
        f"host {host} cannot be one with others: {why}; it tries again every few seconds"
        for host, why in unable[:SHOWN]
    ]
    return said + more


def _unreached(apart: Sequence[Sequence[str]]) -> str:
    """Say what keeps hosts from being one node that were told to be, or were, and what to do."""
    pairs = _shown([" and ".join(pair) for pair in apart])
    return (
        f"{pairs} did not reach each other: open the ports above 1023 between them, and look at "
        "what their agents say; they are tried again, after 5 min at most"
    )


def _missed(record: Record) -> list[tuple[str, list[str]]]:
    """Return each host that has said so with those that it was to be one node with, and is not."""
    said = [one for one in listed(record, "missed") if isinstance(one, list) and len(one) == 2]
    return [
        (host, [str(other) for other in others])
        for host, others in said
        if isinstance(host, str) and isinstance(others, list)
    ]


def _missed_pairs(record: Record) -> list[list[str]]:
    return [sorted((host, other)) for host, others in _missed(record) for other in others]


def _sets(record: Record, name: str) -> list[list[str]]:
    return [[str(node) for node in one] for one in listed(record, name) if isinstance(one, list)]


def _shown(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
