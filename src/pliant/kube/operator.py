"""The operator's shell: watches, has each job planned, carries out what the plan says.

Owns the order (status first, then actions), who may write (the Lease), and when a job is looked at
again.  Decides nothing: an ``if`` about *whether* to ask, start or evict belongs in
``core.operator``.  Must not keep anything that a restart needs: it may be killed after any request.

    watches --> stores --heard--> queue --job--> Reader.snapshot --> plan(snapshot, now)
                  ^                  ^                                  |
                  +-- own writes ----+-- requeue_after, back-off -- status, actions, events
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import httpx

from pliant.core.errors import ConfigError
from pliant.core.operator.actions import (
    Action,
    ApplyPart,
    CreateAgent,
    CreateCoordinator,
    DeletePod,
    Event,
    Plan,
    TellLeave,
)
from pliant.core.operator.state import Part, Snapshot, coordinator_name
from pliant.kube import client
from pliant.kube.client import Api, ApiError, Call, Object, Resource
from pliant.kube.demand import Demands
from pliant.kube.job import JOB_LABEL, KubeJob, read_job
from pliant.kube.lease import Lease, LeaseLostError
from pliant.kube.metrics import OperatorMetrics
from pliant.kube.notices import Notices
from pliant.kube.queue import WorkQueue
from pliant.kube.reading import Reader, Stores
from pliant.kube.reflector import Reflector
from pliant.kube.status import read_status
from pliant.kube.store import Key, Store, by_owner, key_of
from pliant.kube.writing import APPLIED, Writer, is_done_by, part_bodies, write_status
from pliant.machine.event_loop import cancelled

logger = logging.getLogger(__name__)

WORKERS = 8
"""Jobs that are worked on at a time."""

PODS_AT_A_TIME = 16
"""Requests of one job that create or delete pods, at most, at a time."""

REFUSED = (httpx.codes.FORBIDDEN, httpx.codes.UNPROCESSABLE_ENTITY)
"""What a pod is refused with that a quota, pod security or its own template is against."""

REFUSED_S = 30.0
"""For so long a pod that the cluster refused is not tried again, and its reason is the status'."""

FOREIGN_S = 10.0
"""Until a name that somebody else has is looked at again; a job before may be about to go."""

QUOTA_S = 1.0
"""After a change of what is used of a quota: it changes with every pod."""

