"""What a job is doing now: the one answer behind ``pliant status``, REST and the live view.

Owns the shape of ``as_json``; ``docs/reference/records.md`` has its fields.  Knows nothing of files
or terminals: a ``Board`` eats the records of the event log in file order, in bounded memory, and
can be asked at any time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from pliant.core.errors import EXIT_STOPPED
from pliant.core.values import Mode
from pliant.observe import explain, status_facts
from pliant.observe.living_replicas import LivingReplicas, ReplicaStatus
from pliant.observe.log import Record, listed, number, whole
from pliant.observe.timeline import Resize, Timeline
from pliant.observe.totals import Totals

RECENT_EVENTS = 20
RECENT_COMMITS = 50
"""Commits that speed, median step and ETA are taken over."""

ENDINGS = ("end_job", "job_ended")
"""Kinds that end a job: the core's command, and the last word of the process that ran it."""

JOB_KINDS = frozenset(
    {"job_started", "policy_changed", "plan", "decision", "stop_requested", *ENDINGS}
)
"""Kinds that say something of the job as a whole."""

ENDED_AS = {0: "finished", 3: "stopped", 130: "stopped", 4: "lost"}

TERMINAL_CLOSED, SIGNAL_CAME = "the terminal was closed", " came"
"""How the notes begin that say why a run was told to stop."""

NUMBERS = ("total_steps", "target_replicas", "min_replicas", "max_replicas", "num_slots")
"""What is taken from any record about the job that says it, and shown as it is."""

FACTS: dict[str, tuple[str, Callable[[Record, Any], Any]]] = {
    "nodes_apart": ("apart", status_facts.apart_after),
    "nodes_silent": ("silent", status_facts.silent_after),
    "devices_ailing": ("ailing", status_facts.ailing_after),
    "replicas_slow": ("slow", status_facts.slow_after),
    "joint_nodes": ("hosts", status_facts.hosts_after),
    "note": ("warnings", explain.after),
}
"""Kinds that say anew what one field of a board is."""

POOL_FIELDS = (
    "pool", "team", "priority", "admission", "devices", "offered", "wanted", "reason",
    "is_suspended", "silence",
)  # fmt: skip
"""What a job says of itself in its pool."""


