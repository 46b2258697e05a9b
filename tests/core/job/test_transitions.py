"""The tables of phases and of replicas' states are complete, and all that they allow happens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.core.tables import entries, recorded
from tests.support.player import CoreAlone, play

from pliant.core.errors import TransitionError
from pliant.core.events import (
    Event,
    Exited,
    ExitKind,
    Finished,
    KillRequested,
    NodeJoined,
    Offered,
    Prepared,
    Progressed,
    Scaled,
    Spare,
    StopRequested,
    SuspendRequested,
    Switched,
    Ticked,
    Unrestorable,
)
from pliant.core.job import controller
from pliant.core.job.state import Job, JobPhase, JobSettings, Loss, Replica, ReplicaState
from pliant.core.job.transitions import (
    JOB_PHASES,
    REPLICAS,
    JobPhaseCause,
    ReplicaCause,
    phase_after,
)
from pliant.core.membership.state import NEVER, Timeouts
from pliant.core.membership.transitions import Phase
from pliant.core.policy.decide import Policy
from pliant.core.values import (
    CheckpointInfo,
    Generation,
    Lineage,
    NodeId,
    Order,
    ReplicaId,
    Restore,
    Seat,
)

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.txt"))
R1, R2, R3 = (ReplicaId(name) for name in ("r1", "r2", "r3"))
NODE = NodeId("n1")
SETTINGS = JobSettings(policy=Policy(max_replicas=3), restart_budget=1, timeouts=Timeouts())
LIVE = (ReplicaState.STARTING, ReplicaState.SPARE, ReplicaState.TRAINING, ReplicaState.LEAVING)
LATER_S = 20.0


def spare(name: ReplicaId, *, calls: int = 0, num_slots: int = 4) -> Spare:
    return Spare(replica=name, calls=calls, num_slots=num_slots, layout="", endpoint=f"{name}:1")


def fed(job: Job, *events: Event, now_s: float = 1.0) -> Job:
    for event in events:
        job, _ = controller.step(job, event, now_s=now_s, settings=SETTINGS)
    return job


def running() -> Job:
    """Return a job in which r1 and r2 train."""
    job, _ = controller.begin(now_s=0.0, settings=SETTINGS)
    job = fed(job, NodeJoined(node=NODE, devices=2), spare(R1), spare(R2))
    job = fed(job, *(Prepared(replica=r, generation=Generation(1)) for r in (R1, R2)))
    job = fed(job, *(Switched(replica=r, generation=Generation(1), step=0) for r in (R1, R2)))
    assert [replica.state for replica in job.replicas.values()] == [ReplicaState.TRAINING] * 2
    return job


def beside(state: ReplicaState) -> Job:
    """Return the same job with r3, no member, in any state."""
    due_s = LATER_S if state in (ReplicaState.STARTING, ReplicaState.LEAVING) else NEVER
    third = Replica(node=NODE, state=state, due_s=due_s)
    job = running()
    nodes, replicas = job.nodes.devices.put(NODE, 3), job.replicas.put(R3, third)
    return replace(job, named=3, nodes=replace(job.nodes, devices=nodes), replicas=replicas)


def every_end(state: ReplicaState) -> None:
    """Let a replica in any state end in every way that may come at any time."""
    fed(beside(state), KillRequested(replica=R3))
    fed(beside(state), Offered(replicas=3, leave=(R3,)))
    fed(beside(state), spare(R3, num_slots=8))
    fed(beside(state), Exited(replica=R3, kind=ExitKind.SIGNAL))
    fed(beside(state), *(Finished(replica=r, committed=1) for r in (R1, R2)))
    fed(beside(state), Ticked(), now_s=LATER_S)
    beat = Progressed(replica=R3, generation=Generation(0), committed=0, calls=0)
    heard = fed(beside(state), beat)
    for now_s in (LATER_S - 1, LATER_S + 1):  # in between, the job itself has slept
        heard = fed(heard, Ticked(), now_s=now_s)


def restoring(phase: JobPhase, *, other_calls: int | None) -> None:
    """Let the origin of a restore find its checkpoint damaged, with another one or none left."""
    job = running()
    restore = Restore(checkpoint="4/1", committed=4, lineage=Lineage(2))
    order = Order(
        generation=Generation(1),
        members=(Seat(replica=R1, endpoint="r1:1"), Seat(replica=R2, endpoint="r2:1")),
        origin=R1,
        restore=restore,
    )
    membership = replace(
        job.membership, orders=replace(job.membership.orders, recorded=order), restore=restore
    )
    saved = (
        ()
        if other_calls is None
        else (CheckpointInfo(name="2/1", committed=2, lineage=Lineage(1), calls=other_calls),)
    )
    damaged = Unrestorable(replica=R1, generation=Generation(1), checkpoint="4/1", reason="digest")
    fed(
        replace(
            job,
            phase=phase,
            membership=membership,
            checkpoints=replace(job.checkpoints, saved=saved, exist=True),
        ),
        damaged,
    )


def budget_spent(phase: JobPhase, *, is_saved: bool) -> None:
    """Let the losses be too many and the replicas too few."""
    few = replace(SETTINGS, policy=Policy(min_replicas=3))
    loss = Loss(at_s=1.0, kind=ExitKind.SIGNAL, sentence="r0 was killed")
    saved = (CheckpointInfo(name="9/1", committed=9, lineage=Lineage(1)),) if is_saved else ()
    known = running()
    job = replace(
        known,
        phase=phase,
        budget=replace(known.budget, losses=(loss, loss)),
        checkpoints=replace(known.checkpoints, exist=True, saved=saved),
    )
    if phase is JobPhase.STARTING:
        job = replace(job, membership=replace(job.membership, phase=Phase.LOST))
    controller.step(job, Ticked(), now_s=1.0, settings=few)


def refused(phase: JobPhase) -> None:
    """Let the first spare report fewer slots than the smallest size needs."""
    known = beside(ReplicaState.STARTING)
    job = replace(known, phase=phase, start=replace(known.start, reference=None))
    fed(job, spare(R3, num_slots=1))


def held(job: Job) -> Job:
    """Return a job whose members wait, too few to train."""
    order = job.membership.orders.recorded
    assert order is not None
    return replace(
        job,
        membership=replace(
            job.membership,
            orders=replace(job.membership.orders, recorded=replace(order, hold=True)),
        ),
    )


def rare_stages() -> None:
    """Bring a job to where neither the scenarios nor the rest of these get it."""
    stopping = fed(running(), StopRequested())
    assert stopping.phase is JobPhase.STOPPING
    fed(stopping, *(Exited(replica=r, kind=ExitKind.SIGNAL) for r in (R1, R2)))
    saved = (CheckpointInfo(name="9/1", committed=9, lineage=Lineage(1)),)
    known = held(stopping)
    fed(
        replace(known, checkpoints=replace(known.checkpoints, saved=saved, exist=True)),
        SuspendRequested(),
    )
    fed(replace(running(), phase=JobPhase.STARTING), StopRequested())
    for phase in (JobPhase.STARTING, JobPhase.RUNNING):
        budget_spent(phase, is_saved=True)
        budget_spent(phase, is_saved=False)
    for phase in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.STOPPING):
        restoring(phase, other_calls=None)
        restoring(phase, other_calls=1)
    for phase in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.STOPPING, JobPhase.FINISHING):
        refused(phase)


@pytest.mark.timeout(60)
def test_all_that_the_tables_allow_happens_and_nothing_else() -> None:
    with recorded() as used:
        for path in SCENARIOS:
            play(path.read_text(), CoreAlone)
        for state in LIVE:
            every_end(state)
        rare_stages()

    seen = {entry for entry in used if entry[0] in ("job", "replica")}
    assert seen == entries(JOB_PHASES) | entries(REPLICAS)


def test_every_cause_is_in_its_table() -> None:
    assert {cause for row in JOB_PHASES.rows.values() for cause in row} == set(JobPhaseCause)
    assert {cause for row in REPLICAS.rows.values() for cause in row} == set(ReplicaCause)


def test_a_job_that_has_ended_does_not_go_on() -> None:
    ended = fed(running(), *(Exited(replica=r, kind=ExitKind.USAGE) for r in (R1, R2)))
    assert ended.phase is JobPhase.ENDED

    with pytest.raises(TransitionError, match="first generation prepared, to be running, is not"):
        phase_after(ended, JobPhase.RUNNING, JobPhaseCause.PREPARED)


def test_a_report_tells_the_newest_events_but_no_heartbeats() -> None:
    job = running()
    for committed in range(100):
        beat = Progressed(replica=R1, generation=Generation(1), committed=committed, calls=0)
        job = fed(job, beat)
    gone = Replica(node=NODE, state=ReplicaState.GONE)
    job = replace(job, replicas=job.replicas.put(R3, gone))

    with pytest.raises(TransitionError) as raised:
        fed(job, KillRequested(replica=R3))

    told = str(raised.value)
    assert "kill requested, to be ending, is not legal in phase replica gone" in told
    assert told.endswith(f"; {KillRequested(replica=R3)}")
    assert "NodeJoined" in told
    assert "Switched(replica='r2'" in told
    assert "Progressed" not in told


def test_where_one_that_comes_is_refused_nothing_is_started_until_somebody_asks() -> None:
    """Seen: an edited module spent the whole restart budget in one second."""
    job = fed(running(), NodeJoined(node=NODE, devices=3))
    refused = Exited(replica=ReplicaId("r3"), kind=ExitKind.USAGE, detail="a.yaml changed")

    job, ready = controller.step(job, refused, now_s=2.0, settings=SETTINGS)

    assert ready.notes[-1] == (
        "node n1 starts nothing more until pliant scale N, as r3 was refused: a.yaml changed"
    )
    assert (list(job.replicas), job.budget.losses, set(job.nodes.held)) == ([R1, R2], (), {NODE})
    asked = fed(job, Scaled(target=3))
    assert (list(asked.replicas), set(asked.nodes.held)) == ([R1, R2, "r4"], set())
