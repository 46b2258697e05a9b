"""Whole jobs of replicas of several processes: one is lost, the replica is; nothing stays behind.

The workers are fake (no torch): what is tested is who starts, ends and speaks; see
``fake_workers``.
"""

from __future__ import annotations

import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.processes import launching
from tests.processes.launching import HERE, RunningJob
from tests.processes.pooling import fake_pool

running = partial(launching.running, forked=True)
"""A job and its fork server need no interpreter of their own here."""

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

FAKE_WORKERS = HERE / "fake_workers.py"


def pids_of(job: RunningJob, replica: str, count: int = 2) -> list[int]:
    """Return the processes of a replica in the order of its workers."""

    def find() -> list[int]:
        found = {r["worker"]: r["pid"] for r in job.records("worker") if r["replica"] == replica}
        return [found[place] for place in sorted(found)] if len(found) == count else []

    pids: list[int] = job.wait_for(find, f"{replica} has {count} processes")
    return pids


def meeting_places(job: RunningJob) -> set[Path]:
    """Return the directories in which workers have met, as they have printed."""
    said = [path.read_text() for path in (job.out / "logs").glob("r*.log")]
    return {Path(found) for text in said for found in re.findall(r"^meets in (/.+)$", text, re.M)}


def assert_nothing_is_left(job: RunningJob) -> None:
    job.assert_nothing_is_left()
    places = meeting_places(job)
    assert places
    assert {path for path in places if path.exists()} == set()


def test_a_job_of_several_workers_runs_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKERS, 20, 0.01, workers=2) as job:
        assert job.exit_code() == 0, job.said()

        assert [r["step"] for r in job.records("commit")] == list(range(20))
        exits = [(r["replica"], r["exited_kind"], r["worker"]) for r in job.records("exited")]
        assert sorted(exits) == [("r1", "finished", 0), ("r2", "finished", 0)]
        assert sorted(path.name for path in (job.out / "logs").glob("r*.log")) == [
            f"r{replica}.{place}.log" for replica in (1, 2) for place in (0, 1)
        ]
        assert len(meeting_places(job)) == 2
        assert_nothing_is_left(job)


@pytest.mark.parametrize("place", [0, 1])
def test_a_killed_worker_takes_its_replica_which_is_replaced(tmp_path: Path, place: int) -> None:
    with running(tmp_path, FAKE_WORKERS, 10_000, 0.02, workers=2) as job:
        job.wait_for_steps(3)
        lost = pids_of(job, "r2")

        os.kill(lost[place], signal.SIGKILL)

        fresh = pids_of(job, "r3")
        assert [pid for pid in lost if psutil.pid_exists(pid)] == []
        assert len(set(fresh)) == 2
        job.wait_for(
            lambda: "r3" in {record["replica"] for record in job.records("switched")},
            "r3 takes part",
        )
        job.stop()

        exited = {r["replica"]: r for r in job.records("exited")}
        told = exited["r2"]
        assert (told["exited_kind"], told["detail"], told["worker"]) == ("signal", "SIGKILL", place)
        assert len(exited) == 3
        assert_nothing_is_left(job)


def test_killing_the_process_of_coordinator_and_agent_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKERS, 10_000, 0.01, workers=2) as job:
        job.wait_for_steps(3)
        assert len(job.processes()) == 6
        assert all(path.is_dir() for path in meeting_places(job))

        job.process.kill()

        job.exit_code()
        assert_nothing_is_left(job)


def test_where_workers_met_that_were_killed_with_agent_and_fork_server_the_next_run_removes(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "first", FAKE_WORKERS, 10_000, 0.01, workers=2) as job:
        job.wait_for_steps(1)
        left = meeting_places(job)
        for process in (job.fork_server(), job.process):
            process.kill()
        job.exit_code()
    assert left  # a job of another test may have removed them by now

    with running(tmp_path / "second", FAKE_WORKERS, 3, 0.01, workers=2, replicas=1) as job:
        assert job.exit_code() == 0, job.said()
        assert_nothing_is_left(job)

    assert {path for path in left if path.parent.exists()} == set()


def test_in_a_pool_each_worker_holds_a_device_and_a_replica_leaves_with_all_of_its(
    tmp_path: Path,
) -> None:
    """Offered 4 devices, then 3: as one replica needs two of them, one is given back as well."""
    more: dict[str, Any] = {"pool": {"name": "default"}, "workers": 2}
    with fake_pool(tmp_path) as pool:
        pool.offer("job", 3, 4, 5)
        with running(tmp_path, FAKE_WORKERS, 100_000, 0.01, **more) as job:
            asked = pool.wait_for("job", lambda report: report.is_running).wanted
            assert (asked.min_replicas, asked.ask_replicas, asked.sizes) == (2, 4, (2, 4))
            first = pids_of(job, "r1")
            job.wait_for(lambda: len(pool.users()) == 2, "both workers hold their devices")
            assert pool.users() == {3: first[:1], 4: first[1:]}
            assert not [r for r in job.records("start_replica") if r["replica"] == "r2"]

            pool.offer("job", 3, 4, 5, 7)
            second = pids_of(job, "r2")
            job.wait_for(lambda: len(pool.users()) == 4, "all four hold their devices")
            assert pool.users() == {3: first[:1], 4: first[1:], 5: second[:1], 7: second[1:]}

            pool.offer("job", 3, 4, 5, 7, replicas=2, reason="another takes two")
            report = pool.wait_for(
                "job", lambda report: report.revision == 3 and len(report.holds) == 2
            )
            assert report.holds == (3, 4)
            assert [pid for pid in second if psutil.pid_exists(pid)] == []

            job.process.send_signal(signal.SIGINT)
            assert job.exit_code() == 3, job.said()
            assert_nothing_is_left(job)
        assert pool.users() == {}
