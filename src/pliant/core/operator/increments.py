"""Which increments a job holds, asks for and gives back.

Owns the sizes that increments lead to, and the waits between asks.  At most one ask is open at a
time; the lowest increment that is missing is asked for first, and what is too much is given back
from above.  Must not know how sizes are chosen: the coordinator makes of what is held what it can.

    missing --ask--> ASKED --admitted, or all its pods have nodes--> GIVEN
       ^               |                                               |
       |          timed out, or not of use any more         evicted, or the same
       |               v                                               v
       +-- wait ------ TAKEN: its pods leave, then its Workload is deleted

Without Kueue an increment is an entry of the memory and its pods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from pliant.core.operator.actions import CreateWorkload, DeleteWorkload
from pliant.core.operator.draft import PlanDraft
from pliant.core.operator.state import (
    BASE,
    Ask,
    Eviction,
    PodView,
    WorkloadView,
    increment_name,
    increment_number,
    workload_name,
)
from pliant.core.policy import hysteresis
from pliant.core.policy.fields import Policy, PolicyBackoff
from pliant.core.text import counted

GRAIN = 16
"""An increment is a sixteenth of the job at most, or one allowed size: a job of 1,000 replicas
takes some 80 of them, and a small one gives back exactly what is asked for."""

ASK_BACKOFF = PolicyBackoff(initial_s=5.0, factor=2.0, max_s=300.0, reset_after_s=1800.0)
"""Before an increment is asked for again, where the policy has no ``backoff`` of its own."""

ROW_S = 60.0
"""Losses that follow each other so soon are one."""

SURPLUS_S = 10.0
"""How long a job must have more than it can use before any is given back: a coordinator that was
started anew learns step by step what it can use."""

PREEMPTED = "PreemptionByScheduler"


class IncrementState(StrEnum):
    """Whose the capacity of an increment is."""

    ASKED = "asked"
    GIVEN = "given"
    TAKEN = "taken"
    """It leaves: evicted, or given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """The base or an increment, as far as there is one."""

    number: int
    count: int
    """Agent pods."""

    state: IncrementState
    why: str = ""
    """Why it is taken."""

    workload: WorkloadView | None = None
    """None: without Kueue."""

    @property
    def name(self) -> str:
        """``base``, ``x1``, ..."""
        return increment_name(self.number)


Held = dict[int, Increment]
"""Base and increments by number."""


@lru_cache(maxsize=256)
def ladder(policy: Policy) -> tuple[int, ...]:
    """Return the size of the base, and those that one increment after the other leads to.

    The last one leads to the spares, where the policy has some.

    >>> ladder(Policy(min_replicas=2, max_replicas=5))
    (2, 3, 4, 5)
    """
    sizes = policy.sizes(policy.max_replicas or policy.min_replicas)
    rungs = [sizes[0]]
    for size in sizes[1:]:
        if size >= rungs[-1] + rungs[-1] // GRAIN or size == sizes[-1]:
            rungs.append(size)
    if policy.spares:
        rungs.append(rungs[-1] + policy.spares)
    return tuple(rungs)


def count_of(draft: PlanDraft, number: int) -> int | None:
    """Return how many agent pods an increment has; None: the policy has no such increment."""
    rungs = ladder(draft.job.policy)
    if number >= len(rungs):
        return None
    lower = rungs[number - 1] if number else 0
    return (rungs[number] - lower) * draft.job.hosts_per_replica


# --- what is held


def held_by(draft: PlanDraft) -> Held:
    """Return base and increments as they are."""
    if not draft.is_queued:
        return _held_by_pods(draft)
    views = draft.snapshot.workloads
    alive = {view.uid for view in views}
    draft.remember(returning=tuple(uid for uid in draft.memory.returning if uid in alive))
    found = [_of_workload(view, draft) for view in views]
    return {increment.number: increment for increment in found}


def _of_workload(view: WorkloadView, draft: PlanDraft) -> Increment:
    state, why = IncrementState.ASKED, ""
    if view.is_deleting or view.is_finished:
        state, why = IncrementState.TAKEN, "its Workload was ended by somebody else"
    elif view.uid in draft.memory.returning:
        state, why = IncrementState.TAKEN, draft.memory.lost_reason
    elif view.eviction is not None and (view.has_quota or view.increment != BASE):
        state, why = IncrementState.TAKEN, reason_of(view.eviction)
    elif view.is_admitted:
        state = IncrementState.GIVEN
    number = increment_number(view.increment)
    return Increment(number=number, count=view.count, state=state, why=why, workload=view)


def reason_of(eviction: Eviction) -> str:
    """Say why Kueue takes something back."""
    if eviction.by:
        return f"preempted by {eviction.by}"
    return f"evicted by Kueue ({eviction.reason}): {eviction.message}".rstrip(": ")


