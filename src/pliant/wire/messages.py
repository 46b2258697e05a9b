"""What processes tell each other that the core never decides on.

Owns the facts for people (commits, logged values, error texts, process ids), the signs of life
of agent and coordinator, and what an agent is told to run.  Knows nothing of the protocol: a note
may be lost without changing what happens to a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from pliant.core.agreement import NodeFacts
from pliant.core.events import ExitKind
from pliant.core.log_rules import LogRule
from pliant.core.step.balance import Balance
from pliant.core.values import (
    Exchange,
    FromCheckpoint,
    Generation,
    Mode,
    NodeId,
    ReplicaId,
    TlsFiles,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A replica committed a step.  Every member may report it; the log keeps the first."""

    replica: ReplicaId
    generation: Generation
    step: int
    mono_s: float
    """Moment of the commit on its node's monotonic clock, in seconds."""
    loss: float | None
    grad_norm: float | None
    samples: int
    step_s: float
    nonfinite: str = ""
    """What of its result is nan or inf; empty: nothing."""
    is_skipped: bool = False
    """It changed nothing, for that reason."""
    parts_us: tuple[int, ...] = ()
    """What the time of the step went to, as ``core.step.times`` has it; empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Values the script passed to ``session.log``."""

    replica: ReplicaId
    step: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a step consists of and how many there are, from the script's own arguments."""

    replica: ReplicaId
    num_slots: int
    total_steps: int | None
    num_samples: int
    global_batch: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """One sentence of the session for people, e.g. its memory report."""

    replica: ReplicaId
    text: str
    worker: int | None = None
    """Who says so, by the place in the replica; None: it has one worker."""

    lasting: bool = False
    """Results may be wrong: it is told again at the end, and in the status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """From which checkpoint the run goes on, and who wrote that: one sentence."""

    replica: ReplicaId
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsMoved:
    """The slots of a step are not divided evenly, or otherwise than before, from ``step`` on.

    All members conclude the same; the first of them says so.
    """

    replica: ReplicaId
    generation: Generation
    step: int
    replicas: tuple[ReplicaId, ...]
    """The members, in rank order, as in what follows."""

    sizes: tuple[int, ...]
    """Slots of each."""

    paces_us: tuple[int, ...]
    """How long each takes for what it computes at once; 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalChosen:
    """How often there will be a checkpoint, and why: one sentence."""

    replica: ReplicaId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """No checkpoint could be written."""

    replica: ReplicaId
    committed: int
    """Of the state that was to be kept."""
    reason: str
    retry_s: float | None
    """When it is tried again, in seconds, 0: not again; None: the limit is reached, the job is to
    end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The sentence of a ConfigError or UsageError; the worker ends with code 2."""

    replica: ReplicaId
    sentence: str
    worker: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceback:
    """The script's traceback, the user's frames only."""

    replica: ReplicaId
    text: str
    worker: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last thing a worker says: why it ends.  One that is killed says nothing."""

    replica: ReplicaId
    kind: ExitKind
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The agent started a worker process."""

    replica: ReplicaId
    node: NodeId
    pid: int
    device: int | None = None
    """Of its pool."""
    device_name: str = ""
    """What it is called, with its kind; empty: it has no name."""
    worker: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """The agent's sign of life; ``refused`` counts messages of its workers it could not read."""

    node: NodeId
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFailed:
    """The agent cannot start workers any more; the reason is for people."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesAiling:
    """Devices of a node that get no worker until they are healthy again: all that are not."""

    node: NodeId
    ailments: tuple[tuple[str, str], ...]
    """Name, and a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLeft:
    """The agent was told to end; what it ran has ended.  Its last word."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerGrown:
    """What a replica wrote into its ledger, where the coordinator does not see that."""

    replica: ReplicaId
    part: int
    """Of its ledger; 0: the first."""

    offset: int
    """Of the first of the lines in that part, in bytes."""

    lines: str
    """Whole ones, in ASCII; or a piece of one that no message has room for."""

    worker: int | None = None
    """Which of several wrote it; None: the one that speaks for the replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGrown:
    """What a worker printed, where the coordinator does not see its file."""

    replica: ReplicaId
    offset: int
    """Of the first letter among all that this worker has printed; where it is beyond the last one
    that was told, what lies between is in the worker's own file alone."""

    text: str
    worker: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """The settings of a job that its agents and sessions read, as they were given.

    Whoever resolves a job (``run.job_config``), writes it down, resumes it or tells agents of it
    goes by these fields.  A new one is added here, in the job file (``spec.job``) and in the table
    of settings (``cli.settings``), and read in the engine as ``work.NAME``.
    """

    from_checkpoint: FromCheckpoint = FromCheckpoint.AUTO
    """What it does with checkpoints that lie in its place."""

    strict: bool = False
    """What is otherwise warned of ends a replica."""

    verify_every: int = 0
    """Steps between two looks at the whole state of all replicas; 0: never."""

    balance: Balance = Balance.EVEN
    """By what the slots of a step are divided over the replicas."""

    mode: Mode = Mode.IN_PLACE
    """How the size of the job changes."""

    exchange: Exchange = Exchange.AUTO
    """How replicas exchange what is on accelerators."""

    log_rules: tuple[LogRule, ...] = ()
    """What replicas must print, or may not."""

    workers_per_replica: int = 1
    """Processes of one replica, all of them on one node."""

    hosts_per_replica: int = 1
    """Hosts of one node: more than one for replicas that do not fit on one (``JoinHosts``)."""

    def options(self) -> dict[str, Any]:
        """Return these fields alone."""
        return {name: getattr(self, name) for name in WORK_OPTIONS}


