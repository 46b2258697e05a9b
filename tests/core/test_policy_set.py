"""What someone has set while the job ran outlives its coordinators, but not another wish."""

from __future__ import annotations

from pliant.core import controller
from pliant.core.job import Job, Settings
from pliant.core.policy import ElasticPolicy
from pliant.core.vocabulary import NodeId, NodeJoined, PolicySet, Register, Scaled

GIVEN = Settings(policy=ElasticPolicy(max_replicas=4))
SET = ElasticPolicy(max_replicas=2, scaling_timeout_s=5)
NODE = NodeJoined(node=NodeId("n1"), devices=4)


def after_setting(*policies: ElasticPolicy) -> Register:
    """Return the register of a job in which these were set, one after the other."""
    job, ready = controller.begin(now_s=0.0, settings=GIVEN)
    register = ready.register
    job, _ = controller.step(job, NODE, now_s=0.0, settings=GIVEN)
    for policy in policies:
        job, ready = controller.step(job, PolicySet(policy=policy), now_s=1.0, settings=GIVEN)
        register = ready.register
    assert register is not None
    return register


def begun(settings: Settings, register: Register) -> Job:
    return controller.begin(now_s=9.0, settings=settings, register=register)[0]


def test_it_is_recorded_with_what_it_took_the_place_of() -> None:
    register = after_setting(SET, ElasticPolicy(max_replicas=3))

    assert register.policy == ElasticPolicy(max_replicas=3)
    assert register.policy_given == GIVEN.policy


def test_the_next_coordinator_goes_on_with_it() -> None:
    job = begun(GIVEN, after_setting(SET))
    job, _ = controller.step(job, NODE, now_s=9.0, settings=GIVEN)

    assert job.policy == SET
    assert job.decision is not None
    assert job.decision.target_replicas == 2


def test_a_coordinator_that_was_given_another_policy_takes_that_one() -> None:
    other = Settings(policy=ElasticPolicy(max_replicas=3))

    job = begun(other, after_setting(SET))

    assert (job.policy, job.policy_given) == (None, None)


def test_what_was_set_decides_which_wishes_are_possible() -> None:
    job = begun(GIVEN, after_setting(SET))
    job, _ = controller.step(job, NODE, now_s=9.0, settings=GIVEN)

    _, ready = controller.step(job, Scaled(target=3), now_s=9.0, settings=GIVEN)

    assert ready.declined is not None
    assert ready.declined.reason == "3 replicas would be above maxReplicas=2"
