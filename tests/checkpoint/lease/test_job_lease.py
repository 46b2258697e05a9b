"""The lease of a place outlives the replicas of the job that holds it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import pytest

from pliant.checkpoint.failures import LeaseHeldError
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


# --- while the register is gone ---------------------------------------------------------


@pytest.fixture(scope="module")
def another() -> Iterator[int]:
    """A process of the same machine that goes on with a copy of the run's directory."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n")


def test_any_replica_of_a_run_without_register_finds_the_lease_its_own(tmp_path: Path) -> None:
    root = LocalStorage(str(tmp_path))
    first, joiner = lease_of(root), lease_of(root)
    first.ensure()

    assert first.is_kept()
    assert joiner.is_kept()


class Histories:
    """One place: a run without its register, and what goes on with a copy of its directory."""

    def __init__(self, directory: Path, another: int) -> None:
        self.root = LocalStorage(str(directory))
        self.ours = lease_of(self.root)
        self.theirs = JobLease(self.root, "a", pid=another)
        self.published: list[tuple[int, int]] = [(1, 10)]  # lineage, committed
        self.is_allowed = False
        self.begun_from = (0, 0)
        self.ours.ensure()
        self.ours_then: list[Callable[[], object]] = [self.look, self.publish]
        self.theirs_then: list[Callable[[], object]] = [self.take, self.restore, self.save]

    def look(self) -> None:
        try:
            self.is_allowed = self.ours.is_kept()
        except LeaseHeldError:
            self.is_allowed = False

    def publish(self) -> None:
        if self.is_allowed:
            self.published.append((1, 20))

    def take(self) -> None:
        self.theirs.ensure()

    def restore(self) -> None:
        self.begun_from = max(self.published)

    def save(self) -> None:
        self.theirs.ensure()
        self.published.append((self.begun_from[0] + 1, self.begun_from[1] + 5))


@pytest.mark.parametrize("ours", list(combinations(range(5), 2)))
def test_no_order_lets_two_histories_count_where_the_register_is_gone(
    tmp_path: Path, another: int, ours: tuple[int, int]
) -> None:
    """All orders of two runs of one job, one of which has lost its register (R20)."""
    both = Histories(tmp_path, another)

    for turn in range(5):
        (both.ours_then if turn in ours else both.theirs_then).pop(0)()

    if ours[0] > both_taken(ours):
        assert (1, 20) not in both.published, "the lease was taken before the look"
    newest = max(both.published)
    assert newest[0] == 2, "whatever is published late is of an older history than the newest"
    assert len(set(both.published)) == len(both.published), "no name is published twice"


def both_taken(ours: tuple[int, int]) -> int:
    """Return at which turn the other takes the lease: its first."""
    return min(set(range(5)) - set(ours))
