"""What the controller says at a job's beginning, after its end and when it wakes."""

from __future__ import annotations

from dataclasses import replace

from pliant.core.commands import (
    EndJob,
    Prepare,
    Release,
    StartReplica,
    Switch,
)
from pliant.core.events import (
    Exited,
    ExitKind,
    NodeJoined,
    Prepared,
    Scaled,
    Spare,
    StopRequested,
    Ticked,
)
from pliant.core.job import controller
from pliant.core.job.state import Job, JobPhase, JobSettings
from pliant.core.membership.state import Timeouts
from pliant.core.policy.decide import Policy
from pliant.core.values import (
    Generation,
    NodeId,
    Order,
    ReplicaId,
    Seat,
)

SETTINGS = JobSettings(
    policy=Policy(min_replicas=2, start_replicas=2),
    timeouts=Timeouts(prepare_s=20, step_s=60, reform_s=30, switch_s=20, heartbeat_s=10),
    start_s=60,
)


def test_a_job_that_has_ended_declines_requests_and_ignores_the_rest() -> None:
    job, _ = controller.begin(now_s=0.0, settings=SETTINGS)
    job, ready = controller.step(job, StopRequested(), now_s=0.0, settings=SETTINGS)
    assert ready.commands == (EndJob(exit_code=3, reason="stopped on request"),)

    job, ready = controller.step(job, Scaled(target=3), now_s=1.0, settings=SETTINGS)
    assert ready.declined is not None
    late = Exited(replica=ReplicaId("r1"), kind=ExitKind.SIGNAL)
    _, ready = controller.step(job, late, now_s=1.0, settings=SETTINGS)

    assert (ready.commands, ready.declined) == ((), None)


def test_a_stopped_job_goes_on_if_somebody_asks_for_it_and_else_ends_as_it_did() -> None:
    job, _ = controller.begin(now_s=0.0, settings=SETTINGS)
    _, ready = controller.step(job, StopRequested(), now_s=0.0, settings=SETTINGS)
    assert ready.register is not None
    assert ready.register.outcome is not None
    node = NodeJoined(node=NodeId("n1"), devices=1)

    asked, begun = controller.begin(
        now_s=1.0, settings=SETTINGS, register=ready.register, is_asked=True
    )
    follower, _ = controller.begin(now_s=1.0, settings=SETTINGS, register=ready.register)

    assert begun.register is not None
    assert begun.register.outcome is None
    _, ready = controller.step(asked, node, now_s=1.0, settings=SETTINGS)
    assert [type(command) for command in ready.commands] == [StartReplica]
    _, ready = controller.step(follower, node, now_s=1.0, settings=SETTINGS)
    assert ready.commands == (EndJob(exit_code=3, reason="stopped on request"),)


def test_a_new_coordinator_wakes_when_those_it_waits_for_are_late() -> None:
    """Nobody may be left to say anything: time alone must go on."""
    job, ready = controller.begin(now_s=0.0, settings=SETTINGS)
    assert ready.register is not None
    seat = Seat(replica=ReplicaId("r1"), endpoint="r1:1")
    register = replace(
        ready.register,
        number=Generation(1),
        newest=Order(generation=Generation(1), members=(seat,), origin=ReplicaId("r1")),
        named=1,
        homes=((ReplicaId("r1"), NodeId("n1")),),
    )

    job, _ = controller.begin(now_s=100.0, settings=SETTINGS, register=register)

    due_s = controller.next_deadline_s(job)
    assert due_s == 100.0 + SETTINGS.timeouts.register_s
    while due_s < 100.0 + 2 * SETTINGS.timeouts.register_s:  # it allows for its own silence
        job, _ = controller.step(job, Ticked(), now_s=due_s, settings=SETTINGS)
        due_s = controller.next_deadline_s(job)
    assert job.phase is JobPhase.STARTING


def test_hundreds_of_replicas_do_not_slow_an_event_down() -> None:
    roomy = JobSettings(policy=Policy(max_replicas=300))
    job: Job
    job, _ = controller.begin(now_s=0.0, settings=roomy)
    node = NodeJoined(node=NodeId("n1"), devices=300)
    job, ready = controller.step(job, node, now_s=0.0, settings=roomy)
    names = [c.replica for c in ready.commands if isinstance(c, StartReplica)]
    assert len(names) == 300
    for name in names:
        event = Spare(replica=name, calls=0, num_slots=300, layout="", endpoint="")
        job, ready = controller.step(job, event, now_s=1.0, settings=roomy)
    assert isinstance(ready.commands[-1], Prepare)

    for name in names:
        event_ = Prepared(replica=name, generation=Generation(1))
        job, ready = controller.step(job, event_, now_s=1.0, settings=roomy)

    assert isinstance(ready.commands[-1], Switch)
    assert not any(isinstance(c, Release) for c in ready.commands)
