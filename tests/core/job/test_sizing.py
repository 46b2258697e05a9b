"""What someone has set while the job ran outlives its coordinators, but not another wish."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.notation import parse

from pliant.core.events import NodeJoined, PolicySet, Prepared, Registered, Scaled, Spare
from pliant.core.job import controller
from pliant.core.job.node_pauses import found_apart
from pliant.core.job.sizing import view
from pliant.core.job.state import Job, JobSettings, Replica, ReplicaState, free_devices
from pliant.core.membership.state import Timeouts
from pliant.core.policy.decide import Policy
from pliant.core.table import Table
from pliant.core.values import Generation, Incarnation, Lineage, NodeId, Register, ReplicaId

GIVEN = JobSettings(policy=Policy(max_replicas=4))
SET = Policy(max_replicas=2, scaling_timeout_s=5)
NODE = NodeJoined(node=NodeId("n1"), devices=4)


def after_setting(*policies: Policy) -> Register:
    """Return the register of a job in which these were set, one after the other."""
    job, ready = controller.begin(now_s=0.0, settings=GIVEN)
    register = ready.register
    job, _ = controller.step(job, NODE, now_s=0.0, settings=GIVEN)
    for policy in policies:
        job, ready = controller.step(job, PolicySet(policy=policy), now_s=1.0, settings=GIVEN)
        register = ready.register
    assert register is not None
    return register


def registered(name: ReplicaId) -> Registered:
    return Registered(
        replica=name,
        asked_by=Incarnation(2),
        lineage=Lineage(1),
        committed=3,
        calls=0,
        has_state=True,
        current=Generation(1),
        prepared=Generation(0),
        ordered=Generation(0),
        broken=False,
        leaving=False,
        finished=False,
        spare=None,
    )


def begun(settings: JobSettings, register: Register) -> Job:
    return controller.begin(now_s=9.0, settings=settings, register=register)[0]


def test_it_is_recorded_with_what_it_took_the_place_of() -> None:
    register = after_setting(SET, Policy(max_replicas=3))

    assert register.policy == Policy(max_replicas=3)
    assert register.policy_given == GIVEN.policy


def test_the_next_coordinator_goes_on_with_it() -> None:
    job = begun(GIVEN, after_setting(SET))
    job, _ = controller.step(job, NODE, now_s=9.0, settings=GIVEN)

    assert job.sizing.policy == SET
    assert job.sizing.decision is not None
    assert job.sizing.decision.target_replicas == 2


def test_a_coordinator_that_was_given_another_policy_takes_that_one() -> None:
    other = JobSettings(policy=Policy(max_replicas=3))

    job = begun(other, after_setting(SET))

    assert (job.sizing.policy, job.sizing.policy_given) == (None, None)


def test_a_decision_that_waits_is_looked_at_when_it_says() -> None:
    patient = Timeouts(heartbeat_s=1e6, hang_s=1e6)
    settings = JobSettings(policy=Policy(scale_up_snooze_time_s=60), timeouts=patient)
    first, ready = controller.begin(now_s=0.0, settings=settings)
    assert ready.register is not None
    job, _ = controller.step(first, NODE, now_s=0.0, settings=settings)
    names = tuple(job.replicas)
    for name in names:
        spare = Spare(replica=name, calls=0, num_slots=8, layout="", endpoint="")
        job, _ = controller.step(job, spare, now_s=1.0, settings=settings)
    for name in names:
        event = Prepared(replica=name, generation=Generation(1))
        job, ready = controller.step(job, event, now_s=1.0, settings=settings)
    assert ready.register is not None

    job = begun(settings, ready.register)
    more = NodeJoined(node=NODE.node, devices=6, replicas=names)
    job, _ = controller.step(job, more, now_s=9.0, settings=settings)
    for name in names:
        job, _ = controller.step(job, registered(name), now_s=10.0, settings=settings)

    assert job.sizing.decision is not None
    assert (job.sizing.decision.target_replicas, job.sizing.decision.possible_replicas) == (4, 6)
    assert controller.next_deadline_s(job) == 69.0 == job.sizing.decision.earliest_s


def test_what_was_set_decides_which_wishes_are_possible() -> None:
    job = begun(GIVEN, after_setting(SET))
    job, _ = controller.step(job, NODE, now_s=9.0, settings=GIVEN)

    _, ready = controller.step(job, Scaled(target=3), now_s=9.0, settings=GIVEN)

    assert ready.declined is not None
    assert ready.declined.reason == "3 replicas would be above maxReplicas=2"


@pytest.mark.parametrize(("offered", "devices"), [(None, 3), (2, 2)])
def test_a_device_taken_back_where_nobody_is_reached_is_missed_once(
    offered: int | None, devices: int
) -> None:
    """The policy takes off what is taken back, and the outside has where it says what there is."""
    job = begun(GIVEN, after_setting(SET))
    one, two, three = (NodeId(f"n{number}") for number in (1, 2, 3))
    gone = Replica(node=two, state=ReplicaState.ENDING, is_reclaimed=True)
    job = replace(
        job,
        nodes=replace(
            job.nodes,
            devices=Table({one: 1, two: 1, three: 1}),
            apart=found_apart(Table(), [(one, two)], now_s=9.0),
        ),
        replicas=Table({ReplicaId("r1"): Replica(node=one), ReplicaId("r2"): gone}),
        offer=replace(job.offer, replicas=offered),
    )

    assert (view(job, GIVEN).devices, view(job, GIVEN).apart) == (devices, 3 - devices)


def test_a_node_with_fewer_devices_than_replicas_has_none_free() -> None:
    job, _ = controller.begin(now_s=0.0, settings=GIVEN)
    nodes = {NodeId("n1"): 1, NodeId("n2"): 2, NodeId("n3"): 1}
    homes = ["n1", "n1", "n2", "n3"]
    replicas = {
        ReplicaId(f"r{number}"): Replica(node=NodeId(home), started_at=0.0, due_s=9.0)
        for number, home in enumerate(homes, 1)
    }
    job = replace(job, nodes=replace(job.nodes, devices=Table(nodes)), replicas=Table(replicas))

    assert free_devices(job) == {NodeId("n2"): 1}


def test_of_a_node_that_is_silent_only_what_trains_there_is_room() -> None:
    one, two = NodeId("n1"), NodeId("n2")
    here = {"r1": Replica(node=one), "r2": Replica(node=two, state=ReplicaState.TRAINING)}
    here["r3"] = Replica(node=two)  # on its way there: nobody knows
    known = begun(GIVEN, after_setting(SET))
    job = replace(
        known,
        nodes=replace(known.nodes, devices=Table({one: 1, two: 3})),
        replicas=Table({ReplicaId(name): replica for name, replica in here.items()}),
    )
    silent = replace(job, nodes=replace(job.nodes, silent=frozenset({two})))

    assert (view(job, GIVEN).num_replicas, view(job, GIVEN).devices, view(job, GIVEN).silent) == (
        3,
        4,
        0,
    )
    seen = view(silent, GIVEN)
    assert (seen.num_replicas, seen.devices, seen.silent, seen.apart) == (2, 2, 2, 0)


NODE_LEAVES = """\
node n1 devices=2
node n2 devices=2
spare r1 r2 r3 r4
prepared 1 r1 r2 r3 r4
switched 1 r1 r2 r3 r4
node-leaving n1 notice_s=25
prepared 2 r1 r2 r3 r4
switched 2 r3 r4 step=5
exit r1 left
exit r2 left
node-lost n1 left=yes
"""


def test_each_of_those_that_leave_a_node_is_no_decision_of_its_own() -> None:
    job, _ = controller.begin(now_s=0.0, settings=GIVEN)
    told = []

    for line in NODE_LEAVES.splitlines():
        for event in parse(line.split()):
            job, ready = controller.step(job, event, now_s=1.0, settings=GIVEN)
            told += [ready.decision.reason] if ready.decision is not None else []

    assert told[-2:] == [
        "shrink from 4 to 2 replicas: 4 wanted, room for 2 after 2 reclaimed",
        "stay at 2 replicas: 4 wanted, room for 2",
    ]
    assert "stay at 4" in told[-3]


def test_for_whom_a_node_is_taken_is_said_also_if_its_agent_says_later_that_it_leaves() -> None:
    """Kubernetes: the operator says for whom, then the pod is told to end, which says no more."""
    told = NODE_LEAVES.replace("node-leaving n1", "node-leaving n1 reason=b/urgent")
    told = told.replace("prepared 2", "node-leaving n1 notice_s=5\nprepared 2", 1)
    job, _ = controller.begin(now_s=0.0, settings=GIVEN)
    reasons: list[str] = []
    why: set[tuple[str, float]] = set()

    for line in told.splitlines():
        for event in parse(line.split()):
            job, ready = controller.step(job, event, now_s=1.0, settings=GIVEN)
            reasons += [ready.decision.reason] if ready.decision is not None else []
            why |= {(one.reason, one.due_s) for one in job.replicas.values() if one.is_reclaimed}

    assert reasons[-2].endswith("room for 2 after 2 reclaimed (b/urgent)")
    assert ("node n1 leaves, b/urgent", 6.0) in why  # the shorter notice, that reason


INCREMENTS = """\
node n2 devices=1 labels=increment=x2
node n0 devices=1 labels=increment=base
node n1 devices=1 labels=increment=x1
spare r1 r2 r3
prepared 1 r1 r2 r3
switched 1 r1 r2 r3
"""


@pytest.mark.parametrize(("target", "leave"), [(2, ["r1"]), (1, ["r1", "r3"])])
def test_the_highest_increments_are_left_first_however_old_their_replicas(
    target: int, leave: list[str]
) -> None:
    """By age r3 would leave first, and the increment that is withdrawn would be the base."""
    job, _ = controller.begin(now_s=0.0, settings=GIVEN)
    for line in INCREMENTS.splitlines():
        for event in parse(line.split()):
            job, _ = controller.step(job, event, now_s=1.0, settings=GIVEN)

    job, _ = controller.step(job, Scaled(target=target), now_s=2.0, settings=GIVEN)

    gone = [name for name, one in job.replicas.items() if one.state is ReplicaState.LEAVING]
    assert sorted(gone) == leave
