"""The lease of a place outlives the replicas of the job that holds it."""

from __future__ import annotations

import os
from pathlib import Path

from pliant.checkpoint.lease.holder import read_lease
from pliant.checkpoint.lease.job_lease import JobLease
from pliant.checkpoint.store.directory import LocalStorage


def lease_of(root: LocalStorage, job: str = "a") -> JobLease:
    return JobLease(root, job, pid=os.getpid())


def beats(root: LocalStorage) -> tuple[str, int]:
    found = read_lease(root)
    assert found is not None
    return found.holder, found.beat


def test_when_the_replica_that_beats_is_gone_another_one_beats(tmp_path: Path) -> None:
    root = LocalStorage(str(tmp_path))
    first, joiner = lease_of(root), lease_of(root)
    first.ensure()
    joiner.ensure()
    first.beat()  # learns that the joiner shows it now
    assert first.beat_every_s is not None

    joiner.beat()
    first.beat()
    of_the_joiner = beats(root)
    first.beat()  # silent since
    first.beat()

    assert of_the_joiner[1] == 1
    assert beats(root)[0] != of_the_joiner[0]
    assert beats(root)[1] == 1


def test_a_lease_of_another_job_is_not_beaten(tmp_path: Path) -> None:
    root = LocalStorage(str(tmp_path))
    ours, theirs = lease_of(root), lease_of(root, "b")
    ours.ensure()
    (tmp_path / "lease.json").unlink()
    theirs.ensure()
    before = beats(root)

    for _ in range(3):
        ours.beat()

    assert beats(root) == before
