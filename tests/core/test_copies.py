"""A copy of a value has all its fields but those that are given, and is as frozen."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from pliant.core.copies import changed
from pliant.core.job.state import Job, JobSettings, Offer
from pliant.core.membership.state import Membership, Pulse
from pliant.core.values import Incarnation

MEMBERSHIP = Membership(incarnation=Incarnation(1))
JOB = Job(membership=MEMBERSHIP)


def test_a_copy_is_what_replace_makes() -> None:
    assert changed(MEMBERSHIP, stale=3) == replace(MEMBERSHIP, stale=3)
    assert changed(JOB, named=1, offer=Offer(replicas=2)) == replace(
        JOB, named=1, offer=Offer(replicas=2)
    )
    assert changed(JOB) == JOB
    assert JOB.named == 0
    with pytest.raises(FrozenInstanceError):
        changed(JOB).named = 1  # type: ignore[misc]


def test_only_fields_of_values_that_check_nothing_are_set() -> None:
    with pytest.raises(KeyError):
        changed(Pulse(silent_at_s=1.0), silent_s=2.0)
    with pytest.raises(TypeError):
        changed(JobSettings(), restart_budget=-1)
    with pytest.raises(TypeError):
        changed(3)
