"""What a coordinator that takes over waits for, and what it knows without having heard it."""

from __future__ import annotations

from dataclasses import replace

from pliant.core.commands import ListCheckpoints
from pliant.core.events import (
    Finished,
    NodeJoined,
    Prepared,
    PublishAsked,
    Registered,
    Spare,
    Switched,
    Ticked,
)
from pliant.core.job import controller, restoring
from pliant.core.job.state import Job, JobPhase, JobSettings, Replica, ReplicaState, is_durable
from pliant.core.table import Table
from pliant.core.values import (
    Generation,
    Incarnation,
    Lineage,
    NodeId,
    Order,
    Register,
    ReplicaId,
    Seat,
)

SETTINGS = JobSettings()
NODE = NodeId("n1")
R1 = ReplicaId("r1")


def taken_over() -> Job:
    """Return the job of a second coordinator, just begun: r1 trains and has said nothing yet."""
    job, ready = controller.begin(now_s=0.0, settings=SETTINGS)
    register: Register | None = ready.register
    for event in (
        NodeJoined(node=NODE, devices=1),
        Spare(replica=R1, calls=0, num_slots=8, layout="a", endpoint="r1:1"),
        Prepared(replica=R1, generation=Generation(1)),
        Switched(replica=R1, generation=Generation(1), step=0),
    ):
        job, ready = controller.step(job, event, now_s=1.0, settings=SETTINGS)
        register = ready.register or register
    second, _ = controller.begin(now_s=10.0, settings=SETTINGS, register=register)
    return controller.step(
        second, NodeJoined(node=NODE, devices=1, replicas=(R1,)), now_s=10.0, settings=SETTINGS
    )[0]


def ticked(job: Job, now_s: float) -> Job:
    return controller.step(job, Ticked(), now_s=now_s, settings=SETTINGS)[0]


def test_a_coordinator_that_slept_through_its_roll_call_goes_on_with_it() -> None:
    slept = ticked(taken_over(), 1000.0)

    assert slept.phase is JobPhase.RECOVERING
    assert R1 in slept.replicas
    assert slept.registration.by_s == 1000.0 + SETTINGS.timeouts.heartbeat_s / 5


def test_that_somebody_has_finished_is_recorded_before_all_have_registered() -> None:
    second = Incarnation(2)
    said = Registered(
        replica=R1,
        asked_by=second,
        lineage=Lineage(1),
        committed=9,
        calls=0,
        has_state=True,
        current=Generation(1),
        prepared=Generation(0),
        ordered=Generation(0),
        broken=False,
        leaving=False,
        finished=True,
        spare=None,
    )
    finished = Finished(replica=R1, committed=9, lineage=Lineage(1))
    job = taken_over()
    waiting = replace(
        job.membership, orders=replace(job.membership.orders, recorded=two_members(job))
    )
    job = replace(job, membership=waiting)

    before = replace(said, finished=False)
    registered, _ = controller.step(job, before, now_s=11.0, settings=SETTINGS)
    assert registered.ending.last_step is None
    for known, event in ((job, said), (registered, finished), (job, finished)):
        after, ready = controller.step(known, event, now_s=11.0, settings=SETTINGS)
        assert after.phase is JobPhase.RECOVERING
        assert ready.register is not None
        assert ready.register.last_step == (1, 9)


def two_members(job: Job) -> Order:
    """Return the recorded order with one more, who is not heard."""
    order = job.membership.orders.recorded
    assert order is not None
    other = Seat(replica=ReplicaId("r2"), endpoint="r2:1")
    return replace(order, members=(*order.members, other))


def test_what_was_said_before_a_look_is_no_answer_on_a_new_connection() -> None:
    job, r2 = taken_over(), ReplicaId("r2")
    job = replace(
        job,
        phase=JobPhase.RUNNING,
        checkpoints=replace(job.checkpoints, looking=frozenset({R1, r2}), outdated=frozenset({r2})),
    )

    again = NodeJoined(node=NODE, devices=1, replicas=(R1,))
    job, _ = controller.step(job, again, now_s=11.0, settings=SETTINGS)

    assert job.checkpoints.outdated == {R1, r2}
    assert job.checkpoints.looking == {R1, r2}


def test_who_passes_through_a_call_is_asked_again_what_it_sees() -> None:
    job, r2, r3 = taken_over(), ReplicaId("r2"), ReplicaId("r3")
    said = Spare(replica=r2, calls=0, num_slots=8, layout="a", endpoint="r2:1")
    waiting = Table({r2: said, r3: replace(said, replica=r3, calls=1)})
    known = {name: Replica(node=NODE, state=ReplicaState.SPARE) for name in (r2, r3)}
    job = replace(
        job,
        replicas=Table(known),
        checkpoints=replace(job.checkpoints, publishers=frozenset({R1})),
        membership=replace(job.membership, spares=waiting, calls=1),
    )

    found, commands = restoring.look_anew(job)

    assert commands == (ListCheckpoints(to=(r2, r3), number=1),)
    assert found.looking == {r2, r3}
    assert found.outdated == {r2}


def test_who_was_allowed_to_publish_may_have_left_a_checkpoint() -> None:
    job, _ = controller.begin(now_s=0.0, settings=SETTINGS)
    asks = PublishAsked(replica=R1, lineage=Lineage(1), committed=4, checkpoint="4/1")
    for event in (NodeJoined(node=NODE, devices=1), asks):
        job, _ = controller.step(job, event, now_s=0.0, settings=SETTINGS)

    assert is_durable(job)
    assert job.checkpoints.saved == ()
