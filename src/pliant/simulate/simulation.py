"""One simulated cluster from its first job to its last: who arrives, who goes, when it is over.

Owns what comes from outside: jobs, nodes that come and go.  Decides nothing: the pool's core
shares devices out, and each elastic job's policy says how many it takes.

    workload, traces --> queue --> core.allocation --> jobs --> core.policy --> queue ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from pliant.core.allocation import (
    CLASSES,
    Claim,
    Cordoned,
    Drained,
    PriorityClass,
    Uncordoned,
    checking,
)
from pliant.core.errors import ConfigError
from pliant.core.policy.decide import Policy
from pliant.core.text import counted
from pliant.simulate.accounts import JobRecord
from pliant.simulate.elastic_run import ElasticRun
from pliant.simulate.resize_costs import ResizeCosts
from pliant.simulate.rigid_run import RigidRun
from pliant.simulate.simulated_pool import NodeGroup, SimulatedPool
from pliant.simulate.training_run import TrainingRun
from pliant.spec.cluster import ClusterSpec
from pliant.spec.pool import team_of
from pliant.spec.trace import Change
from pliant.spec.workload import WorkloadJob

STALLED_S = 30 * 86_400.0
"""So long after anybody has trained the simulation ends, though nodes go on changing."""

LOOKS = 2000
"""Moments between two looks at whether somebody wants it to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorld:
    """All that is given; the same world can be simulated with several ways of resizing."""

    cluster: ClusterSpec
    jobs: Sequence[WorkloadJob]
    capacity: Mapping[str, Sequence[Change]] = field(default_factory=dict)
    """Nodes that are there, by the name of their group."""

    policy: Policy = Policy()  # noqa: RUF009 - frozen
    """Of every elastic job, but for its sizes."""

    source: str = "the workload"
    """The file that the jobs are from, for sentences."""

    notes: tuple[str, ...] = ()
    """What was left out of an export, and what was assumed."""


