"""What an agent says of its node when it joins a job.

Owns where each fact is from.  What must agree is for ``core.agreement`` to say.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from pliant.agent.agent_config import AgentConfig
from pliant.agent.launcher import DEFAULT_ENVIRONMENT
from pliant.core.agreement import NodeFacts
from pliant.core.events import NodeJoined
from pliant.core.placement import HOST
from pliant.core.values import AgentLife, Labels, ReplicaId
from pliant.machine.processes import this_boot
from pliant.wire.bounds import LABEL, MOST_LABELS, name_from
from pliant.wire.codec import Message


def node_facts(*, address: str, environment: Mapping[str, str]) -> NodeFacts:
    """Return the facts of this node; imports nothing of what it asks for.

    ``environment`` is what the workers inherit, ``address`` the one at which they are reached.
    """
    return NodeFacts(
        pliant=_version("pliant"),
        python=".".join(platform.python_version_tuple()[:2]),
        torch=_version("torch"),
        numpy=_version("numpy"),
        processor=platform.machine(),
        hash_seed={**DEFAULT_ENVIRONMENT, **environment}["PYTHONHASHSEED"],
        address=address,
        boot=this_boot(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHere:
    """What is an agent's own to say of its node."""

    devices: int
    replicas: tuple[ReplicaId, ...]
    life: AgentLife
    head: str = ""
    """As in ``NodeFacts``."""

    parts: tuple[str, ...] = ()


def greeting(config: AgentConfig, here: NodeHere) -> list[Message]:
    """Return what an agent says first on each connection."""
    facts = node_facts(address=config.address, environment=config.environment)
    facts = replace(facts, head=here.head, parts=here.parts)
    joined = NodeJoined(
        node=config.node,
        devices=here.devices,
        replicas=here.replicas,
        life=here.life,
        labels=node_labels(config.labels),
    )
    return [facts, joined]


def node_labels(given: Labels) -> Labels:
    """Return where this node is: what it was given, and its host's name unless that is given."""
    own = (HOST, name_from(socket.gethostname())[:63])
    is_full = len(given) >= MOST_LABELS or not LABEL.fullmatch(own[1])
    return given if HOST in dict(given) or is_full else (own, *given)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
