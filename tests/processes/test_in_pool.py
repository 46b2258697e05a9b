"""Jobs in a pool: real processes, real locks, and a pool that offers what the test says."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.processes import elastic, launching
from tests.processes.elastic import DEADLINE_S, Outcome, wait_for_members
from tests.processes.launching import FAKE_WORKER, RunningJob
from tests.processes.pooling import FakePool, fake_pool

from pliant.machine import device_locks as locks
from pliant.machine.files import make_private_directory
from pliant.observe.audit import audit_run

running = partial(launching.running, forked=True)
"""A job and its fork server need no interpreter of their own here."""

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

HERE = {"name": "default"}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[FakePool]:
    with fake_pool(tmp_path) as pool:
        yield pool


@contextmanager
def counting(directory: Path, steps: int = 100_000, **options: Any) -> Iterator[RunningJob]:
    """Run a job of workers without torch; at the end none of its locks may be taken."""
    options = {"replicas": 4, "pool": HERE, **options}
    with running(directory, FAKE_WORKER, steps, 0.01, **options) as job:
        yield job


@contextmanager
def training(directory: Path, steps: int, **options: Any) -> Iterator[RunningJob]:
    """Run a job that trains, and keeps checkpoints; it also ends when ``over`` is there."""
    words: list[object] = [elastic.SCRIPT, "--model", "gpt", "--steps", steps, "--pace", 0.02]
    words += ["--digest-file", directory / "digests", "--tails-file", directory / "tails"]
    words += ["--checkpoint", directory / "kept", "--every", "20steps"]
    words += ["--until", directory / "over"]
    options = {"replicas": 4, "pool": HERE, "warm": True, **options}
    with running(directory, *words, **options) as job:
        yield job


def check(job: RunningJob, steps: int) -> None:
    """Assert the digest of an untouched run; one that was suspended has left its own as well."""
    digests = Outcome(job, job.directory, steps).digests
    finished = {line["digest"] for line in digests if line["committed"] == steps}
    assert finished == {elastic.reference("gpt", steps)}, job.said()
    audit = audit_run(job.out)
    assert audit.exactly_once, audit.problems
    assert audit.committed_steps == steps


def devices_of(job: RunningJob) -> dict[str, int]:
    return {record["replica"]: record["device"] for record in job.records("worker")}


def status(job: RunningJob) -> Any:
    with job.client() as client:
        return client.get("/v1/status").json()


def assert_nothing_is_left(job: RunningJob, pool: FakePool) -> None:
    job.assert_nothing_is_left()
    assert pool.users() == {}


def test_no_process_starts_before_the_minimum_is_offered(tmp_path: Path, pool: FakePool) -> None:
    pool.offer("job", 0, reason="1 of 2 is free")
    with counting(tmp_path, least=2) as job:
        report = pool.wait_for("job", lambda report: report.url != "")
        assert (report.wanted.min_replicas, report.wanted.ask_replicas) == (2, 4)
        assert not report.is_running
        assert status(job)["pool"]["reason"] == "1 of 2 is free"
        assert status(job)["state"] == "waiting"
        assert [p.pid for p in job.processes()] == [job.process.pid]

        pool.offer("job", 0, 7)
        job.wait_for_steps(1)
        assert set(devices_of(job).values()) == {0, 7}
        os.kill(job.process.pid, signal.SIGINT)
        assert job.exit_code() == 3
        assert_nothing_is_left(job, pool)


def test_a_job_that_waits_can_be_stopped(tmp_path: Path, pool: FakePool) -> None:
    with counting(tmp_path) as job:
        pool.wait_for("job", lambda report: report.url != "")
        os.kill(job.process.pid, signal.SIGINT)
        assert job.exit_code() == 3
        assert_nothing_is_left(job, pool)
        assert pool.reports("job") == []  # withdrawn


def test_a_device_that_is_drained_is_left_for_another(tmp_path: Path, pool: FakePool) -> None:
    pool.offer("job", 0, 1)
    with counting(tmp_path) as job:
        job.wait_for_steps(1)
        pool.offer("job", 0, 4, reason="device 1 is drained")
        pool.wait_for("job", lambda report: report.holds == (0, 4))
        job.wait_for(lambda: sorted(pool.users()) == [0, 4], "the replacement runs")
        (leaver,) = (name for name, device in devices_of(job).items() if device == 1)
        assert [r["leave"] for r in job.records("offered") if r["leave"]] == [[leaver]]

        pool.offer("job", 0, 4, 1, 2, reason="it is back")
        job.wait_for(lambda: sorted(pool.users()) == [0, 1, 2, 4], "all are used again")


def test_of_a_device_that_is_drained_for_nothing_only_its_replica_leaves(
    tmp_path: Path, pool: FakePool
) -> None:
    pool.offer("job", 0, 1, 2)
    with counting(tmp_path) as job:
        wait_for_members(job, "r1", "r2", "r3")
        (leaver,) = (name for name, device in devices_of(job).items() if device == 0)

        pool.offer("job", 1, 2, reason="device 0 is drained")
        pool.wait_for("job", lambda report: report.holds == (1, 2))

        job.wait_for(lambda: job.records("exited"), "one has left")
        job.wait_for_steps(len(job.records("commit")) + 5)
        assert [record["replica"] for record in job.records("exited")] == [leaver]
        assert sorted(pool.users()) == [1, 2]


def test_a_worker_whose_device_a_stranger_has_runs_elsewhere(
    tmp_path: Path, pool: FakePool
) -> None:
    for directory in (pool.locks.parent, pool.locks):  # others may enter those of a group's pool
        make_private_directory(directory)
    stranger = locks.take_device(pool.locks, 0, claim="stranger")
    assert stranger is not None
    try:
        pool.offer("job", 0, 1, 2)
        with counting(tmp_path, start=2) as job:
            job.wait_for(lambda: job.records("exited"), "the first has ended")
            job.wait_for_steps(1)
            (ended,) = job.records("exited")
            who = f"process {os.getpid()} of claim stranger"
            assert ended["exited_kind"] == "taken"
            assert ended["detail"].startswith(f"the script was not run: {who} has device 0")
            assert sorted(devices_of(job).values()) == [0, 1, 2]
    finally:
        stranger.release()


def test_a_killed_job_leaves_its_devices_free(tmp_path: Path, pool: FakePool) -> None:
    pool.offer("job", 0, 1)
    with counting(tmp_path) as job:
        job.wait_for_steps(1)
        assert sorted(pool.users()) == [0, 1]
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait(DEADLINE_S)
        assert locks.take_device(pool.locks, 0, claim="next", within_s=DEADLINE_S) is not None
        assert locks.take_device(pool.locks, 1, claim="next", within_s=DEADLINE_S) is not None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--pool"], "no pool named default is running; start it with pliant pool start"),
        (["--priority", "high"], "--priority high says how a job stands in a pool; add --pool"),
        (["--team", "a"], "--team a says how a job stands in a pool; add --pool"),
        (["--pool=A/b"], "--pool A/b: a pool's name must be lower-case letters"),
    ],
)
def test_what_cannot_run_in_a_pool_is_refused(
    tmp_path: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from pliant.cli.main import code_of

    script = tmp_path / "train.py"
    script.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        patch.chdir(tmp_path)
        assert code_of(["run", *words, str(script)]) == 2

    assert sentence in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_what_the_pool_refuses_is_said_in_its_words(tmp_path: Path, pool: FakePool) -> None:
    pool.refuse("there is no priority class nightly; there are urgent, high, normal, low")
    with counting(tmp_path, pool={"name": "default", "priority": "nightly"}) as job:
        assert job.exit_code() == 2
        assert "there is no priority class nightly" in job.said()


def test_a_worker_and_its_loaders_are_confined_to_their_device(
    tmp_path: Path, pool: FakePool
) -> None:
    """One worker has a core, the other a GPU that need not exist to be the only one it sees."""
    said, cores = tmp_path / "said", sorted(os.sched_getaffinity(0))
    said.mkdir()
    script = Path(__file__).with_name("confined.py")
    with running(tmp_path, script, said, replicas=2, pool=HERE, warm=True) as job:
        pool.offer("job", 0, 5, names=[f"cpu:{cores[-1]}", "cuda:3"])
        job.wait_for(lambda: len(list(said.iterdir())) == 2, "both have said it")
        job.exit_code()

    on_core, on_gpu = (json.loads((said / name).read_text()) for name in ("0", "5"))
    assert {tuple(one) for one in on_core["threads"]} == {(cores[-1],)}
    assert on_core["loader"] == [cores[-1]]
    assert on_core["computing"] == 1
    assert on_core["variables"]["CUDA_VISIBLE_DEVICES"] == ""
    assert on_gpu["loader"] == cores
    assert on_gpu["variables"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert on_gpu["variables"]["PLIANT_DEVICE_NAMES"] == "cuda:3"
