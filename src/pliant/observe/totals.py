"""What adds up over a job's life: for metrics, which are asked for now and then.

Owns the sums; a ``Totals`` eats the records of the event log in file order, in bounded memory, and
is part of a ``Board``.  Knows nothing of how the sums are called or served.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pliant.core.step.times import PARTS, REST
from pliant.observe.durations import Durations
from pliant.observe.goodput import Account
from pliant.observe.living_replicas import LivingReplicas, ReplicaActivity
from pliant.observe.log import COMMIT, Record, seconds, whole
from pliant.observe.series import parts_of
from pliant.observe.timeline import HARMLESS_EXITS, Timeline

CAUSES = {
    "scaled": "request",
    "drain_requested": "request",
    "kill_requested": "request",
    "offered": "offer",
    "reclaimed": "reclaim",
    "node_joined": "node_joined",
    "node_leaving": "node_leaving",
    "node_lost": "node_lost",
    "exited": "exit",
}
"""Kinds of records that may lead to a resize, and what that is called."""

PEOPLE = {
    "scaled": "scale",
    "policy_set": "policy",
    "checkpoint_requested": "checkpoint",
    "drain_requested": "drain",
    "kill_requested": "kill",
    "stop_requested": "stop",
    "suspend_requested": "suspend",
    "interrupted": "interrupt",
}
"""Kinds of records of what people have asked for, and how that is called."""

LOOK_S = 0.25
"""After which it is looked anew how many devices train, in seconds: there may be thousands."""

STILL = frozenset({COMMIT, "heard", "metrics", "note", "decision", "core_state"})
"""Kinds that say nothing of who trains."""


@dataclass(slots=True)
class Totals:
    """Eats records in file order, after the board's other parts have."""

    steps: Durations = field(default_factory=Durations)
    saves: Durations = field(default_factory=Durations)
    parts_s: dict[str, float] = field(default_factory=dict)
    """What the time of steps went to."""

    account: Account = field(default_factory=Account)
    causes: dict[str, int] = field(default_factory=dict)
    """Scale events by cause."""

    requests: dict[str, int] = field(default_factory=dict)
    """What people have asked for, by kind."""

    queued_s: float = 0.0
    """Time in which it waited for its pool, up to the newest record."""

    is_queued: bool = False
    training_s: float = 0.0
    """Devices times seconds in which their replica trained."""

    idle_s: float = 0.0
    """Devices times seconds in which their replica did not, but was there."""

    training: int = 0
    """Devices now."""

    idle: int = 0
    until_s: float | None = None
    committed_at: float | None = None
    """Wall-clock time of the newest commit of this start; before, when replicas began to train."""

    num_starts: int = 0
    _workers: int = 1
    _is_stale: bool = field(default=True, compare=False)
    _looked_s: float | None = field(default=None, compare=False)

    def add(self, record: Record, timeline: Timeline, living: LivingReplicas) -> None:
        """Take in one record; kinds it does not know change nothing."""
        kind = str(record.get("kind"))
        self.account.add(record, timeline)
        self._pass_time(timeline.clock.now_s, living)
        self._is_stale |= kind not in STILL
        match kind:
            case "commit":  # most are
                if (took_s := seconds(record.get("step_s"))) is not None:
                    self.steps.note(took_s)
                    self._divide(took_s, parts_of(record))
                self.committed_at = float(record.get("at") or 0.0)
            case "job_started":
                self._workers = whole(record.get("workers_per_replica"), 1)
                self.num_starts += 1
                self.committed_at = None
            case "switched" if self.committed_at is None:
                self.committed_at = float(record.get("at") or 0.0)
            case "saved" if (took_s := seconds(record.get("seconds"))) is not None:
                self.saves.note(took_s)
            case "pool":
                self.is_queued = record.get("admission") == "waiting"
            case "end_job" | "job_ended":
                self.is_queued = False
            case _:
                self._count(kind, record)

    def _divide(self, took_s: float, parts: tuple[float, ...]) -> None:
        if parts:
            rest_s = max(took_s - sum(parts), 0.0)
            for name, part_s in zip((*PARTS, REST), (*parts, rest_s), strict=True):
                self.parts_s[name] = self.parts_s.get(name, 0.0) + part_s

    def _count(self, kind: str, record: Record) -> None:
        is_harmless = kind == "exited" and record.get("exited_kind") in HARMLESS_EXITS
        if kind in CAUSES and not is_harmless:
            self.causes[CAUSES[kind]] = self.causes.get(CAUSES[kind], 0) + 1
        is_of_people = kind != "suspend_requested" or record.get("notice_s") is None
        if kind in PEOPLE and is_of_people:
            self.requests[PEOPLE[kind]] = self.requests.get(PEOPLE[kind], 0) + 1

    def _pass_time(self, now_s: float, living: LivingReplicas) -> None:
        if self.until_s is None:
            self.until_s = now_s
        passed_s = now_s - self.until_s
        if passed_s <= 0:
            return
        if self._is_stale and (self._looked_s is None or now_s - self._looked_s >= LOOK_S):
            self._is_stale, self._looked_s = False, now_s
            states = [one.state for one in living.named.values()]
            busy = (ReplicaActivity.TRAINING, ReplicaActivity.LEAVING)
            self.training = self._workers * sum(state in busy for state in states)
            self.idle = self._workers * len(states) - self.training
        self.training_s += passed_s * self.training
        self.idle_s += passed_s * self.idle
        self.queued_s += passed_s if self.is_queued else 0.0
        self.until_s = now_s
