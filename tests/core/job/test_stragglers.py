"""When those are looked at that are slow; what follows is in scenarios."""

from __future__ import annotations

from dataclasses import replace

from pliant.core.events import Progressed
from pliant.core.job.state import Job, JobPhase, JobSettings, Slow, Slowness
from pliant.core.job.stragglers import (
    AGAIN_S,
    hear_slowness,
    look_at_slow,
    slow_times,
    with_slowness,
)
from pliant.core.job.transaction import Transaction, draft_of
from pliant.core.membership.state import Membership
from pliant.core.policy.decide import Policy
from pliant.core.table import Table
from pliant.core.values import FIRST_LINEAGE, Generation, Incarnation, ReplicaId

SETTINGS = JobSettings(policy=Policy(replace_slow_after_s=100.0, spares=1), slow_s=60.0)
RUNNING = Job(
    membership=Membership(incarnation=Incarnation(1), lineage=FIRST_LINEAGE), phase=JobPhase.RUNNING
)
R1 = ReplicaId("r1")


def at(now_s: float, job: Job) -> Transaction:
    return Transaction(job=draft_of(job), now_s=now_s, settings=SETTINGS)


def test_the_job_wakes_when_people_are_to_hear_of_it() -> None:
    tx = at(10.0, RUNNING)

    hear_slowness(
        tx,
        Progressed(replica=R1, generation=Generation(1), committed=1, calls=0, slow=30),
    )

    assert tx.job.stragglers.look_s == 70.0


def test_one_that_cannot_be_replaced_yet_is_looked_at_again() -> None:
    told = Table({R1: Slow(tenths=30, since_s=10.0, is_told=True)})
    tx = at(110.0, replace(RUNNING, stragglers=replace(RUNNING.stragglers, slow=told)))

    hear_slowness(
        tx,
        Progressed(replica=R1, generation=Generation(1), committed=1, calls=0, slow=35),
    )

    assert tx.job.stragglers.look_s == 110.0 + AGAIN_S


def test_one_that_does_not_train_any_more_is_forgotten() -> None:
    known = Table({R1: Slow(tenths=30, since_s=10.0)})
    tx = at(20.0, replace(RUNNING, stragglers=replace(RUNNING.stragglers, slow=known)))

    look_at_slow(tx)

    assert dict(tx.job.stragglers.slow) == {}


R1, R2 = ReplicaId("r1"), ReplicaId("r2")
NOTHING: Slowness = Table()


def test_it_is_slow_since_it_said_so_first() -> None:
    known = with_slowness(with_slowness(NOTHING, R1, 20, 10.0), R1, 30, 50.0)

    assert (known[R1].tenths, known[R1].since_s) == (30, 10.0)
    assert with_slowness(known, R1, 30, 60.0) is known
    assert with_slowness(known, R1, 0, 70.0) == with_slowness(NOTHING, R2, 0, 70.0) == NOTHING


def test_people_hear_of_it_once_it_lasts() -> None:
    known = with_slowness(NOTHING, R1, 20, 10.0)

    assert slow_times(known, 70.0) == []
    told = Table({R1: replace(known[R1], is_told=True)})
    assert slow_times(told, 70.0) == [(R1, 2.0, 60.0)]
