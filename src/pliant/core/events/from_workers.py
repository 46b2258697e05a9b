"""What workers tell the core: where they stand, and what happened to their generation."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.values import (
    NO_GENERATION,
    NO_INCARNATION,
    NO_LINEAGE,
    Found,
    Generation,
    Incarnation,
    Lineage,
    ReplicaId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """A script has done ``calls`` calls of ``steps()``, and waits in the next one to join."""

    replica: ReplicaId
    calls: int
    num_slots: int
    """K of the script: micro-batches of one step."""

    layout: str
    """Digest of the bucket layout, agreed before the first collective.  Compared for equality; of
    a text of several lines the first that differs is named."""

    endpoint: str
    """``host:port`` at which this worker is reached while a generation is met."""

    identity: tuple[tuple[str, str], ...] = ()
    """What must be equal for exact results (seed, threads, versions), by name."""

    has_state: bool = False
    is_durable: bool = False
    """Its script keeps checkpoints."""

    checkpoints: tuple[Found, ...] = ()
    """Published checkpoints of the job that this worker can see, newest first."""

    asked_by: Incarnation = NO_INCARNATION
    looked: int = 0
    """Whose Look, and which, had come before it looked; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Where a worker stands: its answer to RollCall (R4).

    All that a new coordinator knows of it; whatever the worker said earlier is contained in it.
    """

    replica: ReplicaId
    asked_by: Incarnation
    """Whose RollCall it answers.  From then on the worker refuses older coordinators."""

    lineage: Lineage
    committed: int
    """Committed steps; 0 without state."""

    calls: int
    has_state: bool
    current: Generation
    """The generation it is in; 0: none was entered yet."""

    prepared: Generation
    """The newest Prepare it has accepted and neither entered nor given up; 0: none."""

    ordered: Generation
    """The same once its Switch has arrived; 0: none."""

    broken: bool
    """A collective of ``current`` has failed here, or ``current`` was sealed by a Reform."""

    leaving: bool
    """A leaver that has done the boundary step and waits for Release."""

    finished: bool
    """The script has done its last step; it waits for Release."""

    spare: Spare | None
    """What it said of itself when it last waited in ``steps()`` to join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrestorable:
    """The origin of ``generation`` could not load the checkpoint that its order names.

    Said once it is sure, as nobody tries that checkpoint again while this coordinator lives.  The
    origin holds no state then and waits for a Reform.
    """

    replica: ReplicaId
    generation: Generation
    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishAsked:
    """All shares of a checkpoint are on storage: may it be published? (R20)

    May be asked again.  There is no answer but Publish: none comes in a lineage that is over, and
    none may come while one coordinator follows another.
    """

    replica: ReplicaId
    lineage: Lineage
    committed: int
    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint was published and is durable: it may be restored should all state be lost."""

    replica: ReplicaId
    lineage: Lineage
    committed: int
    checkpoint: str
    calls: int = 0
    """Finished ``steps()`` calls when it was taken."""

    seconds: float = 0.0
    """From its snapshot until it was durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The groups of ``generation`` are built; a leaver answers at once."""

    replica: ReplicaId
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """``generation`` cannot be entered as ordered."""

    replica: ReplicaId
    """The sender; with ``joiner`` the joiner that is to be dropped, whoever says it."""

    generation: Generation
    reason: str
    joiner: bool
    """True: ``replica`` is an incompatible or failed joiner.  False: only try again."""

    calls: int = 0
    """More than 0 if joiner and members only are in different ``steps()`` calls: how many the one
    ahead has finished.  Then the joiner is not dropped, and comes again."""
    unreached: tuple[ReplicaId, ...] = ()
    """Members to which no connection could be made from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """``replica`` trains in ``generation``, after a Switch or a Reform."""

    replica: ReplicaId
    generation: Generation
    step: int
    """Its number of committed steps on entering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A collective of ``generation`` failed on ``replica``, which now waits for a Reform."""

    replica: ReplicaId
    generation: Generation
    reason: str
    unreached: tuple[ReplicaId, ...] = ()
    """Members to which no connection could be made from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """Heartbeat; sent every half second, and after commits."""

    replica: ReplicaId
    generation: Generation
    """The generation it is in; 0 for a spare."""
    committed: int
    calls: int
    waiting: Generation = NO_GENERATION
    """It waits for the others in a collective of this generation; 0: it does not."""
    held_up_by: int | None = None
    """The worker for which the others of this replica wait (``worker_activity``)."""
    is_spoken_for: bool = False
    """Its agent says so, who sees it live: its script keeps the interpreter lock."""
    slow: int = 0  # how many times as long as the others it takes, in tenths; 0: less than twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """No step will end for up to ``max_s``: a long tail is no hang."""

    replica: ReplicaId
    max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The script has done its last step; the worker waits for Release."""

    replica: ReplicaId
    committed: int
    lineage: Lineage = NO_LINEAGE
    """The history whose last step that was; 0: it left the loop, and others may go on."""

    lacks_tail: bool = False
    """Its script asks for the leader in the tail of that step, which was another one's to lead."""

    lacks_end: bool = False
    """The same of what its script does behind that."""


WorkerEvent = (
    Spare
    | Registered
    | Prepared
    | Refused
    | Unrestorable
    | Switched
    | Broken
    | Progressed
    | Busy
    | PublishAsked
    | Saved
    | Finished
)
