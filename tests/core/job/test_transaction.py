"""A transaction changes a draft of its own; what it returns cannot be changed any more."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from pliant.core.job.state import Job, JobPhase
from pliant.core.job.transaction import JobDraft, draft_of, frozen
from pliant.core.membership.state import Membership
from pliant.core.values import Incarnation

JOB = Job(membership=Membership(incarnation=Incarnation(1)))


def test_a_draft_has_the_fields_of_a_job() -> None:
    assert list(JobDraft.__annotations__) == [one.name for one in fields(Job)]


def test_a_draft_can_be_changed_until_it_is_frozen() -> None:
    draft = draft_of(JOB)
    draft.named = 3

    job = frozen(draft)

    assert (job.named, JOB.named) == (3, 0)
    assert type(job) is Job
    with pytest.raises(FrozenInstanceError):
        job.phase = JobPhase.ENDED  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        draft.named = 4