def _held_by_pods(draft: PlanDraft) -> Held:
    """Return what is held without Kueue; what was taken is forgotten at once."""
    base = Increment(number=0, count=count_of(draft, 0) or 0, state=IncrementState.GIVEN)
    held, agents = {0: base}, draft.agents
    for ask in draft.memory.asks:
        number, pods = increment_number(ask.increment), agents.get(ask.increment, [])
        is_held = ask.is_held or sum(bool(pod.node) for pod in pods) >= ask.count
        state = IncrementState.GIVEN if is_held else IncrementState.ASKED
        held[number] = Increment(number=number, count=ask.count, state=state)
        if any(pod.disruption == PREEMPTED for pod in pods):
            why = "preempted by the scheduler for pods of a higher priority"
            held[number] = _taken(draft, held[number], why)
        elif is_held != ask.is_held:
            now = replace(ask, is_held=True)
            asks = draft.memory.asks
            draft.remember(asks=tuple(now if one == ask else one for one in asks))
    return held


# --- what is given back


def give_back(draft: PlanDraft, held: Held) -> Held:
    """Take from what is held whatever is of no use, or finds no nodes: whole increments."""
    agents, found = draft.agents, dict(held)
    for number, increment in sorted(held.items(), reverse=True):
        if not number or increment.state is IncrementState.TAKEN:
            continue
        if increment.count != count_of(draft, number):
            found[number] = _taken(draft, increment, "the sizes of the policy are others now")
        elif why := _too_late(draft, increment, agents.get(increment.name, [])):
            found[number] = _taken(draft, increment, why)
    wanted = wanted_increments(draft)
    surplus = (
        ()
        if wanted is None
        else [
            number
            for number, one in sorted(found.items(), reverse=True)
            if number and number not in wanted and one.state is not IncrementState.TAKEN
        ]
    )
    if not surplus:
        draft.remember(surplus_since_s=None)
        return found
    if draft.memory.surplus_since_s is None:
        draft.remember(surplus_since_s=draft.now_s)
    if draft.is_due((draft.memory.surplus_since_s or draft.now_s) + SURPLUS_S):
        why = f"the job can use {counted(wanted_replicas(draft) or 0, 'replica')}"
        found |= {number: _taken(draft, found[number], why) for number in surplus}
        draft.remember(surplus_since_s=None)
    return found


def _taken(draft: PlanDraft, increment: Increment, why: str) -> Increment:
    if increment.workload is None:
        lose(draft, increment.name, why)
    else:
        uids = (*draft.memory.returning, increment.workload.uid)
        draft.remember(returning=uids, lost_reason=why)
        draft.tell("IncrementReturned", f"{increment.name} is given back: {why}")
    return replace(increment, state=IncrementState.TAKEN, why=why)


def _too_late(draft: PlanDraft, increment: Increment, pods: list[PodView]) -> str:
    """Say that pods have waited for nodes for too long, so that none is bought for nothing."""
    since = [pod.created_s for pod in pods if not pod.node and not pod.is_deleting]
    asks = [ask for ask in draft.memory.asks if ask.increment == increment.name]
    since += [ask.asked_s for ask in asks if not ask.is_held]
    limit_s = max(draft.job.ask_timeout_s, draft.job.policy.faulty_scale_down_timeout_s)
    if not since or not draft.is_due(min(since) + limit_s):
        return ""
    message = next((f": {pod.unschedulable}" for pod in pods if pod.unschedulable), "")
    return f"its pods found no node within {limit_s:g} s{message}"


def lose(draft: PlanDraft, name: str, why: str) -> None:
    """Take note that an increment is gone: the next ask waits."""
    memory = draft.memory
    draft.remember(asks=tuple(ask for ask in memory.asks if ask.increment != name))
    draft.tell("IncrementGone", f"{name} is gone: {why}")
    if memory.is_resting and draft.now_s - memory.lost_s[-1] < ROW_S:
        return
    pace = hysteresis.changed(_pace(draft), _paced(draft.job.policy), draft.now_s)
    draft.remember(
        lost_s=pace.changed_at, lost_level=pace.backoff_level, is_resting=True, lost_reason=why
    )


def release(draft: PlanDraft, held: Held) -> None:
    """Let the pods of what was taken leave, then delete its Workload.

    So does whoever is left of an increment that is the job's no more, or not admitted any more.
    """
    agents = draft.agents
    may_stay = {IncrementState.GIVEN} | (set() if draft.is_queued else {IncrementState.ASKED})
    names = {one.name for one in held.values() if one.state in may_stay}
    whys = {one.name: one.why for one in held.values()}
    for name, pods in agents.items():
        if name not in names:
            draft.dismiss(pods, whys.get(name) or draft.memory.lost_reason or "taken back")
    for increment in held.values():
        is_empty = all(pod.is_over for pod in agents.get(increment.name, []))
        view = increment.workload
        if increment.state is not IncrementState.TAKEN or view is None or not is_empty:
            continue
        if increment.number and not view.is_deleting:
            lose(draft, increment.name, increment.why)
        if not view.is_deleting:
            draft.act(DeleteWorkload(name=view.name, uid=view.uid))


