"""A root belongs to one job at a time, whatever the clocks say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.faulty import FaultyStorage, Fuse, full

from pliant.checkpoint import lease as lease_module
from pliant.checkpoint.dcp.layout import LEASE
from pliant.checkpoint.failures import LeaseHeldError, StorageError, Trouble
from pliant.checkpoint.lease import JobLease, LeaseAction, LeaseRecord, decide, read_lease
from pliant.checkpoint.store.base import Storage
from pliant.checkpoint.store.directory import LocalStorage
from pliant.machine.processes import machine_id, process_lives, process_started

JOBS = st.sampled_from(["a", "b"])
RECORDS = st.builds(
    LeaseRecord,
    job=JOBS,
    holder=st.sampled_from(["x", "y"]),
    node=st.just("n1"),
    machine=st.just("m1"),
    pid=st.integers(1, 3),
    process_started=st.just("7"),
    beat=st.integers(0, 3),
    ttl_s=st.sampled_from([5.0, 60.0]),
)


class World:
    """A clock that only moves when somebody waits, and what happens meanwhile."""

    def __init__(self, *, machine: str = "here") -> None:
        self.now = 1000.0
        self.machine = machine
        self.meanwhile: list[Callable[[], object]] = []

    @contextmanager
    def around(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(lease_module, "monotonic", lambda: self.now)
            patched.setattr(lease_module, "_wait", self._wait)
            patched.setattr(lease_module, "process_lives", lambda _pid, _started: True)
            patched.setattr(lease_module, "machine_id", lambda: self.machine)
            yield

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()


def acquire(root: Storage, job: str, world: World | None = None) -> JobLease:
    lease = JobLease(root, job, ttl_s=60.0)
    with world.around() if world else nullcontext():
        lease.ensure()
    return lease


def holds(root: Storage, lease: JobLease) -> bool:
    found, mine = read_lease(root), lease._record
    return found is not None and mine is not None and found.holder == mine.holder


@pytest.fixture
def root(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


@given(
    st.none() | RECORDS,
    RECORDS,
    st.sampled_from([None, False, True]),
    st.floats(0, 200),
    st.booleans(),
)
def test_a_living_holder_of_another_job_is_never_displaced(
    found: LeaseRecord | None,
    me: LeaseRecord,
    is_alive: bool | None,
    still_for_s: float,
    has_beaten: bool,
) -> None:
    decided = decide(found, me, is_alive=is_alive, still_for_s=still_for_s, has_beaten=has_beaten)

    if found is None or found.job == me.job or is_alive is False:
        assert decided is LeaseAction.TAKE
    elif is_alive or has_beaten:
        assert decided is LeaseAction.REFUSE
    else:
        assert decided is (LeaseAction.TAKE if still_for_s >= found.ttl_s else LeaseAction.WATCH)


def test_a_holder_is_waited_for_as_long_as_its_own_lease_says() -> None:
    """One that beats slowly said so; that whoever waits is in more of a hurry does not end it."""
    slow = LeaseRecord(
        job="a", holder="x", node="n", machine="m", pid=1, process_started="7", ttl_s=60.0
    )
    hasty = replace(slow, job="b", holder="y", ttl_s=5.0)

    seen = [decide(slow, hasty, is_alive=None, still_for_s=s, has_beaten=False) for s in (10, 60)]

    assert seen == [LeaseAction.WATCH, LeaseAction.TAKE]


def test_a_free_root_is_taken_and_given_back(root: LocalStorage) -> None:
    lease = acquire(root, "gpt")

    lease.beat()
    found = read_lease(root)
    assert found is not None
    assert (found.job, found.pid, found.beat) == ("gpt", os.getpid(), 1)
    assert found.machine == machine_id()
    lease.release()
    assert root.entries() == []


def test_a_second_job_is_told_who_holds_it_and_what_to_do(root: LocalStorage) -> None:
    acquire(root, "gpt")

    with pytest.raises(LeaseHeldError) as caught:
        acquire(root, "other")

    said = str(caught.value)
    assert said.startswith(f"{root.place()} belongs to another job: job gpt (process {os.getpid()}")
    assert said.endswith(f"remove {root.place(LEASE)})")


def test_a_lease_that_was_removed_is_lost(root: LocalStorage) -> None:
    """A person said so: whoever takes the root next must find nobody else who writes to it."""
    lease = acquire(root, "gpt")
    root.remove(LEASE)

    lease.beat()

    assert root.entries() == []


def test_the_same_job_takes_over_at_once_and_the_old_holder_notices(root: LocalStorage) -> None:
    old = acquire(root, "gpt")

    new = acquire(root, "gpt")

    old.beat()
    old.release()
    assert holds(root, new)


@pytest.mark.processes
def test_the_lease_of_a_process_that_was_killed_is_taken_over_at_once(root: LocalStorage) -> None:
    code = (
        "import sys; from pliant.checkpoint.lease import JobLease;"
        "from pliant.checkpoint.store.directory import LocalStorage;"
        "JobLease(LocalStorage(sys.argv[1]), 'gpt').ensure();"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, root.place()],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LeaseHeldError, match=f"job gpt \\(process {holder.pid} on"):
            acquire(root, "other")
        holder.kill()

    assert holds(root, acquire(root, "other"))


def elsewhere(root: Storage) -> JobLease:
    return acquire(root, "gpt", World(machine="elsewhere"))


def test_a_silent_holder_elsewhere_is_waited_for_until_its_time_is_over(
    root: LocalStorage,
) -> None:
    elsewhere(root)
    world = World()

    lease = acquire(root, "other", world)

    assert holds(root, lease)
    assert 60 <= world.now - 1000.0 < 62


def test_a_holder_elsewhere_that_beats_is_not_displaced(root: LocalStorage) -> None:
    held = elsewhere(root)
    world = World()
    world.meanwhile += [lambda: None] * 40
    world.meanwhile.append(held.beat)

    with pytest.raises(LeaseHeldError, match="job gpt"):
        acquire(root, "other", world)

    assert 1000 + 40 <= world.now < 1000 + 60
    assert holds(root, held)


def test_no_wall_clock_is_ever_asked_so_none_can_jump(
    root: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jumped() -> float:
        raise AssertionError("the wall clock was asked")

    monkeypatch.setattr(time, "time", jumped)
    held = elsewhere(root)

    held.beat()
    other = acquire(root, "other", World())
    held.beat()

    assert holds(root, other)
    written = json.loads(root.read(LEASE))
    assert sorted(written) == [
        "beat", "holder", "job", "machine", "node", "pid", "process_started", "ttl_s"
    ]  # fmt: skip


@pytest.mark.timeout(60)
def test_of_many_that_race_at_most_one_holds_it(storage: Storage) -> None:
    start = threading.Barrier(4)
    held: list[JobLease] = []

    def candidate(number: int) -> None:
        start.wait(20)
        with suppress(LeaseHeldError):
            held.append(acquire(storage, f"job-{number}"))

    threads = [threading.Thread(target=candidate, args=(number,)) for number in range(4)]
    with World().around():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)

    assert sum(holds(storage, lease) for lease in held) == 1


class LetsTwoWin(LocalStorage):
    """An object store, whose conditional writes may not be relied on."""

    @property
    def has_one_winner(self) -> bool:
        return False


def test_replicas_that_start_together_do_not_take_the_lease_from_each_other(
    tmp_path: Path,
) -> None:
    """Four of them on S3 went on with it for minutes, and the job did not start."""
    root = LetsTwoWin(str(tmp_path))
    world, others = World(), []
    world.meanwhile.append(lambda: others.append(acquire(root, "a", World())))

    slower = acquire(root, "a", world)

    assert (holds(root, others[0]), holds(root, slower)) == (True, False)
    slower.beat()
    assert holds(root, others[0])


def test_a_storage_that_fails_for_a_moment_does_not_lose_the_lease(root: LocalStorage) -> None:
    fuse = Fuse(blows_at=2, error=full(root.place(LEASE)))
    faulty = FaultyStorage(root, fuse)
    lease = acquire(faulty, "gpt")
    lease.beat()

    with pytest.raises(StorageError):
        lease.beat()
    fuse.blows_at = 1 << 30

    lease.beat()
    assert holds(root, lease)


class Forgetful(FaultyStorage):
    """Does what it is asked, and then loses the connection before the answer."""

    loses_answers = False

    def exchange(self, path: str, data: bytes, *, expected: bytes) -> bool:
        done = super().exchange(path, data, expected=expected)
        if self.loses_answers:
            raise StorageError(self.place(path), Trouble.UNREACHABLE)
        return done


def test_a_beat_whose_answer_was_lost_does_not_lose_the_lease(root: LocalStorage) -> None:
    storage = Forgetful(root, Fuse())
    lease = acquire(storage, "gpt")
    storage.loses_answers = True
    with pytest.raises(StorageError):
        lease.beat()
    storage.loses_answers = False

    lease.beat()
    assert holds(root, lease)
    storage.loses_answers = True
    assert holds(root, acquire(storage, "gpt"))


def test_what_is_no_lease_is_taken_over(root: LocalStorage) -> None:
    root.write(LEASE, b"{torn")

    assert holds(root, acquire(root, "gpt"))


def test_a_process_is_known_by_its_start_not_its_id_alone() -> None:
    started = process_started(os.getpid())

    assert started is not None
    assert process_lives(os.getpid(), started)
    assert not process_lives(os.getpid(), "1")
    assert process_started(1 << 30) is None
    assert not process_lives(1 << 30, "")


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
