"""What the core asks the shells to do.

Every command may be carried out twice.  On the wire it names the incarnation that gave it.
``type_name`` says what values of the core are called on the wire and in the event log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

from pliant.core.values import NodeId, Order, ReplicaId


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReplica:
    """Start a worker under this name on a free device of this node."""

    replica: ReplicaId
    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReplica:
    """SIGKILL this worker, reap it, and only then report its exit."""

    replica: ReplicaId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCall:
    """A new coordinator wants to know where you stand: refuse older ones, answer Registered."""

    to: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """An order whose members are to meet."""

    to: tuple[ReplicaId, ...]
    order: Order

    secret: str = field(default="", repr=False)
    """Of the generation, hex; given by the coordinator's shell just before it is sent.  The core
    never sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(_Meeting):
    """Build the groups of ``order`` in the background and answer Prepared; leavers hear it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """All have prepared ``order``: enter it at the boundary, or leave there."""

    to: tuple[ReplicaId, ...]
    order: Order

    within_s: float | None = None
    """In restart mode: when the first that leaves will be ended, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reform(_Meeting):
    """Abandon every older generation and form ``order`` now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipCalls:
    """The first ``calls`` ``steps()`` calls are finished already: pass through them."""

    to: tuple[ReplicaId, ...]
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListCheckpoints:
    """Look which checkpoints there are now, and say Spare anew."""

    to: tuple[ReplicaId, ...]
    number: int
    """Grows with each time that this coordinator wants to know; the answer names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss:
    """You are left out: leave, exit 0."""

    to: tuple[ReplicaId, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Nobody needs you any more: leave, exit 0."""

    to: tuple[ReplicaId, ...]
    """After the last step the first of them leads: it alone does what is to be done once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Say in the next metadata that the run is to stop after that step, and keep that state."""

    to: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveNow:
    """Propose to save the next boundary, unless a checkpoint of a later one than this is there."""

    to: tuple[ReplicaId, ...]
    after: int
    """Committed steps when someone asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """The checkpoint that you asked about is still this job's: publish it."""

    to: tuple[ReplicaId, ...]
    checkpoint: str

    is_register_gone: bool = False
    """Only while the lease of the place is still this run's; set by the coordinator's shell, which
    looks into the register.  The core never sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob:
    """The job is over: end every process, then exit with this code."""

    exit_code: int
    reason: str


Command = (
    StartReplica
    | EndReplica
    | RollCall
    | Prepare
    | Switch
    | Reform
    | SkipCalls
    | ListCheckpoints
    | Dismiss
    | Release
    | Stop
    | SaveNow
    | Publish
    | EndJob
)


_TYPE_NAMES = {"ListCheckpoints": "look", "SkipCalls": "fall_through"}
"""Those that are not called like their class."""


def type_name(kind: type) -> str:
    """Name a kind of values on the wire and in logs: ``StartReplica`` is ``start_replica``."""
    return _type_name(kind.__name__)


@cache
def _type_name(name: str) -> str:
    return _TYPE_NAMES.get(name) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
