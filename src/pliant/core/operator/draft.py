"""A plan that is being made: what was read, and what has been decided so far.

Owns the bookkeeping that all parts of a plan share.  Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pliant.core.operator.actions import Action, DeletePod, Event, TellLeave
from pliant.core.operator.state import JobView, Memory, PodPhase, PodView, Snapshot

STUCK_S = 15.0
"""After its deadline a pod on a node that is not ready is deleted without that node's word."""


@dataclass(slots=True)
class PlanDraft:
    """Grows while the parts of a plan are asked one after the other."""

    snapshot: Snapshot
    now_s: float
    memory: Memory
    room: int | None
    """Agent pods that quotas still allow in this plan; None: any number."""

    agents: dict[str, list[PodView]]
    """Their pods by increment."""

    may_create: bool = True
    """Whether all parts are there that pods need."""

    actions: list[Action] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)
    """Moments at which time alone may bring another plan."""

    holds: list[str] = field(default_factory=list)
    """What keeps the job from having more, in sentences; the first one is shown."""

    @classmethod
    def of(cls, snapshot: Snapshot, now_s: float) -> PlanDraft:
        """Begin a plan."""
        return cls(
            snapshot=snapshot,
            now_s=now_s,
            memory=snapshot.status.memory,
            room=snapshot.cluster.agent_room,
            agents=_agents_of(snapshot),
        )

    @property
    def job(self) -> JobView:
        """What its user wrote."""
        return self.snapshot.job

    @property
    def is_queued(self) -> bool:
        """Whether Kueue says what the job may have."""
        return bool(self.job.queue)

    def act(self, *actions: Action) -> None:
        """Add actions, in order."""
        self.actions += actions

    def tell(self, reason: str, note: str, *, is_warning: bool = False) -> None:
        """Add an event."""
        self.events.append(Event(reason=reason, note=note, is_warning=is_warning))

    def remember(self, **changes: Any) -> None:
        """Change fields of the memory."""
        self.memory = replace(self.memory, **changes)

    def is_foreign(self, kind: str, name: str) -> bool:
        """Whether somebody else's object has this name, which is said."""
        if f"{kind}/{name}" not in self.snapshot.foreign:
            return False
        self.holds.append(f"{kind} {name} exists and is not this job's; delete or rename it")
        return True

    def is_due(self, at_s: float) -> bool:
        """Whether a moment has come; if not, the plan is looked at again then."""
        if at_s > self.now_s:
            self.wakes.append(at_s)
        return at_s <= self.now_s

    def dismiss(self, pods: Iterable[PodView], reason: str) -> None:
        """Let agents go whose increment is not the job's any more."""
        for pod in pods:
            if pod.is_deleting:
                self.force(pod)
                continue
            if pod.phase is PodPhase.RUNNING:
                self.act(TellLeave(node=pod.name, notice_s=self.job.grace_s, reason=reason))
            self.act(DeletePod(name=pod.name, uid=pod.uid))

    def force(self, pod: PodView) -> None:
        """Delete a pod for good whose node does not do so."""
        node = self.snapshot.nodes.get(pod.node)
        if node is None or node.is_ready or pod.delete_by_s is None:
            return
        if self.is_due(pod.delete_by_s + STUCK_S):
            self.act(DeletePod(name=pod.name, uid=pod.uid, grace_s=0))


def _agents_of(snapshot: Snapshot) -> dict[str, list[PodView]]:
    """Return the agents' pods by increment."""
    found: dict[str, list[PodView]] = {}
    for pod in snapshot.pods:
        if not pod.is_coordinator:
            found.setdefault(pod.increment, []).append(pod)
    return found


def coordinator_of(snapshot: Snapshot) -> PodView | None:
    """Return the coordinator's pod."""
    return next((pod for pod in snapshot.pods if pod.is_coordinator), None)
