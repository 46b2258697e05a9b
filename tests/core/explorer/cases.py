"""Where the explorer starts: a job of the real controller, and what may happen to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.core.explorer.checks import HANG_S, START_S
from tests.core.explorer.coordinator import hear
from tests.core.explorer.search import Report, explore, settle
from tests.core.explorer.universe import Answer, Universe
from tests.core.explorer.world import NO_FAULTS, Faults, Node, Violation, World

from pliant.core.events import Event, NodeJoined, PolicySet, Reclaimed
from pliant.core.job import controller
from pliant.core.job.recording import record
from pliant.core.job.state import Job, JobSettings
from pliant.core.membership.state import Timeouts
from pliant.core.policy.costs import Costs
from pliant.core.policy.decide import Policy
from pliant.core.policy.hysteresis import Pace
from pliant.core.values import CheckpointInfo, Lineage, Register

SLOW_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One start and its bounds."""

    members: int = 2
    """Replicas that train when the search begins; 0: it begins with nothing at all."""

    devices: int = 3
    """Of the first node."""

    others: tuple[int, ...] = ()
    """Devices of the other nodes."""

    spares: int = 0
    min_replicas: int = 1
    max_replicas: int = 3
    steps: int = 2
    call_ends: tuple[int, ...] = ()
    """Numbers of committed steps at which one ``steps()`` call ends and another begins."""

    wishes: tuple[Event, ...] = ()
    """What people ask for, in this order, each at any time."""

    faults: Faults = NO_FAULTS
    storage: tuple[tuple[int, int], ...] = ()
    """Checkpoints that are there before the job: committed steps and lineage."""

    saves: int = 0
    is_balanced: bool = False
    """Slots are divided by speed."""

    replaces_slow: bool = False
    """A spare takes the place of who is slow for long."""

    may_stop: bool = False
    is_eager: bool = True
    is_prompt: bool = False


def run(case: Case, *, max_states: int = 10**9) -> Report:
    """Search one case."""
    universe, start = prepare(case)
    return explore(universe, start, max_states=max_states)


def prepare(case: Case) -> tuple[Universe, World]:
    """Return the world in which the members of a case have just begun to train."""
    settings = JobSettings(
        policy=Policy(
            min_replicas=case.min_replicas,
            max_replicas=case.max_replicas,
            start_replicas=max(case.members, 1),
            spares=case.spares,
            replace_slow_after_s=2 * SLOW_S if case.replaces_slow else None,
        ),
        timeouts=Timeouts(hang_s=HANG_S),
        start_s=START_S,
        finish_s=100.0,
        restart_budget=20,
        slow_s=SLOW_S,
    )

    def decide(before: Job, event: Event, now_s: float) -> Answer:
        job, ready = controller.step(before, event, now_s=now_s, settings=settings)
        if ready.register is None and record(job) != record(before):
            raise Violation(f"what has changed is not written after {type(event).__name__}")
        return _without_counters(job), ready.register, ready.commands, ready.again

    def next_deadline(job: Job, now_s: float) -> float:
        return min(controller.next_deadline_s(job), now_s + 1000.0)

    def begin(register: Register | None, now_s: float) -> tuple[Job, Register]:
        job, ready = controller.begin(now_s=now_s, settings=settings, register=register)
        assert ready.register is not None
        return job, ready.register

    universe = Universe(
        decide=decide,
        begin=begin,
        next_deadline=next_deadline,
        steps=case.steps,
        num_slots=8 if case.is_balanced else 4,
        call_ends=case.call_ends,
        nodes=(case.devices, *case.others),
        min_replicas=min([case.min_replicas, *_set_minimums(case)]),
        max_replicas=case.max_replicas,
        reclaims=sum(len(w.replicas) for w in case.wishes if isinstance(w, Reclaimed)),
        is_durable=bool(case.saves or case.storage),
        is_balanced=case.is_balanced,
        may_stop=case.may_stop,
        is_eager=case.is_eager,
        is_prompt=case.is_prompt,
    )
    job, register = begin(None, 0.0)
    world = World(
        coordinator=universe.states.put(job),
        processes=(),
        faults=NO_FAULTS,
        wishes=(),
        register=universe.registers.put(register),
        nodes=tuple(Node() for _ in universe.nodes),
        storage=tuple(
            CheckpointInfo(
                name=f"{committed}/{lineage}", committed=committed, lineage=Lineage(lineage)
            )
            for committed, lineage in case.storage
        ),
    )
    for number, devices in enumerate(universe.nodes):
        joined = NodeJoined(node=universe.node_name(number), devices=devices)
        world = hear(universe, world, joined, number)
    if case.members:
        world = settle(universe, world)
    wishes = tuple(universe.events.put(wish) for wish in case.wishes)
    return universe, world._replace(faults=case.faults, wishes=wishes, saves=case.saves)


def _set_minimums(case: Case) -> list[int]:
    return [wish.policy.min_replicas for wish in case.wishes if isinstance(wish, PolicySet)]


def _without_counters(job: Job) -> Job:
    """Forget what nothing depends on, so that equal futures are equal states."""
    membership = replace(job.membership, stale=0)
    return replace(
        job,
        history=replace(job.history, stale=0),
        membership=membership,
        sizing=replace(job.sizing, pace=Pace(), costs=Costs()),
    )
