"""What agents tell the core: nodes that come and go, and how processes ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pliant.core.values import AgentLife, Labels, NodeId, ReplicaId

OUT_OF_MEMORY = "SIGKILL, as the kernel was out of memory"
"""Detail of an exit by a signal that nobody here has sent, while the kernel killed processes."""


class ExitKind(StrEnum):
    """How a worker's process ended."""

    FINISHED = "finished"
    """Exit 0 after Finished."""

    LEFT = "left"
    """Exit 0 of a leaver, or of one that was dismissed."""
    USAGE = "usage"
    """Exit 2: ConfigError or UsageError; the detail is its sentence."""

    SCRIPT = "script"
    """An exception of the script; the detail is the last line of its traceback."""

    SIGNAL = "signal"
    """Ended by a signal; the detail is its name."""
    EARLY = "early"
    """Exit 0 without having finished, for instance a script without a Session."""
    UNKNOWN = "unknown"
    """Its agent has never run it (R21): it was not started, or an agent before ran it."""
    CORRUPT = "corrupt"
    """Its state was not that of most replicas; the detail says what differs."""
    TAKEN = "taken"
    """Its device is in use, so that the script was not run; the detail says which, and by whom."""
    SHORT = "short"
    """Its machine was short of something, or its certificate cannot be used: no fault of a script;
    the detail says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """An agent connected; its node can run this many replicas at a time."""

    node: NodeId
    devices: int

    replicas: tuple[ReplicaId, ...] = ()
    """Those that it runs already: their coordinator, or the connection to it, is a new one."""

    life: AgentLife = AgentLife()  # noqa: RUF009 - frozen
    labels: Labels = ()
    """Where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """All workers that an agent runs or is about to start; said every few seconds, never late."""

    node: NodeId
    replicas: tuple[ReplicaId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailed:
    """The agent of a node can start no worker any more; what it ran has ended, and it says so."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeaving:
    """The agent of a node was told to end: what it runs has ``notice_s`` to leave."""

    node: NodeId
    notice_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSilent:
    """The agent of a node is connected, and has said nothing for ``silent_s``."""

    node: NodeId
    others: tuple[NodeId, ...] = ()
    """Found silent at the same moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node is gone, and with it every process it ran."""

    node: NodeId
    others: tuple[NodeId, ...] = ()
    """Gone at the same moment."""

    has_left: bool = False
    """Its agent was told to end, and has said that it leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """Every process of ``replica`` has ended and was reaped: what they ran on is free."""

    replica: ReplicaId
    kind: ExitKind
    detail: str = ""
    worker: int | None = None  # whose end it was, if it has several and nobody asked for it


@dataclass(frozen=True, slots=True, kw_only=True)
class DiedTogether:
    """The processes of these were ended by signals at one moment; of each its Exited follows."""

    replicas: tuple[ReplicaId, ...]


AgentEvent = (
    NodeJoined | Running | NodeSilent | NodeLeaving | NodeLost | NodeFailed | Exited | DiedTogether
)
