"""When nobody new is needed, as somebody has done the last step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core.events import Finished
from pliant.core.job.controller import next_deadline_s
from pliant.core.job.lifecycle import hear_finished, hear_lacking
from pliant.core.job.state import Job, JobPhase, JobSettings, is_done, is_lacking
from pliant.core.job.transaction import Transaction, draft_of
from pliant.core.membership.state import NEVER, Membership
from pliant.core.membership.transitions import Phase
from pliant.core.values import NO_LINEAGE, Incarnation, Lineage, ReplicaId

TRAINING = Membership(
    incarnation=Incarnation(1), lineage=Lineage(2), committed=8, phase=Phase.STEADY
)
SETTINGS = JobSettings()
LATEST_S = SETTINGS.timeouts.step_s


def after(lineage: int, committed: int = 9) -> Job:
    """Return the job once somebody that it does not know has said Finished, at 0 s."""
    tx = Transaction(job=draft_of(Job(membership=TRAINING)), now_s=0.0, settings=SETTINGS)
    hear_finished(
        tx, Finished(replica=ReplicaId("r7"), committed=committed, lineage=Lineage(lineage))
    )
    return tx.job


def test_nobody_new_is_needed_once_anybody_has_done_the_last_step_of_this_history() -> None:
    assert is_done(after(2), LATEST_S - 1)


@pytest.mark.parametrize("lineage", [1, 3, NO_LINEAGE])
def test_the_end_of_another_history_or_of_one_script_alone_says_nothing(lineage: int) -> None:
    assert not is_done(after(lineage), 1.0)


def test_it_counts_for_no_longer_than_a_step_may_take_and_the_job_wakes_then() -> None:
    job = replace(after(2), phase=JobPhase.RUNNING)

    assert not is_done(job, LATEST_S)
    assert next_deadline_s(job) == LATEST_S
    assert next_deadline_s(replace(job, history=replace(job.history, seen_s=LATEST_S))) == NEVER


@pytest.mark.parametrize(
    "changes", [{"committed": 10}, {"lineage": Lineage(3)}, {"phase": Phase.LOST}]
)
def test_it_counts_no_more_once_somebody_went_on_or_the_state_is_lost(
    changes: dict[str, object],
) -> None:
    job = after(2)
    membership = replace(job.membership, **changes)  # type: ignore[arg-type]

    assert not is_done(replace(job, membership=membership), 1.0)


@pytest.mark.parametrize(
    ("said", "lacks"),
    [
        (["", "end"], False),  # the leader has come to its end
        (["end"], True),
        (["tail", "tail"], True),
        (["tail", "end"], False),  # one led the tail, late; another one leads since
        (["tail end", "end"], True),
    ],
)
def test_what_the_leader_alone_does_is_lacking_if_nobody_who_finished_led(
    said: list[str], lacks: bool
) -> None:
    """Seen: exit code 0, "finished 20 steps", and nothing saved."""
    tx = Transaction(job=draft_of(Job(membership=TRAINING)), now_s=0.0, settings=SETTINGS)
    for count, words in ((7, "tail end"), *((8, one) for one in said)):
        finished = Finished(
            replica=ReplicaId("r7"),
            committed=count,
            lacks_tail="tail" in words,
            lacks_end="end" in words,
        )
        hear_lacking(tx, finished)

    assert is_lacking(tx.job) == lacks
