"""A coordinator dies, or sleeps, and another follows: training goes on, with the same bits."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.live.stage import DEADLINE_S
from tests.processes import elastic
from tests.processes.apart import ApartJob, apart
from tests.processes.elastic import Outcome, scale, wait_for_members, wait_for_switch
from tests.processes.memory_group import memory_group

from pliant.checkpoint.catalogue import verify
from pliant.checkpoint.store.directory import LocalStorage
from pliant.observe.audit import audit_run
from pliant.observe.status import board_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@contextmanager
def training(
    directory: Path,
    *more: object,
    steps: int = 100_000,
    faults: str = "",
    pace: float = 0.02,
    cut_off: str = "",
    **options: Any,
) -> Iterator[ApartJob]:
    """Train apart, and check in the end that nothing was lost, done twice or left behind.

    Unless it has done these steps before, the job ends when its test is over.
    """
    over = directory / "over"
    words: list[object] = [elastic.SCRIPT, "--model", "gpt", "--steps", steps, "--pace", pace]
    words += ["--digest-file", directory / "digests", "--tails-file", directory / "tails"]
    words += ["--faults", faults, "--until", over, *more]
    with apart(directory, *words, **{"nodes": {"here": 4}, **options}) as job:
        yield job
        over.touch()
        assert job.end() == 0, job.said()
        job.assert_nothing_is_left()
        assert not (job.out / "token").exists()
        outcome = Outcome(job, directory, steps)
        outcome.steps = outcome.digests[0]["committed"]
        outcome.check(elastic.reference("gpt", outcome.steps), cut_off=cut_off)
        check_log(job, outcome.steps)


def check_log(job: ApartJob, steps: int) -> None:
    """Each step was committed once, is in the log once, and what is derived from it is right."""
    records = job.records()
    commits = Counter(record["step"] for record in records if record["kind"] == "commit")
    assert set(commits) == set(range(steps)), "a commit is missing in the log"
    generations = [(r["step"], r["generation"]) for r in records if r["kind"] == "commit"]
    assert len(generations) == len(set(generations))
    audit = audit_run(job.out)
    assert audit.committed_steps == steps
    assert audit.superseded == 0
    status = board_of(records).as_json()
    assert (status["state"], status["step"]) == ("finished", steps)


def status_of(job: ApartJob) -> dict[str, Any]:
    with job.client() as client:
        answer: dict[str, Any] = client.get("/v1/status").json()
    return answer


def who_registered(job: ApartJob) -> set[str]:
    """Return who has said where it stands; what nobody heard is said again."""
    return {record["replica"] for record in job.records("registered")}


def is_stopped(job: ApartJob, replica: str) -> bool:
    return psutil.Process(job.pid_of(replica)).status() == psutil.STATUS_STOPPED


def test_training_goes_on_while_no_coordinator_lives(tmp_path: Path) -> None:
    with training(tmp_path) as job:
        wait_for_members(job, "r1", "r2")
        job.wait_for_steps(3)
        job.kill_coordinator()
        before = job.num_committed()
        job.wait_for_ledger(before + 8)
        job.coordinate()
        job.wait_for(lambda: who_registered(job) == {"r1", "r2"}, "both say where they stand")
        job.wait_for_steps(before + 10)

        status = status_of(job)

        assert [(r["name"], r["state"], len(r["pids"])) for r in status["replicas"]] == [
            ("r1", "training", 1),
            ("r2", "training", 1),
        ]
        assert status["pid"] == job.process.pid
        assert status["generation"] == 1
    assert [record["order"]["generation"] for record in job.records("switch")] == [1]
    assert not job.records("reform")


@pytest.mark.parametrize("is_out_of_memory", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_coordinator_that_the_kernel_kills_is_followed_by_one_that_tells(
    tmp_path: Path, is_out_of_memory: bool
) -> None:
    with (
        memory_group() if is_out_of_memory else nullcontext() as memory,
        training(tmp_path, nodes={}, forked=False, in_group=memory) as job,
    ):
        job.employ("here", 2)
        wait_for_members(job, "r1", "r2")
        job.wait_for_steps(3)
        first = job.process.pid
        if memory is None:
            os.kill(first, signal.SIGKILL)
        else:
            memory.kill_for_memory(first)
        assert job.process.wait(DEADLINE_S) == -signal.SIGKILL
        job.wait_for_ledger(8)
        job.coordinate()
        said = job.wait_for(
            lambda: [r["text"] for r in job.records("note") if str(first) in r["text"]],
            "it is told",
        )
    why = "killed a process beside it for want of memory" if memory else "it was killed"
    assert said[0].startswith(f"process {first}, which coordinated this job before, ended")
    assert why in said[0]


def test_a_checkpoint_that_was_asked_for_comes_or_is_said_not_to_have_come(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with training(tmp_path, "--checkpoint", kept, "--every", "1000000steps") as job:
        wait_for_members(job, "r1", "r2")
        job.wait_for_steps(3)
        step = ask_for_checkpoint(job)
        job.wait_for(lambda: saved_since(job, step), "it is saved")

        job.roads["here"].cut()  # nobody hears of the next one
        step = ask_for_checkpoint(job)
        assert status_of(job)["checkpoint_asked"]["step"] == step
        job.kill_coordinator()
        job.coordinate()
        job.roads["here"].mend()
        job.wait_for(lambda: who_registered(job) == {"r1", "r2"}, "both say where they stand")
        missing = f"the checkpoint that was asked for at step {step} had not come"
        assert [r for r in job.records("note") if missing in r["text"]]
        assert status_of(job)["checkpoint_asked"] is None
        assert not saved_since(job, step)
        job.wait_for(lambda: ask_for_checkpoint(job, is_sure=False), "it can be asked again")
        (found,) = job.wait_for(lambda: saved_since(job, step), "it is saved")
        assert verify(LocalStorage(str(kept)), found["checkpoint"]).is_sound
        assert found["place"] == str(kept / found["checkpoint"])


def ask_for_checkpoint(job: ApartJob, *, is_sure: bool = True) -> int:
    """Return the step that the job promises; 0: it refuses, and may."""
    with job.client() as client:
        said = client.post("/v1/checkpoint")
    assert said.status_code == 202 or not is_sure, said.text
    return int(said.json().get("step", 0))


def saved_since(job: ApartJob, step: int) -> list[Any]:
    return [one for one in job.records("saved") if one["committed"] >= step]


def test_who_dies_while_no_coordinator_lives_is_replaced(tmp_path: Path) -> None:
    """A break that is told to nobody is seen by the next coordinator all the same."""
    with training(tmp_path) as job:
        wait_for_members(job, "r1", "r2")
        job.wait_for_steps(3)
        pid = job.pid_of("r2")
        job.kill_coordinator()
        os.kill(pid, signal.SIGKILL)
        job.coordinate()
        wait_for_members(job, "r1", "r3")

        assert [r["name"] for r in status_of(job)["replicas"]] == ["r1", "r3"]
    assert [[s["replica"] for s in r["order"]["members"]] for r in job.records("reform")] == [
        ["r1"]
    ]


def test_a_switch_that_no_coordinator_sees_through_is_mended_by_the_next(tmp_path: Path) -> None:
    """All were told to switch, and the joiner dies on its way in, with nobody to say so to."""
    faults = "r1@boundary:1+=SIGSTOP,r3@transfer=SIGKILL"
    with training(tmp_path, replicas=3, start=2, faults=faults) as job:
        wait_for_members(job, "r1", "r2")
        scale(job, 3)
        wait_for_switch(job, "r1", "r2", "r3")
        job.wait_for(lambda: is_stopped(job, "r1"), "r1 is at the boundary")
        pid = job.pid_of("r1")
        job.kill_coordinator()
        os.kill(pid, signal.SIGCONT)
        job.coordinate()
        wait_for_members(job, "r1", "r2", "r4")
    assert len(job.records("reform")) == 1


def test_a_job_that_has_finished_is_not_trained_again(tmp_path: Path) -> None:
    """One coordinator dies after the last Release, the next after the last exit, before EndJob."""
    leave, mark = tmp_path / "leave", tmp_path / "mark"
    with training(tmp_path, "--leave-when", leave, steps=8, dies_once_at=mark) as job:
        job.wait_for(lambda: job.records("release"), "all are done")
        job.kill_coordinator()
        leave.touch()
        job.coordinate()
        assert job.process.wait(DEADLINE_S) == -signal.SIGKILL
        assert mark.exists()
        job.coordinate()
    assert [record["replica"] for record in job.records("start_replica")] == ["r1", "r2"]
    assert len(job.records("coordinator_started")) == 2
    assert [record["exit_code"] for record in job.records("end_job")] == [0]


def _home(job: ApartJob, replica: str) -> str:
    (home,) = [r["node"] for r in job.records("worker") if r["replica"] == replica]
    return str(home)