# --- what is asked for


def wanted_replicas(draft: PlanDraft) -> int | None:
    """Return what the job could use, without spares; None: its coordinator has not said so."""
    demand, policy = draft.snapshot.coordinator.demand, draft.job.policy
    if demand is None:
        return None
    bounds = [demand.useful - policy.spares, policy.max_replicas, draft.job.replicas]
    least = min(bound for bound in bounds if bound is not None)
    return max(policy.min_replicas, least)


def wanted_increments(draft: PlanDraft) -> frozenset[int] | None:
    """Return the increments that are of use; None: not known."""
    wanted, rungs = wanted_replicas(draft), ladder(draft.job.policy)
    if wanted is None:
        return None
    top = len(rungs) - 1
    spares = frozenset({top} if draft.job.policy.spares else ())
    sizes = rungs[: top + 1 - len(spares)]
    return spares | frozenset(at for at, size in enumerate(sizes) if at and size <= wanted)


def ask(draft: PlanDraft, held: Held) -> None:
    """Ask for the next increment if one is of use and nothing speaks against it."""
    wanted = wanted_increments(draft)
    missing = sorted((wanted or frozenset()) - held.keys())
    if not missing:
        asked = (one for one in held.values() if one.state is IncrementState.ASKED)
        draft.holds.extend(map(_pending, asked))
        return
    number, count = missing[0], count_of(draft, missing[0]) or 0
    if hold := _hold(draft, held, count):
        draft.holds.append(hold)
        return
    name = increment_name(number)
    if draft.is_foreign("Workload", workload_name(draft.job.name, name)):
        return
    if draft.is_queued:
        draft.act(CreateWorkload(increment=name, count=count))
    else:
        new = Ask(increment=name, count=count, asked_s=draft.now_s)
        draft.remember(asks=(*draft.memory.asks, new))
        draft.wakes.append(draft.now_s)
    draft.remember(is_resting=False)
    pods = counted(count, "pod")
    draft.tell("IncrementAsked", f"asks for {name}, {pods}")


def _hold(draft: PlanDraft, held: Held, count: int) -> str:
    """Say what the next ask waits for; nothing if it does not."""
    if not draft.may_create:
        return "parts of the job are missing"
    agents = draft.agents
    for number, increment in sorted(held.items()):
        name, pods = increment.name, agents.get(increment.name, [])
        if increment.state is IncrementState.ASKED:
            return _pending(increment)
        if increment.state is IncrementState.TAKEN:
            return f"{name} leaves: {increment.why}"
        if any(not pod.node and not pod.is_deleting for pod in pods):
            return f"pods of {name} wait for nodes"
        if number == 0 and len(pods) < increment.count:
            return "the base is not complete"
    if agents.keys() - {increment.name for increment in held.values()}:
        return "pods of an increment that was taken have not left"
    if not draft.snapshot.coordinator.is_reached:
        return "the coordinator is not reached"
    if draft.room is not None and draft.room < count:
        return draft.snapshot.cluster.room_reason or "a quota of the namespace is exhausted"
    for wait in hysteresis.rest(_pace(draft), _paced(draft.job.policy)):
        if not draft.is_due(wait.until_s):
            return f"the next ask waits: {wait.why}"
    return ""


def _pending(increment: Increment) -> str:
    """Say what an ask waits for."""
    view = increment.workload
    if view is None:
        return f"{increment.name} waits for nodes"
    return f"{increment.name} waits for admission: {view.pending_message}".rstrip(": ")


def _paced(policy: Policy) -> Policy:
    return replace(policy, backoff=policy.backoff or ASK_BACKOFF)


def _pace(draft: PlanDraft) -> hysteresis.Pace:
    return hysteresis.Pace(changed_at=draft.memory.lost_s, backoff_level=draft.memory.lost_level)


# --- sums


def replicas_in(draft: PlanDraft, held: Held) -> int:
    """Return how many replicas are given, and not taken back."""
    given = sum(one.count for one in held.values() if one.state is IncrementState.GIVEN)
    return given // draft.job.hosts_per_replica


def is_ready(draft: PlanDraft, increment: Increment) -> bool:
    """Whether all pods of an increment are ready, and stay."""
    found = draft.agents.get(increment.name, [])
    return sum(pod.is_ready and not pod.is_deleting for pod in found) >= increment.count
