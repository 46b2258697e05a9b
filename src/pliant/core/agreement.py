"""What the nodes of a job must agree on before any of them trains, and how a difference is worded.

Owns the list, and which of it counts.  Must not know where a node has it from, nor what becomes of
one that differs.  The script itself is compared by its digest (``Work``), and what a session was
made with by the workers (``Spare.identity``).
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from pliant.core.values import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What an agent says of its node before it joins; empty: not known."""

    pliant: str = ""
    python: str = ""
    """Without the last number, which changes no results."""

    torch: str = ""
    numpy: str = ""
    processor: str = ""
    """The family, as ``x86_64``."""

    hash_seed: str = ""
    """``PYTHONHASHSEED`` of its workers: by it goes the order of sets of strings."""

    address: str = ""
    """Where members elsewhere reach its workers."""

    boot: int = 0
    """Of which machine, and which of its starts."""

    head: str = ""
    """The node whose part it is: of a host group of several hosts; its own name: it is the head."""

    parts: tuple[str, ...] = ()
    """The other hosts, if it is the head."""


NAMES = {
    "pliant": "pliant",
    "python": "Python",
    "torch": "torch",
    "numpy": "numpy",
    "processor": "processors of the family",
    "hash_seed": "PYTHONHASHSEED",
}
"""What must be the same on all nodes, and how it is called."""


def misnamed(node: NodeId, certified: Collection[str]) -> str | None:
    """Say that the certificate of a node is that of others; None: it names this node.

    ``certified``: the hosts and addresses that it names.
    """
    if any(_names(one.lower(), node.lower()) for one in certified):
        return None
    said = " and ".join(sorted(certified)) or "nobody"
    return (
        f"the certificate of node {node} names {said:.200}, and not {node}; name the node as its "
        "certificate does with --node, or start the coordinator with --tls-any-node"
    )


def _names(certified: str, node: str) -> bool:
    """Whether a name is that of a node: hosts are known by short names as well."""
    if certified == node:
        return True
    if _is_address(certified) or _is_address(node):
        return False
    if certified.startswith("*."):
        return node.partition(".")[2] == certified[2:]
    (short, _, domain), (host, _, own_domain) = certified.partition("."), node.partition(".")
    return short == host and not (domain and own_domain)


def disagreement(node: NodeId, mine: NodeFacts, others: Mapping[NodeId, NodeFacts]) -> str | None:
    """Say in what a node differs from another one of its job; None if it may join."""
    for other, theirs in others.items():
        for name, called in NAMES.items():
            here, there = getattr(mine, name), getattr(theirs, name)
            if here and there and here != there:
                return (
                    f"node {node} has {called} {here:.40}, and node {other} has {there:.40}; a job "
                    "needs the same on every node"
                )
        if (lone := _alone(node, mine, other, theirs)) is not None:
            return lone
    return None


def _alone(node: NodeId, mine: NodeFacts, other: NodeId, theirs: NodeFacts) -> str | None:
    """Say whose workers no other node reaches, where two nodes are told to train together."""
    if not mine.address or not theirs.address:
        return None
    loops = [_is_loopback(one.address) for one in (mine, theirs)]
    if not any(loops) or (all(loops) and mine.boot == theirs.boot):
        return None
    lone, address = (node, mine.address) if loops[0] else (other, theirs.address)
    return (
        f"workers of node {lone} are reached at {address}, which no other node reaches; give its "
        "agent --interface, with the address or the interface that the others reach"
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # whatever it is, nothing is known against it
        return False


def another_total(mine: object, its: object) -> str:
    """Say that a replica's call of ``steps()`` does not end at the step at which the run's does."""
    return (
        f"its steps() goes to step {mine}, the run's to step {its}: the number counts from the "
        "job's first step, on every replica alike. Load no snapshot of your own, for "
        "Session(checkpoint=...) keeps the run, and write a number that nothing changes meanwhile"
    )


# --- values of replicas that ought to be equal


def minority(values: Sequence[Hashable]) -> tuple[int, ...] | None:
    """Return the places of the values that differ from what more than half are.

    Empty if all are equal; None if no value is that of more than half: with two that differ nobody
    can say which is right.
    """
    common, count = Counter(values).most_common(1)[0]
    if 2 * count <= len(values):
        return None
    return tuple(place for place, value in enumerate(values) if value != common)
