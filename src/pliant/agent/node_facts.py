"""What an agent says of its node when it joins a job.

Owns where each fact is from.  What must agree is for ``core.agreement`` to say.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pliant.agent.launcher import DEFAULT_ENVIRONMENT, StartServer, start_server
from pliant.agent.uplink import RECONNECT_S
from pliant.core.agreement import NodeFacts
from pliant.core.events import NodeJoined
from pliant.core.placement import HOST
from pliant.core.values import AgentLife, Labels, NodeId, ReplicaId, TlsFiles
from pliant.machine.interfaces import loopback
from pliant.machine.processes import this_boot
from pliant.wire.bounds import LABEL, MOST_LABELS, name_from
from pliant.wire.codec import Message
from pliant.wire.messages import Work


def greeting(
    config: AgentConfig,
    *,
    devices: int,
    replicas: tuple[ReplicaId, ...],
    life: AgentLife,
    head: str = "",
    parts: tuple[str, ...] = (),
) -> list[Message]:
    """Return what an agent says first on each connection; imports nothing of what it tells of.

    ``head``, ``parts``: as in ``NodeFacts``.
    """
    facts = NodeFacts(
        pliant=_version("pliant"),
        python=".".join(platform.python_version_tuple()[:2]),
        torch=_version("torch"),
        numpy=_version("numpy"),
        processor=platform.machine(),
        hash_seed={**DEFAULT_ENVIRONMENT, **config.environment}["PYTHONHASHSEED"],
        address=config.address,
        boot=this_boot(),
        head=head,
        parts=parts,
    )
    joined = NodeJoined(
        node=config.node,
        devices=devices,
        replicas=replicas,
        life=life,
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


GRACE_S = 25.0
"""Less than the 30 s after which Kubernetes and Slurm kill what they have told to end, in seconds;
leaving takes a step or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What is known before the agent's coordinator says anything."""

    node: NodeId

    devices: int
    """Workers that may run here at a time; of a pool, as many as it has devices."""

    environment: Mapping[str, str]
    """Environment of the workers."""

    address: str = field(default_factory=loopback)
    """Address under which workers elsewhere reach this node."""

    here: Path = field(default_factory=Path.cwd)
    """Where it was started: scripts are looked for there, too."""

    asked: tuple[str, ...] = ()
    """What it was asked to run; empty: whatever its coordinator says."""

    asked_workers: int = 0
    """Workers of each replica that it was asked for; 0: as many as its coordinator says."""

    asked_hosts: int = 0
    """Hosts of each replica that it was asked for; 0: as many as its coordinator says."""

    work: Work | None = None
    """What the job runs; the agent writes ``logs/`` in the directory of the run."""

    labels: Labels = ()
    """Where this node is, in words of whoever started the agent."""

    tls: TlsFiles | None = None
    """What it proves itself with to its coordinator, and its replicas to others if the job wants
    that; None: it has none, or where the job says."""

    give_up_s: float = RECONNECT_S
    """How long a lost coordinator is looked for, in seconds; then the workers end."""

    grace_s: float = GRACE_S
    """How long replicas may take to leave once the agent is told to end, in seconds; 0: none."""

    guarded: tuple[Path, ...] = ()
    """Files that must not outlive this process, even if it is killed."""

    locks: Path | None = None
    """Directory with the locks of a pool's devices; None: no pool, every device is this job's."""

    device_name: Callable[[int], str] = lambda device: ""
    """What a device is called; a number only: empty."""

    start_server: StartServer = start_server
    """How the fork server is started; where torch is loaded already it may be forked, too."""

    def of_pool(self, device: int) -> tuple[int | None, str]:
        """Return what a worker is told of its device: its number in a pool, and its name."""
        return None if self.locks is None else device, self.device_name(device)