WORK_OPTIONS = tuple(one.name for one in fields(WorkOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(WorkOptions):
    """What a job runs: the first thing that a coordinator says to an agent, on each connection."""

    job: str

    command: tuple[str, ...]
    """The script and its arguments."""

    cwd: str
    """Where it runs, absolute; a node without it, or without the script in it, has another."""

    out: str
    """Directory of the run, absolute; a node that does not see it has one of its own."""

    init: str | None = None
    """File with weights to start from."""

    holder: str = ""
    """Identifies the job at its checkpoints."""

    tls: TlsFiles | None = None
    """Of each node, for what replicas tell each other; None: no TLS."""

    session_s: float = 540.0
    """Longest time from the start of the script until it makes a session, in seconds."""

    graceful_s: float = 30.0
    """How long processes that are started again have to save and end before, in seconds."""

    max_restarts: int = 0
    """For the environment of those."""

    digest: str = ""
    """SHA-256 of the script where the job was started, which every node must have; empty: not
    known."""

    bare_life: str = ""
    """Of a coordinator whose directory was empty: it is told all ledgers anew, once; empty: of one
    that has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """How many messages the coordinator has read on this connection; also its sign of life."""

    count: int

    signs_every_s: float
    """How far apart the signs of life of an agent, and of each of its replicas, need to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """An agent is to end its workers and go: another has its name, its node differs from the
    others, or it says what cannot be read."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAlone:
    """This host has room for a part of a replica, and is part of no host group."""

    node: NodeId

    endpoint: str
    """``host:port`` at which it takes the other hosts of a host group, if it is to be the head."""

    devices: int

    missed: tuple[NodeId, ...] = ()
    """With whom it was to be one, the last time, and was not: they did not reach each other."""

    obstacle: str = ""
    """Why it can be one with nobody now; it tries again, and says when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinHosts:
    """These hosts are one node from now on: the head speaks for it, and parts connect to it."""

    head: NodeId

    parts: tuple[NodeId, ...]
    """In the order of their workers' places, which follow those of the head."""

    endpoint: str
    """``host:port`` of the head."""

    secret: str = field(default="", repr=False)
    """By which they know each other, hex."""


WorkerNote = (
    Committed
    | Logged
    | Planned
    | Noted
    | SlotsMoved
    | Resumed
    | IntervalChosen
    | SaveFailed
    | Usage
    | Traceback
    | Ended
)
FollowerNote = Noted | Usage | Traceback | Ended
"""What a worker says that does not speak for its replica."""
AgentNote = (
    Started
    | Alive
    | AgentFailed
    | DevicesAiling
    | AgentLeft
    | NodeFacts
    | LedgerGrown
    | OutputGrown
    | HostAlone
)
CoordinatorNote = Work | Heard | Unfit | JoinHosts
Note = WorkerNote | AgentNote | CoordinatorNote