@dataclass(slots=True)
class Board:
    """Eats records in file order; answers with the job's status."""

    job: str = ""
    living: LivingReplicas = field(default_factory=LivingReplicas)
    timeline: Timeline = field(default_factory=Timeline)
    totals: Totals = field(default_factory=Totals)
    committed: int = 0
    total_steps: int | None = None
    num_slots: int | None = None
    target_replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    loss: float | None = None
    nonfinite: dict[str, Any] | None = None
    warnings: list[dict[str, Any]] = field(default_factory=list)
    decision: dict[str, Any] | None = None
    apart: list[dict[str, Any]] = field(default_factory=list)
    silent: list[dict[str, Any]] = field(default_factory=list)
    ailing: list[dict[str, Any]] = field(default_factory=list)
    slow: list[dict[str, Any]] = field(default_factory=list)
    hosts: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = None
    checkpoint_failure: dict[str, Any] | None = None
    checkpoint_failures: int = 0
    checkpoint_asked: dict[str, Any] | None = None
    """Someone wants one now, which is not there yet."""

    is_durable: bool = False
    """The script keeps checkpoints, though there may be none yet."""

    restored: dict[str, Any] | None = None
    restores: int = 0
    pool: dict[str, Any] | None = None
    suspending: bool = False
    stale: int = 0
    stopping: bool = False
    told_by: str | None = None
    """Why it was told to stop, if its log says so."""

    exit_code: int | None = None
    reason: str | None = None
    about: dict[str, Any] = field(default_factory=dict)
    _recent: deque[tuple[int, float, int]] = field(
        default_factory=lambda: deque(maxlen=RECENT_COMMITS)
    )

    def add(self, record: Record) -> None:
        """Take in one record; kinds it does not know change nothing."""
        self.job = str(record.get("job") or self.job)
        self.timeline.add(record)
        self.totals.add(record, self.timeline, self.living)
        self.told_by = _why_to_stop(record) or self.told_by
        match record.get("kind"):
            case "commit":  # most are
                self._on_commit(record)
            case kind if kind in JOB_KINDS:
                self._job_record(record)
            case "coordinator_started":
                self._follow(record)
            case kind if kind in FACTS:
                name, after = FACTS[str(kind)]
                setattr(self, name, after(record, getattr(self, name)))
            case "pool":
                self.pool = _chosen(record, *POOL_FIELDS) | {"devices": listed(record, "devices")}
            case "node_joined" | "node_lost":
                self._node_record(record)
            case "saved" | "save_failed" | "save_now" | "suspend_requested":
                self._durable_record(record)
            case "prepare" | "dismiss":
                self.living.add_order(record)
            case "switch" | "reform":
                self.living.add_order(record)
                self._on_order(record.get("order"))
            case _ if record.get("replica"):
                self.is_durable = self.is_durable or record.get("is_durable") is True
                self.living.add(record, str(record["replica"]))
            case _:
                pass  # records about other things

    @property
    def replicas(self) -> dict[str, ReplicaStatus]:
        """The living replicas by name."""
        return self.living.named

    @property
    def state(self) -> str:
        """Return the job's state in one word."""
        if self.exit_code == EXIT_STOPPED and self.suspending:
            return "suspended"
        if self.exit_code is not None:
            return ENDED_AS.get(self.exit_code, "failed")
        if self.stopping:
            return "stopping"
        is_queued = self.pool is not None and self.pool["admission"] == "waiting"
        if self.living.is_holding or is_queued:
            return "waiting"
        is_training = self.committed or (self.is_uncounted and self.timeline.generation)
        return "training" if is_training else "starting"

    @property
    def is_uncounted(self) -> bool:
        """Whether the script is started again at each change, and nobody has counted its steps."""
        return self.about.get("mode") == Mode.RESTART and not self.timeline.num_commits

    def samples_per_s(self) -> float | None:
        """Return committed samples per second over the last steps."""
        if len(self._recent) < 2:
            return None
        elapsed_s = self._recent[-1][1] - self._recent[0][1]
        samples = sum(samples for _, _, samples in list(self._recent)[1:])
        return samples / elapsed_s if elapsed_s > 0 and samples else None

    def median_step_s(self) -> float | None:
        """Return the median gap between the last commits; some may not be told of each."""
        gaps = [(b[1] - a[1]) / max(b[0] - a[0], 1) for a, b in pairwise(self._recent)]
        return median(gaps) if gaps else None

    def eta_s(self) -> float | None:
        """Return the seconds that the remaining steps take at the present speed."""
        step_s = self.median_step_s()
        if self.total_steps is None or step_s is None or self.exit_code is not None:
            return None
        return max(self.total_steps - self.committed, 0) * step_s

    def forget_doubts(self) -> None:
        """Say no more of nodes and replicas with which something was wrong."""
        self.apart, self.silent, self.slow, self.hosts = [], [], [], None
        self.ailing = []

    def resizes(self) -> list[Resize]:
        """Return every resize so far."""
        return self.timeline.resizes()

    def bound(self) -> None:
        """Keep as much as ever, after it was read from where no bound is known."""
        self._recent = deque(self._recent, RECENT_COMMITS)
        self.timeline.bound()

    def as_json(
        self,
        *,
        idle_s: float | None = None,
        waits_for: Iterable[str] = (),
        unreached: Record | None = None,
    ) -> Record:
        """Return the documented shape; what is given only its reader can know."""
        return {
            "job": self.job,
            "state": self.state,
            "generation": self.timeline.generation,
            "step": self.committed,
            **{name: getattr(self, name) for name in NUMBERS},
            "replicas": [self._shown(replica) for replica in self.replicas.values()],
            "loss": self.loss if math.isfinite(self.loss or 0.0) else None,
            "nonfinite": self.nonfinite,
            "warnings": self.warnings,
            "samples_per_s": self.samples_per_s(),
            "median_step_s": self.median_step_s(),
            "eta_s": self.eta_s(),
            "idle_s": idle_s if self.committed and self.exit_code is None else None,
            "waits_for": list(waits_for),
            "steps_lost": self.timeline.steps_lost,
            "stale": self.stale,
            "register_unreached": unreached,
            "events": [event_json(one) for one in self.timeline.resizes(RECENT_EVENTS)],
            "checkpoint": self.checkpoint,
            "checkpoint_failure": self.checkpoint_failure,
            "checkpoint_asked": self.checkpoint_asked,
            "restored": self.restored,
            "decision": self.decision,
            "apart": self.apart,
            "silent": self.silent,
            "ailing": self.ailing,
            "slow": self.slow,
            "hosts": self.hosts,
            "placed": status_facts.placed(self.about, self.living),
            "pool": self.pool,
            "exit_code": self.exit_code,
            "reason": self.reason,
            **_chosen(self.about, "out", "url", "pid", "workers_per_replica", "mode"),
        }

    def _shown(self, replica: ReplicaStatus) -> dict[str, Any]:
        return asdict(replica) | {"hosts": status_facts.hosts_of_node(self.hosts, replica.node)}

    def _job_record(self, record: Record) -> None:
        for name in NUMBERS:
            if (value := whole(record.get(name))) is not None:
                setattr(self, name, value)
        match record["kind"]:
            case "job_started":
                self._begin_again()
                self.about = record
                if self.target_replicas is None:
                    self.target_replicas = whole(record.get("start_replicas"))
            case "decision":
                self.decision = _chosen(record, "target_replicas", "reason", "at")
            case "stop_requested":
                self.stopping = True
            case "end_job" | "job_ended":
                self.exit_code = whole(record.get("exit_code"), 1)
                self.reason = str(record.get("reason") or "")
                self.forget_doubts()
            case _:
                pass  # a plan: its numbers were taken above

    def _begin_again(self) -> None:
        """A resumed job: what is known of its steps and checkpoints stays, its processes do not."""
        self.living = LivingReplicas()
        self._recent.clear()
        self.exit_code = self.reason = self.pool = self.told_by = self.checkpoint_asked = None
        self.forget_doubts()
        self.stopping = self.suspending = False

    def _follow(self, record: Record) -> None:
        """Another coordinator: replicas count again once their agent has said that they live."""
        self.living.follow()
        self.exit_code = self.reason = self.checkpoint_asked = None
        self.forget_doubts()  # it finds them out anew
        self.about = self.about | record

    def _node_record(self, record: Record) -> None:
        self.living.add_node(record)
        if record["kind"] == "node_lost" and self.hosts is not None:
            gone = {str(record.get("node")), *map(str, listed(record, "others"))}
            self.hosts = status_facts.hosts_without(self.hosts, gone)

    def _durable_record(self, record: Record) -> None:
        match record["kind"]:
            case "saved":
                if whole(record.get("committed")) is not None:
                    kept = {"name": record.get("checkpoint"), "at": record.get("at") or 0.0}
                    self.checkpoint = kept | _chosen(
                        record, "committed", "seconds", "place", "digest"
                    )
                    self.checkpoint_failure = None
                    asked = self.checkpoint_asked
                    if asked is not None and self.checkpoint["committed"] >= asked["step"]:
                        self.checkpoint_asked = None
            case "save_failed":
                self.is_durable = True
                self.checkpoint_failures += 1
                self.checkpoint_failure = _chosen(record, "reason", "at", "retry_s")
            case "save_now":
                step = whole(record.get("after"), 0) + 1
                self.checkpoint_asked = {"step": step, "at": record.get("at")}
            case _:
                self.stopping = self.suspending = True

    def _on_order(self, order: object) -> None:
        if isinstance(order, dict) and isinstance(order.get("restore"), dict):
            self._on_restore(order["restore"])

    def _on_restore(self, restore: Record) -> None:
        """The history begins anew from a checkpoint: later steps of the old one are gone."""
        if restore == self.restored:
            return
        self.restored = restore
        self.checkpoint_asked = None
        self.restores += 1
        self.committed = whole(restore.get("committed"), self.committed)
        self._recent.clear()

    def _on_commit(self, record: Record) -> None:
        step = whole(record.get("step"))
        if step is None or step < self.committed:
            return
        self.committed = step + 1
        self.loss = number(record.get("loss"))
        self.nonfinite = status_facts.nonfinite_after(record, self.nonfinite)
        self._recent.append((step, self.timeline.clock.now_s, whole(record.get("samples"), 0)))


def _why_to_stop(record: Record) -> str | None:
    """Return what told the run to stop, if this record says so."""
    if record.get("kind") == "interrupted":
        return "Ctrl-C"
    said = str(record.get("text")).partition(";")[0] if record.get("kind") == "note" else ""
    is_signal = said.startswith("SIG") and said.endswith(SIGNAL_CAME)
    return said if is_signal or said == TERMINAL_CLOSED else None


def _chosen(record: Record, *names: str) -> dict[str, Any]:
    return {name: record.get(name) for name in names}


def event_json(resize: Resize) -> dict[str, Any]:
    """Return one resize as status, report and REST show it."""
    shown = asdict(resize) | {"kind": resize.kind.value, "replicas": list(resize.replicas)}
    del shown["mono"], shown["cause_mono"]
    return shown


def board_of(records: Iterable[Record]) -> Board:
    """Feed a whole log to a new board."""
    board = Board()
    for record in records:
        board.add(record)
    return board