Decide = Callable[[Snapshot, float], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator is told."""

    image: str
    """Of the coordinators."""

    namespace: str
    """Its own, for its Lease."""

    identity: str
    """Of this process."""

    namespaces: tuple[str, ...] = ()
    """Whose jobs are its; empty: those of all."""


@dataclass(slots=True, kw_only=True)
class _Known:
    """What is kept of a job between two looks, and may be lost."""

    job: KubeJob
    generation: int
    parts: Mapping[Part, Object]
    foreign: dict[str, float] = field(default_factory=dict)
    """Names that somebody else has, and when that was seen."""

    refused: tuple[str, float] = ("", 0.0)
    """What the cluster said of a pod, and until when that counts."""


class Operator:
    """All jobs of some namespaces; ``run`` it once."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        *,
        decide: Decide,
        rng: random.Random | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """``decide``: ``core.operator.plan``; ``now_s``: seconds since 1970."""
        self._api, self._settings, self._decide, self._now_s = api, settings, decide, now_s
        self._rng = rng or random.Random()  # noqa: S311 - pauses
        self.queue: WorkQueue[Key] = WorkQueue(self._rng)
        self.stores = Stores()
        self.lease = Lease(
            api,
            name="pliant-operator",
            namespace=settings.namespace,
            identity=settings.identity,
            rng=self._rng,
        )
        self.metrics = OperatorMetrics(
            phases=self._phases, depth=lambda: len(self.queue), leads=lambda: self.lease.is_held
        )
        self._known: dict[Key, _Known] = {}
        self._reflectors = tuple(self._watches())
        self._demands = Demands(
            api, changed=lambda job: self.queue.add((job.namespace, job.name)), rng=self._rng
        )
        self._notices = Notices(self._send, identity=settings.identity)
        self._reader = Reader(stores=self.stores, has_kueue=self._has_kueue, image=settings.image)
        self._listen()

    # --- watching

    def _kinds(self) -> Iterable[tuple[Resource, Store, bool]]:
        """Yield what is watched; the last: only objects that have the label of a job."""
        stores = self.stores
        yield client.ELASTIC_JOBS, stores.jobs, False
        yield client.PODS, stores.pods, True
        for resource in client.PARTS:
            yield resource, stores.parts[resource.plural], True
        yield client.NODES, stores.nodes, False
        yield client.RESOURCE_QUOTAS, stores.quotas, False
        yield client.LIMIT_RANGES, stores.ranges, False
        yield client.WORKLOADS, stores.workloads, False  # those of others, too: they preempt
        yield client.LOCAL_QUEUES, stores.local_queues, False
        yield client.CLUSTER_QUEUES, stores.cluster_queues, False
        yield client.FLAVORS, stores.flavors, False
        yield client.WORKLOAD_CLASSES, stores.workload_classes, False

    def _watches(self) -> Iterable[Reflector]:
        for resource, store, is_ours in self._kinds():
            all_of_it: tuple[str | None, ...] = (None,)
            for namespace in (
                (self._settings.namespaces or all_of_it) if resource.is_namespaced else all_of_it
            ):
                yield Reflector(
                    self._api,
                    resource,
                    store,
                    namespace=namespace,
                    labels=JOB_LABEL if is_ours else "",
                    only_metadata=resource.plural in self.stores.parts,
                    rng=self._rng,
                    failed=lambda reason, plural=resource.plural: self._watch_failed(
                        plural, reason
                    ),  # type: ignore[misc]
                )

    def _watch_failed(self, plural: str, reason: str) -> None:
        self.metrics.watch_failures[plural, reason] += 1

    def _has_kueue(self) -> bool:
        return not any(
            one.is_absent for one in self._reflectors if one.resource is client.WORKLOADS
        )

    def problems(self) -> list[str]:
        """Name the kinds of which nothing is known yet, and why."""
        return [
            f"{one.resource.plural}: {one.problem}"
            for one in self._reflectors
            if not one.synced.is_set()
        ]

    def _listen(self) -> None:
        stores = self.stores
        stores.jobs.listen(self._job_changed)
        for store in (stores.pods, stores.workloads, *stores.parts.values()):
            store.listen(self._owned_changed)
        stores.nodes.listen(self._node_changed)
        for store in (stores.local_queues, stores.ranges, stores.quotas):
            store.listen(self._namespace_changed)
        for store in (stores.cluster_queues, stores.flavors, stores.workload_classes):
            store.listen(lambda old, new: self._all_changed(None, 0.0))

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        self.queue.add(key_of(new or old or {}))

    def _owned_changed(self, old: Object | None, new: Object | None) -> None:
        for body in (old, new):
            if body is not None and (job := body["metadata"].get("labels", {}).get(JOB_LABEL)):
                self.queue.add((body["metadata"].get("namespace", ""), job))

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        for pod in self.stores.pods.by("node", name):
            self._owned_changed(None, pod)

    def _namespace_changed(self, old: Object | None, new: Object | None) -> None:
        self._all_changed((new or old or {})["metadata"]["namespace"], QUOTA_S)

    def _all_changed(self, namespace: str | None, after_s: float) -> None:
        for body in self.stores.jobs:
            if namespace in (None, body["metadata"]["namespace"]):
                self.queue.add(key_of(body), after_s)

    # --- running

    async def run(self, stop: asyncio.Event) -> None:
        """Watch, and lead while nobody else does, until it is told to stop."""
        watches = [asyncio.create_task(one.run()) for one in self._reflectors]
        leading = asyncio.create_task(self._lead())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((*watches, leading, stopped), return_when=asyncio.FIRST_COMPLETED)
            for task in (*watches, leading):
                if task.done():
                    task.result()
        finally:
            await cancelled(leading, stopped, *watches)
            await self._demands.close()
            await self.lease.release()

    async def _lead(self) -> None:
        """Lead whenever the Lease is held; what is known is kept up to date meanwhile."""
        for one in self._reflectors:
            await one.synced.wait()
        while True:
            await self.lease.acquire()
            logger.info("%s leads", self._settings.identity)
            self._all_changed(None, 0.0)
            leading = (
                self.lease.keep(),
                self._demands.run(self._coordinators),
                *(self._work() for _ in range(WORKERS)),
            )
            tasks = [asyncio.create_task(one) for one in leading]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            except LeaseLostError as error:
                logger.warning("%s leads no more: %s", self._settings.identity, error)
            finally:
                await cancelled(*tasks)

    async def _work(self) -> None:
        while True:
            key = await self.queue.next_key()
            began_s = time.monotonic()
            try:
                await self._reconcile(key)
            except ApiError as error:
                self._failed(key, error)
            except LeaseLostError:
                self.queue.add(key)
                raise
            except Exception as error:  # of one job: the others go on
                logger.exception("%s/%s cannot be looked at", *key)
                self._failed(key, error)
            finally:
                self.queue.done(key)
                self.metrics.reconciled.note(time.monotonic() - began_s)

    def _failed(self, key: Key, error: Exception) -> None:
        is_conflict = isinstance(error, ApiError) and error.is_conflict
        self.metrics.results["conflict" if is_conflict else "error"] += 1
        after_s = getattr(error, "retry_after_s", None) or 0.0
        again_s = self.queue.failed(key, at_least_s=after_s)
        if not is_conflict:
            logger.warning("%s/%s: %s; again in %.1f s", *key, error, again_s)

    def _coordinators(self) -> list[tuple[KubeJob, Object]]:
        found = []
        for known in list(self._known.values()):
            pod = self._coordinator(known.job)
            if pod is not None and pod["status"].get("podIP"):
                found.append((known.job, pod))
        return found

    def _coordinator(self, job: KubeJob) -> Object | None:
        pod = self.stores.pods.get(coordinator_name(job.name), job.namespace)
        return pod if pod is not None and job.uid in by_owner(pod) else None

    # --- one job

    async def _reconcile(self, key: Key) -> None:
        body = self.stores.jobs.get(key[1], key[0])
        if body is None:
            if (known := self._known.pop(key, None)) is not None:
                self._demands.forget(known.job.uid)
            self.queue.forget(key)
            return
        now_s = self._now_s()
        try:
            known = self._read(key, body)
        except ConfigError as error:
            await self._say_invalid(body, error, now_s)
            return
        await self._demands.first_word(known.job, self._coordinator(known.job))
        began_s, body = time.monotonic(), self.stores.jobs.get(key[1], key[0]) or body
        snapshot = self._snapshot(known, body, now_s)
        plan = self._decide(snapshot, now_s)
        self.metrics.own.note(time.monotonic() - began_s)
        if plan.status != snapshot.status:
            answer = await self._send(write_status(body, plan.status))
            self.stores.jobs.changed(answer)
        problems = await self._carry_out(known, plan.actions, now_s)
        for event in (*plan.events, *(_of_problem(one) for one in problems)):
            await self._notices.say(body, event, now_s=now_s)
        if problems:
            raise next((one for one in problems if isinstance(one, ApiError)), problems[0])
        self.metrics.results["ok"] += 1
        self.queue.succeeded(key)
        if plan.requeue_after_s is not None:
            self.queue.add(key, plan.requeue_after_s)

    def _read(self, key: Key, body: Object) -> _Known:
        meta, known = body["metadata"], self._known.get(key)
        if known is not None and known.job.uid == meta["uid"]:
            if known.generation == meta["generation"]:
                return known
        elif known is not None:
            self._demands.forget(known.job.uid)
        job = read_job(body)
        parts = part_bodies(job, operator_namespace=self._settings.namespace)
        known = _Known(job=job, generation=meta["generation"], parts=parts)
        self._known[key] = known
        return known

    def _snapshot(self, known: _Known, body: Object, now_s: float) -> Snapshot:
        key = known.job.namespace, known.job.name
        for name, seen_s in list(known.foreign.items()):
            if now_s - seen_s >= FOREIGN_S:
                del known.foreign[name]
            else:
                self.queue.add(key, seen_s + FOREIGN_S - now_s)
        coordinator = self._demands.view(known.job, self._coordinator(known.job))
        snapshot = self._reader.snapshot(
            known.job,
            body,
            hashes={p: one["metadata"]["annotations"][APPLIED] for p, one in known.parts.items()},
            coordinator=coordinator,
            foreign=known.foreign,
        )
        reason, until_s = known.refused
        if now_s >= until_s:
            return snapshot
        self.queue.add(key, until_s - now_s)
        cluster = replace(
            snapshot.cluster, agent_room=0, coordinator_room=False, room_reason=reason
        )
        return replace(snapshot, cluster=cluster)

    async def _carry_out(
        self, known: _Known, actions: Iterable[Action], now_s: float
    ) -> list[ApiError | ConfigError]:
        """Carry out each, whatever becomes of the others; return what went wrong."""
        job, stores = known.job, self.stores
        writer = Writer(
            job=job,
            parts=known.parts,
            workloads=stores.workloads,
            flavors=stores.flavors,
            workload_classes=stores.workload_classes,
            image=self._settings.image,
        )
        problems: list[ApiError | ConfigError] = []

        async def carry_out(action: Action) -> None:
            try:
                call = writer.call(action, now_s=now_s)
                if call is not None:
                    await self._write(known, action, call, now_s)
                self.metrics.actions[type(action).__name__] += 1
            except (ApiError, ConfigError) as error:
                problems.append(error)

        for kind, same in itertools.groupby(actions, _together):
            group = list(same)
            for action in group:
                if isinstance(action, TellLeave):
                    self._demands.tell(job, self._coordinator(job), action)
            await _widening(
                (partial(carry_out, one) for one in group if not isinstance(one, TellLeave)),
                most=PODS_AT_A_TIME if kind in (CreateAgent, DeletePod) else 1,
                go_on=lambda: kind is not CreateAgent or known.refused[1] <= now_s,  # noqa: B023
            )
        return problems

    async def _write(self, known: _Known, action: Action, call: Call, now_s: float) -> None:
        store = self._store(call.plural)
        if call.method == "PATCH" and isinstance(action, ApplyPart):
            meta = call.body["metadata"]
            there = store.get(meta["name"], meta["namespace"])
            is_ours = there is not None and known.job.uid in by_owner(there)
            if not is_ours and not await self._is_free(known, call, store, now_s):
                return  # to apply would take over what somebody else has by that name
        try:
            answer = await self._send(call)
        except ApiError as error:
            if is_done_by(call, error):
                store.removed(_named(known.job, action))
            elif call.method == "POST" and error.is_conflict:
                if await self._is_free(known, call, store, now_s):
                    raise
            elif error.code in REFUSED and isinstance(action, CreateAgent | CreateCoordinator):
                known.refused = error.message, now_s + REFUSED_S
                raise
            else:
                raise
            return
        is_gone = "resourceVersion" not in answer.get("metadata", {})
        if answer.get("kind") == "Status" or is_gone:  # some kinds are shown as they were
            store.removed(_named(known.job, action))
        elif call.method != "DELETE" or "deletionTimestamp" in answer["metadata"]:
            store.changed(answer)

    async def _is_free(self, known: _Known, call: Call, store: Store, now_s: float) -> bool:
        """Whether a name is free; what is the job's by that name counts as made."""
        meta, resource = call.body["metadata"], client.resource_of(call.body)
        try:
            there = await self._api.ask(client.read(resource, meta["name"], meta["namespace"]))
        except ApiError as error:
            if error.is_gone:
                return True
            raise
        if known.job.uid in by_owner(there):
            store.changed(there)
        elif "deletionTimestamp" in there["metadata"]:
            return True  # soon: to create is refused until then
        else:
            known.foreign[f"{resource.kind}/{meta['name']}"] = now_s
            self.queue.add((known.job.namespace, known.job.name))
        return False

    def _store(self, plural: str) -> Store:
        of_pods = {"pods": self.stores.pods, "workloads": self.stores.workloads}
        return (of_pods | self.stores.parts)[plural]

    async def _send(self, call: Call) -> Object:
        """Send a write, if nobody else may lead by then."""
        left_s = self.lease.left_s()
        answer: Object = await self._api.ask(call, timeout_s=min(client.TIMEOUT_S, left_s))
        return answer

    async def _say_invalid(self, body: Object, error: ConfigError, now_s: float) -> None:
        """Write down why a job cannot run in a cluster; its objects are left as they are."""
        status = read_status(body.get("status"))
        now = replace(
            status,
            observed_generation=body["metadata"]["generation"],
            phase=status.phase or "Pending",
            reason=str(error),
        )
        if now != status:
            self.stores.jobs.changed(await self._send(write_status(body, now)))
            event = Event(reason="Invalid", note=str(error), is_warning=True)
            await self._notices.say(body, event, now_s=now_s)

    def _phases(self) -> Mapping[str, int]:
        return Counter(
            (body.get("status") or {}).get("phase", "Pending") for body in self.stores.jobs
        )


def _together(action: Action) -> type[Action]:
    """Return what actions have in common that may be carried out at the same time."""
    return DeletePod if isinstance(action, TellLeave) else type(action)


async def _widening(
    calls: Iterable[Callable[[], Awaitable[None]]], *, most: int, go_on: Callable[[], bool]
) -> None:
    """Await one, then twice as many at a time, up to ``most``, while ``go_on`` says so.

    A full quota is so met by a few requests, as in the controllers of Kubernetes.
    """
    width, left = 1, list(calls)
    while left and go_on():
        now, left = left[:width], left[width:]
        for answer in await asyncio.gather(*(call() for call in now), return_exceptions=True):
            if answer is not None:
                raise answer
        width = min(2 * width, most)


def _named(job: KubeJob, action: Action) -> Object:
    """Return what a deletion was of, as far as a store must know it."""
    meta = {"namespace": job.namespace}
    return {"metadata": meta | {key: getattr(action, key, "") for key in ("name", "uid")}}


def _of_problem(error: Exception) -> Event:
    reason = getattr(error, "reason", "") or "Failed"
    return Event(reason=f"Request{reason}", note=str(error), is_warning=True)
