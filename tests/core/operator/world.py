"""A cluster with one job, small enough to be read: it carries actions out, and things happen to it.

Pods run as soon as they are made and are gone as soon as they are deleted, unless it is slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from pliant.core.operator.actions import (
    Action,
    ApplyPart,
    CreateAgent,
    CreateCoordinator,
    CreateWorkload,
    DeletePod,
    DeleteWorkload,
    FinishWorkload,
    RequeueWorkload,
    SetPodsReady,
    TellLeave,
)
from pliant.core.operator.state import (
    ClusterView,
    CoordinatorView,
    JobStatus,
    JobView,
    NodeView,
    Part,
    PodPhase,
    PodView,
    Snapshot,
    WorkloadView,
    agent_name,
    coordinator_name,
    workload_name,
)


@dataclass
class World:
    job: JobView
    now_s: float = 0.0
    status: JobStatus = field(default_factory=JobStatus)
    parts: set[Part] = field(default_factory=set)
    outdated: set[Part] = field(default_factory=set)
    foreign: tuple[str, ...] = ()
    workloads: dict[str, WorkloadView] = field(default_factory=dict)
    pods: dict[str, PodView] = field(default_factory=dict)
    nodes: dict[str, NodeView] = field(default_factory=dict)
    coordinator: CoordinatorView = field(default_factory=CoordinatorView)
    cluster: ClusterView = field(default_factory=ClusterView)
    is_slow: bool = False
    capacity: int | None = None
    """Pods that find a node; None: any number."""

    numbers: Any = field(default_factory=lambda: count(1))

    def snapshot(self) -> Snapshot:
        return Snapshot(
            job=self.job,
            status=self.status,
            parts=frozenset(self.parts),
            outdated=frozenset(self.outdated),
            foreign=self.foreign,
            workloads=tuple(self.workloads.values()),
            pods=tuple(self.pods.values()),
            nodes=self.nodes,
            coordinator=self.seen_coordinator(),
            cluster=self.cluster,
        )

    def seen_coordinator(self) -> CoordinatorView:
        pod = self.pods.get(coordinator_name(self.job.name))
        serves = pod is not None and pod.phase is PodPhase.RUNNING and not pod.is_deleting
        return self.coordinator if serves else CoordinatorView()

    # --- what the operator does

    def apply(self, action: Action) -> None:
        match action:
            case ApplyPart():
                self.parts.add(action.part)
                self.outdated.discard(action.part)
            case CreateWorkload():
                name = workload_name(self.job.name, action.increment)
                self.workloads.setdefault(
                    name,
                    WorkloadView(
                        name=name,
                        uid=f"w{next(self.numbers)}",
                        increment=action.increment,
                        count=action.count,
                        created_s=self.now_s,
                    ),
                )
            case CreateCoordinator():
                self._make(coordinator_name(self.job.name), "", 0)
            case CreateAgent():
                name = agent_name(self.job.name, action.increment, action.index)
                self._make(name, action.increment, action.index)
            case DeletePod():
                self._delete(action)
            case DeleteWorkload():
                self.workloads = {k: w for k, w in self.workloads.items() if w.uid != action.uid}
            case SetPodsReady():
                self._patch(action, pods_ready=action.is_ready, pods_ready_reason=action.reason)
            case RequeueWorkload():
                self._patch(action, has_quota=False, is_admitted=False)
            case FinishWorkload():
                self._patch(action, is_finished=True, has_quota=False)
            case TellLeave():
                pass

    def _patch(
        self, action: SetPodsReady | RequeueWorkload | FinishWorkload, **changes: Any
    ) -> None:
        view = self.workloads.get(action.name)
        if view is not None and view.uid == action.uid:
            self.workloads[action.name] = replace(view, **changes)

    def _make(self, name: str, increment: str, index: int) -> None:
        if name in self.pods:
            return
        self.pods[name] = PodView(
            name=name,
            uid=f"p{next(self.numbers)}",
            increment=increment,
            index=index,
            created_s=self.now_s,
        )
        if not self.is_slow:
            self.run(name)

    def _delete(self, action: DeletePod) -> None:
        pod = self.pods.get(action.name)
        if pod is None or pod.uid != action.uid:
            return
        if action.grace_s == 0 or not self.is_slow or pod.is_over or not pod.node:
            del self.pods[action.name]
        elif not pod.is_deleting:
            until_s = self.now_s + (self.job.grace_s if action.grace_s is None else action.grace_s)
            self.pods[action.name] = replace(pod, is_deleting=True, delete_by_s=until_s)

    # --- what happens

    def run(self, *names: str) -> None:
        for name in names or tuple(self.pods):
            pod = self.pods.get(name)
            if pod is None or pod.phase is not PodPhase.PENDING or pod.is_deleting:
                continue
            placed = sum(bool(one.node) for one in self.pods.values() if one.increment)
            if pod.increment and self.capacity is not None and placed >= self.capacity:
                self.pods[name] = replace(pod, unschedulable="no node is free")
                continue
            node = pod.node or f"n{next(self.numbers)}"
            self.nodes.setdefault(node, NodeView(name=node))
            self.pods[name] = replace(
                pod, node=node, phase=PodPhase.RUNNING, is_ready=True, unschedulable=""
            )

    def change(self, name: str, **changes: Any) -> None:
        if name in self.pods:
            self.pods[name] = replace(self.pods[name], **changes)

    def change_workload(self, increment: str, **changes: Any) -> None:
        name = workload_name(self.job.name, increment)
        if name in self.workloads:
            self.workloads[name] = replace(self.workloads[name], **changes)

    def admit(self, increment: str) -> None:
        self.change_workload(
            increment, has_quota=True, is_admitted=True, eviction=None, pending_message=""
        )


def in_words(world: World, actions: Iterable[Action]) -> list[str]:
    """Return one line for each action, and one for several creations or deletions in a row."""
    lines: list[tuple[str, list[str]]] = []
    for action in actions:
        verb, what = _words(world, action)
        if lines and lines[-1][0] == verb and verb in ("apply", "create", "delete", "withdraw"):
            lines[-1][1].append(what)
        else:
            lines.append((verb, [what]))
    return [f"{verb} {' '.join(what)}" for verb, what in lines]


def _words(world: World, action: Action) -> tuple[str, str]:
    prefix = f"{world.job.name}-"
    match action:
        case ApplyPart():
            return "apply", action.part
        case CreateWorkload():
            return "ask", f"{action.increment} pods={action.count}"
        case CreateCoordinator() | CreateAgent():
            name = "coordinator"
            if isinstance(action, CreateAgent):
                name = f"{action.increment}-{action.index}"
            pod = world.pods.get(prefix + name)
            place = f"@{pod.node}" if pod is not None and pod.node else ""
            avoid = f" (not on {', '.join(action.avoid_nodes)})" if action.avoid_nodes else ""
            return "create", name + place + avoid
        case TellLeave():
            name = action.node.removeprefix(prefix)
            return "tell", f"{name} notice={action.notice_s:g}: {action.reason}"
        case DeletePod():
            grace = "" if action.grace_s is None else f" (grace={action.grace_s})"
            return "delete", action.name.removeprefix(prefix) + grace
        case DeleteWorkload():
            return "withdraw", action.name.removeprefix(prefix)
        case SetPodsReady():
            name = action.name.removeprefix(prefix)
            return "pods-ready", f"{name} {action.is_ready} {action.reason}"
        case RequeueWorkload():
            name = action.name.removeprefix(prefix)
            return "requeue", f"{name} requeued={action.is_requeued} {action.reason}"
        case FinishWorkload():
            return "finish", f"{action.name.removeprefix(prefix)} {action.reason}: {action.message}"