class Simulation:
    """Runs one world with one way of resizing; ``run`` once, then read it."""

    def __init__(
        self,
        world: SimulatedWorld,
        costs: ResizeCosts,
        *,
        until_s: float = math.inf,
    ) -> None:
        self.world = world
        self.costs = costs
        self.until_s = until_s
        self.groups = _groups(world.cluster)
        self.pool = _pool(world.cluster)
        self.pool.groups = self.groups
        self.records: list[JobRecord] = []
        self.is_cut_short = False
        """Somebody wanted it to end before it was over."""

        self._policies: dict[tuple[int, int], Policy] = {}
        self._next = 0
        self._trained_at_s = self._useful_s = 0.0
        self._require_possible()

    # --- the way of it --------------------------------------------------------------

    def run(
        self,
        *,
        on_progress: Callable[[float], None] = lambda share: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Simulate until every job has ended, nothing happens any more, or it is stopped.

        ``on_progress`` hears which share of the jobs has arrived and ended, now and then.
        """
        self._begin()
        total, moments = 2 * len(self.world.jobs), 0
        while not self._is_over() and self.pool.advance(self.until_s):
            moments += 1
            if moments % LOOKS == 0:
                on_progress((2 * self._next - len(self.pool.claimants)) / total)
                if is_stopped():
                    self.is_cut_short = True
                    break
                if self._is_stalled():
                    break
        if self.until_s < math.inf and not self.is_cut_short and not self._is_over():
            self.pool.pass_time(self.until_s)
        for claimant in self.pool.claimants.values():
            claimant.account()

    def _begin(self) -> None:
        for group in self.groups:
            changes = self.world.capacity.get(group.entry.name)
            if changes is not None:
                self._follow_trace(group, changes)
        self.pool.settle()
        self._plan_arrival()

    def _is_over(self) -> bool:
        if self._next < len(self.world.jobs) or not self.world.jobs:
            return False
        return not self.pool.claimants

    def _is_stalled(self) -> bool:
        runs = self.pool.claimants.values()
        is_training = any(isinstance(run, TrainingRun) and run.rate for run in runs)
        useful_s = self.pool.accounts.spent["useful"]
        if is_training or useful_s != self._useful_s:  # now, or since the last look
            self._trained_at_s, self._useful_s = self.pool.now_s, useful_s
        is_waiting = self._next == len(self.world.jobs)
        return is_waiting and self.pool.now_s - self._trained_at_s > STALLED_S

    # --- jobs -----------------------------------------------------------------------

    def _plan_arrival(self) -> None:
        if self._next < len(self.world.jobs):
            at_s = self.world.jobs[self._next].arrival_s
            self.pool.queue.at(max(at_s, self.pool.now_s), self._arrive)

    def _arrive(self) -> None:
        run = self._run_of(self.world.jobs[self._next])
        self._next += 1
        self.records.append(run.record)
        self._trained_at_s = self.pool.now_s  # it has had no time to
        run.arrive()
        self._plan_arrival()

    def _run_of(self, job: WorkloadJob) -> RigidRun | ElasticRun:
        record = JobRecord(
            name=job.name,
            arrival_s=job.arrival_s,
            is_elastic=job.is_elastic and self.costs.is_elastic,
            devices=job.devices,
            work_s=job.work_s,
            deadline_s=job.deadline_s,
        )
        if record.is_elastic:
            return ElasticRun(job, self.costs, self.pool, record, self._policy(job))
        return RigidRun(job, self.costs, self.pool, record)

    def _policy(self, job: WorkloadJob) -> Policy:
        sizes = (job.min_devices // job.workers, job.max_devices // job.workers)
        if sizes not in self._policies:
            low, high = sizes
            policy = replace(self.world.policy, min_replicas=low, max_replicas=high)
            self._policies[sizes] = policy
        return self._policies[sizes]

    def _require_possible(self) -> None:
        """Refuse, by the pool's own rule, what could never be met."""
        for job in self.world.jobs:
            where = f"{self.world.source} line {job.line}" if job.line else self.world.source
            try:
                claim = self._run_of(job).claim()
            except ConfigError as error:  # its sizes are none of those that the policy allows
                raise ConfigError(f"{where}: {error}") from None
            self._require_claim(claim, where, who=f"{where}: {job.name}")
            self._require_wide_node(job, where)

    def _require_claim(self, claim: Claim, where: str, *, who: str) -> None:
        core = self.pool.core
        one = core.pools.get(claim.device_kind or next(iter(core.pools)))
        if one is None:
            there = ", ".join(kind or "none" for kind in core.pools)
            kind = claim.device_kind
            raise ConfigError(f"{where}: no node has devices of kind {kind}; there are {there}")
        if refused := checking.refusal(one, claim):
            raise ConfigError(f"{who} can never run: {refused}")

    def _require_wide_node(self, job: WorkloadJob, where: str) -> None:
        kind = job.device_kind or next(iter(self.pool.core.pools))
        widest = max(one.entry.devices for one in self.groups if one.entry.kind == kind)
        if job.workers > widest:
            raise ConfigError(
                f"{where}: {job.name} can never run: a replica has {job.workers} workers, all on"
                f" one node, and no node has more than {counted(widest)}"
            )

    # --- nodes ----------------------------------------------------------------------

    def _follow_trace(self, group: NodeGroup, changes: Sequence[Change]) -> None:
        nobody = tuple(chain.from_iterable(map(group.devices, range(group.entry.count))))
        self.pool.tell(Cordoned(devices=nobody))
        group.there = 0
        for change in changes:
            self.pool.queue.at(change.at_s, partial(self._set_nodes, group, change.devices))

    def _set_nodes(self, group: NodeGroup, number: int) -> None:
        """Let nodes come, or those with the highest numbers go."""
        wanted, before = min(number, group.entry.count), group.there
        if wanted == before:
            return
        group.there = wanted
        if wanted > before:
            for node in range(before, wanted):
                group.gone_at_s.pop(node, None)
            nodes = map(group.devices, range(before, wanted))
            self.pool.tell(Uncordoned(devices=tuple(chain.from_iterable(nodes))))
            return
        gone = tuple(chain.from_iterable(map(group.devices, range(wanted, before))))
        self.pool.tell(Drained(devices=gone))
        notice_s = group.entry.notice_in_seconds
        if notice_s:
            at_s = self.pool.now_s + notice_s
            group.gone_at_s.update(dict.fromkeys(range(wanted, before), at_s))
            self.pool.queue.at(at_s, partial(self._end_notice, group))
        else:
            self._lose(set(gone))

    def _end_notice(self, group: NodeGroup) -> None:
        """Lose what is still held of nodes whose notice ends now."""
        ended = [node for node, at_s in group.gone_at_s.items() if at_s <= self.pool.now_s]
        for node in ended:
            del group.gone_at_s[node]
        self._lose(set(chain.from_iterable(map(group.devices, ended))))

    def _lose(self, devices: set[int]) -> None:
        for claimant in list(self.pool.claimants.values()):
            if not claimant.held.isdisjoint(devices):
                claimant.lose(devices & claimant.held)


def _groups(cluster: ClusterSpec) -> list[NodeGroup]:
    groups, first = [], 0
    for entry in cluster.nodes:
        number = entry.count * entry.devices
        bits = ((1 << number) - 1) << first
        groups.append(NodeGroup(entry, first, entry.count, bits))
        first += number
    return groups


def _pool(cluster: ClusterSpec) -> SimulatedPool:
    """Return the devices of a cluster, with its classes and teams."""
    each = [(entry.kind, entry.count * entry.devices) for entry in cluster.nodes]
    names = tuple(chain.from_iterable([kind] * number for kind, number in each))
    own = [PriorityClass(name=one.name, value=one.value) for one in cluster.priority_classes]
    return SimulatedPool(
        cluster.devices,
        device_kinds=names if any(names) else (),
        classes=(*CLASSES, *own),
        teams=[team_of(entry) for entry in cluster.teams],
    )
