"""Runs that lose every process, or are suspended, and go on from a checkpoint: the same bits."""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.processes import elastic
from tests.processes.elastic import DEADLINE_S, Outcome
from tests.processes.launching import RunningJob, environment, running

from pliant.checkpoint.catalogue import verify
from pliant.checkpoint.store.directory import LocalStorage
from pliant.machine.registry import running_jobs
from pliant.observe.audit import audit_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

STEPS = 14
MORE = 6
"""Steps of a life that follows one that was suspended."""

NO_END = 100_000
"""Steps of a life that is ended by its test."""
Play = Callable[[RunningJob], None]


def live(
    directory: Path,
    model: str,
    play: Play,
    *,
    replicas: int,
    steps: int = STEPS,
    expected_code: int | None = 0,
    mesh: dict[str, int] | None = None,
    is_sharded: bool = True,
    more: tuple[str, ...] = (),
    case_options: dict[str, Any] | None = None,
    restarts: int = 2,
    **options: Any,
) -> RunningJob:
    """Run one life of a job; the next call with this directory is its next.

    ``mesh``: of the workers of each replica, over which the model is sharded, if it is.
    ``more``: words for the script; ``case_options``: for its model.
    """
    words: list[object] = [elastic.SCRIPT, "--model", model, "--steps", steps, *more]
    case_options = dict(case_options or {})
    if mesh:
        options["mesh"] = json.dumps(mesh)
        if is_sharded:
            case_options["mesh"] = mesh
    words += ["--options", json.dumps(case_options)]
    words += ["--digest-file", directory / "digests", "--checkpoint", directory / "kept"]
    for name, value in {"every": "3steps", "pace": 0.01, **options}.items():
        words += [f"--{name.replace('_', '-')}", value]
    (directory / "digests").unlink(missing_ok=True)
    workers = math.prod((mesh or {}).values())
    with running(
        directory, *words, replicas=replicas, warm=True, workers=workers, restarts=restarts
    ) as job:
        play(job)
        code = job.process.wait(DEADLINE_S)
        if expected_code is not None:
            assert code == expected_code, job.said()
            job.assert_nothing_is_left()
        else:  # with its fork server killed nobody is left to tidy up but the next command
            running_jobs(job.record_path.parent)
            job.assert_nothing_is_left()
    return job


def live_until_over(directory: Path, model: str, play: Play, **more: Any) -> RunningJob:
    """Run one life of a job, which ends soon after ``play`` has."""
    over = directory / "over"

    def play_and_end(job: RunningJob) -> None:
        play(job)
        over.touch()

    return live(directory, model, play_and_end, steps=NO_END, until=over, **more)


def steps_of(job: RunningJob) -> int:
    """Return how many steps it had done when it came to its end."""
    return int(Outcome(job, job.directory, 0).digests[0]["committed"])


def exchange(one: Path, other: Path) -> None:
    """Give each of two paths what the other one has had, at one moment."""
    here, at_once = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    names = os.fsencode(one), os.fsencode(other)
    if ctypes.CDLL(None, use_errno=True).renameat2(here, names[0], here, names[1], at_once):
        raise OSError(ctypes.get_errno(), "renameat2")


def test_a_checkpoint_now_is_saved_proved_and_named(tmp_path: Path) -> None:
    said = tmp_path / "now.txt"

    def play(job: RunningJob) -> None:
        job.wait_for_steps(3)
        words = ("-m", "pliant", "checkpoint", "now", "--json")
        asked = job.stage.start(*words, out=said, environment=environment(job.directory))
        assert asked.wait(DEADLINE_S) == 0, said.read_text()

    job = live_until_over(tmp_path, "gpt", play, replicas=2, every="1000000steps")

    found = json.loads(said.read_text())
    first, *_ = job.records("saved")
    assert (found["committed"], found["verified"]) == (first["committed"], True)
    assert found["place"] == str(tmp_path / "kept" / first["checkpoint"])
    assert found["committed"] < job.records("commit")[-1]["step"], "it trained on"


def suspend(job: RunningJob, after: int) -> None:
    job.wait_for_steps(after)
    with job.client() as client:
        client.post("/v1/suspend").raise_for_status()


def kill_everything(job: RunningJob) -> None:
    """SIGKILL every process of the job, agent and coordinator first, as fast as possible."""
    with suppress(ProcessLookupError):
        os.kill(job.process.pid, signal.SIGKILL)
    for process in job.processes():
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def nothing(job: RunningJob) -> None:
    pass


def check(job: RunningJob, digest: str, steps: int = STEPS) -> None:
    outcome = Outcome(job, job.directory, steps)
    assert {line["digest"] for line in outcome.digests} == {digest}, job.said()
    assert {line["committed"] for line in outcome.digests} == {steps}
    audit = audit_run(job.out)
    assert audit.exactly_once, audit.problems
    assert audit.committed_steps == steps


def published(directory: Path) -> list[Path]:
    """Return the checkpoints that exist, oldest first."""
    found = (directory / "kept").glob("step-*/pliant.json")
    return sorted((path.parent for path in found), key=_age)


def orders(job: RunningJob) -> list[Any]:
    """Return what the coordinator told the replicas to form, in order."""
    return [r["order"] for r in job.records() if r["kind"] in ("prepare", "switch", "reform")]


def _age(path: Path) -> tuple[int, int]:
    _, committed, lineage = path.name.split("-")
    return int(lineage[1:]), int(committed)


@pytest.mark.parametrize(
    "model",
    [
        "gpt",
        pytest.param("frozen", marks=pytest.mark.soak),
        pytest.param("cnn", marks=pytest.mark.soak),
        pytest.param("moe", marks=pytest.mark.soak),
    ],
)
def test_what_four_saved_goes_on_at_any_other_size(tmp_path: Path, model: str) -> None:
    first: dict[str, Any] = {"replicas": 4, "steps": NO_END, "expected_code": 3}
    live(tmp_path / "first", model, lambda job: suspend(job, 6), **first)
    _, saved = _age(published(tmp_path / "first")[-1])
    steps = saved + MORE
    digest = elastic.reference(model, steps)
    for replicas in (1, 2, 3, 5) if model == "gpt" else (3,):
        directory = tmp_path / f"at-{replicas}"
        shutil.copytree(tmp_path / "first", directory)
        (directory / "kept" / "lease.json").unlink(missing_ok=True)  # of the directory copied
        job = live(directory, model, nothing, replicas=replicas, steps=steps)

        check(job, digest, steps)
        assert job.records("switch")[-1]["order"]["restore"]["committed"] == saved


def end_by_signal(job: RunningJob) -> None:
    job.wait_for_steps(len(job.records("commit")) + 4)
    job.process.send_signal(signal.SIGTERM)


def test_a_signal_to_every_process_at_once_saves_and_what_is_resumed_ends_alike(
    tmp_path: Path,
) -> None:
    """As of scancel, or of a service manager; loader processes, too.  Nobody saved before."""
    lives = []

    def signalled(number: int) -> Play:
        def play(job: RunningJob) -> None:
            job.wait_for_steps(len(job.records("commit")) + 3)
            everyone = job.processes()
            assert len(everyone) == 6  # run, fork server, two workers, a loader each
            for process in everyone:
                process.send_signal(number)

        return play

    for number in (signal.SIGTERM, signal.SIGUSR1):
        options: dict[str, Any] = {"replicas": 2, "num_workers": 1, "every": "10min"}
        job = live(tmp_path, "gpt", signalled(number), steps=NO_END, expected_code=3, **options)
        assert {r["exited_kind"] for r in job.records("exited")} == {"finished"}
        lives.append(_age(published(tmp_path)[-1])[1])
    steps = lives[-1] + 2
    job = live(tmp_path, "gpt", nothing, replicas=2, steps=steps, num_workers=1)

    check(job, elastic.reference("gpt", steps), steps)
    assert lives[0] < lives[1]


@pytest.mark.soak
def test_what_sharded_replicas_saved_goes_on_at_any_other_shape(tmp_path: Path) -> None:
    """Two replicas of two workers, one of three, two that are whole, two of two again."""
    more: dict[str, Any] = {"steps": 30, "pace": 0.05}
    shapes: list[tuple[int, dict[str, int] | None]] = [
        (2, {"shard": 2}),
        (1, {"shard": 3}),
        (2, None),
        (2, {"shard": 2}),
    ]
    written = []
    for number, (replicas, mesh) in enumerate(shapes):
        is_last = number == len(shapes) - 1
        job = live(
            tmp_path,
            "gpt",
            nothing if is_last else end_by_signal,
            replicas=replicas,
            mesh=mesh,
            expected_code=0 if is_last else 3,
            **more,
        )
        newest = published(tmp_path)[-1]
        assert verify(LocalStorage(str(tmp_path / "kept")), newest.name).is_sound
        written.append((newest, len(list(newest.glob("*.distcp")))))
        if number:
            restored = job.records("switch")[-1]["order"]["restore"]
            assert restored["committed"] == _age(written[-2][0])[1]

    assert [number for _, number in written[:3]] == [4, 3, 2]
    check(job, elastic.reference("gpt", 30), 30)


@pytest.mark.parametrize(
    ("mesh", "is_sharded"),
    [
        ({"shard": 2}, False),
        pytest.param({"tp": 2}, True, marks=pytest.mark.soak),
        pytest.param({"shard": 2, "tp": 2}, True, marks=pytest.mark.soak),
    ],
)
def test_sharded_replicas_that_all_die_go_on_by_themselves(
    tmp_path: Path, mesh: dict[str, int], is_sharded: bool
) -> None:
    shape: dict[str, Any] = {"mesh": mesh, "is_sharded": is_sharded}

    def kill_all_workers(job: RunningJob) -> None:
        job.wait_for(lambda: job.records("saved"), "a checkpoint")
        for record in job.records("worker"):
            with suppress(ProcessLookupError):
                os.kill(record["pid"], signal.SIGKILL)

    killed = tmp_path / "killed"
    killed.mkdir()
    job = live_until_over(killed, "gpt", kill_all_workers, replicas=2, pace=0.02, **shape)

    assert any(record["order"]["restore"] for record in job.records("switch"))
    steps = steps_of(job)
    digest = elastic.reference("gpt", steps)
    if "tp" in mesh:  # how it is cut is a part of the run
        alone = live(tmp_path / "alone", "gpt", nothing, replicas=1, steps=steps, **shape)
        (digest,) = {line["digest"] for line in Outcome(alone, alone.directory, steps).digests}
    check(job, digest, steps)


def test_all_replicas_die_and_the_job_goes_on_by_itself(tmp_path: Path) -> None:
    def kill_all_workers(job: RunningJob) -> None:
        job.wait_for(lambda: job.records("saved"), "a checkpoint")
        for record in job.records("worker"):
            os.kill(record["pid"], signal.SIGKILL)

    job = live_until_over(tmp_path, "gpt", kill_all_workers, replicas=2, pace=0.02)

    check(job, elastic.reference("gpt", steps_of(job)), steps_of(job))
    assert any(record["order"]["restore"] for record in job.records("switch"))


@pytest.mark.parametrize(
    ("mesh", "files"), [(None, "*"), pytest.param({"shard": 2}, "__[13]_*", marks=pytest.mark.soak)]
)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(
    tmp_path: Path, mesh: dict[str, int] | None, files: str
) -> None:
    """Of replicas of two workers the second one reads what is damaged."""
    first: dict[str, Any] = {"replicas": 2, "steps": NO_END, "expected_code": 3}
    live(tmp_path, "gpt", lambda job: suspend(job, 8), mesh=mesh, **first)
    *_, older, newest = published(tmp_path)
    steps = _age(newest)[1] + MORE
    data = max(newest.glob(f"{files}.distcp"), key=lambda path: path.stat().st_size)
    with data.open("r+b") as file:
        file.seek(data.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))

    job = live(tmp_path, "gpt", nothing, replicas=2, mesh=mesh, steps=steps)

    check(job, elastic.reference("gpt", steps), steps)
    skipped = job.records("unrestorable")[0]
    assert skipped["checkpoint"] == newest.name
    assert "is damaged" in skipped["reason"]
    assert orders(job)[-1]["restore"]["checkpoint"] == older.name


def test_a_place_that_fails_does_not_stop_the_training(tmp_path: Path) -> None:
    def break_and_mend(job: RunningJob) -> None:
        job.wait_for(lambda: job.records("saved"), "a checkpoint")
        (tmp_path / "away").touch()
        exchange(tmp_path / "kept", tmp_path / "away")  # a file where the directory was
        job.wait_for(lambda: job.records("save_failed"), "a failure")
        with job.client() as client:
            status = client.get("/v1/status").json()
            metrics = client.get("/metrics").text
        assert "Not a directory" in status["checkpoint_failure"]["reason"]
        assert re.search(r'^pliant_checkpoint_failing\{run="\w+"\} 1.0$', metrics, re.MULTILINE)
        exchange(tmp_path / "kept", tmp_path / "away")
        count = len(job.records("saved"))
        job.wait_for(lambda: len(job.records("saved")) > count, "a checkpoint again")

    job = live_until_over(tmp_path, "gpt", break_and_mend, replicas=2, pace=0.03)

    check(job, elastic.reference("gpt", steps_of(job)), steps_of(job))


def test_a_limit_ends_a_job_that_would_train_unprotected(tmp_path: Path) -> None:
    def break_it(job: RunningJob) -> None:
        job.wait_for(lambda: job.records("saved"), "a checkpoint")
        (tmp_path / "away").touch()
        exchange(tmp_path / "kept", tmp_path / "away")

    job = live(
        tmp_path,
        "gpt",
        break_it,
        replicas=2,
        steps=100_000,
        pace=0.03,
        max_unprotected="2s",
        expected_code=1,
    )

    (ended,) = job.records("job_ended")
    assert "max_unprotected is 2 s" in ended["reason"]


LIVES = ("save", "share", "restore", "publish", "commit")
"""Where a life of the job ends: points of a save, of which the thread that writes passes two, of
the restore that follows, and of a step."""


def kill_where_one_stops(job: RunningJob) -> None:
    """Wait until a replica has stopped where its plan says, and kill everything."""

    def has_stopped() -> bool:
        for record in job.records("worker"):
            with suppress(psutil.Error):
                if psutil.Process(record["pid"]).status() == psutil.STATUS_STOPPED:
                    return True
        return job.process.poll() is not None

    with suppress(AssertionError):  # it came to its end before that point
        job.wait_for(has_stopped, "a replica stops")
    kill_everything(job)


def check_restore(job: RunningJob, there: list[Path]) -> None:
    """The life that has just ended began from the newest checkpoint that was there before."""
    *_, began = [n for n, record in enumerate(job.records()) if record["kind"] == "job_started"]
    formed = [r for r in job.records()[began:] if r["kind"] == "switch"]
    if formed:
        restore = formed[0]["order"]["restore"]
        assert (restore or {}).get("checkpoint", "") == (there[-1].name if there else "")


@pytest.mark.parametrize(
    "meshes", [(None,), pytest.param(({"shard": 2}, {"shard": 3}, None), marks=pytest.mark.soak)]
)
def test_a_job_that_is_killed_whole_again_and_again_ends_as_if_it_was_not(
    tmp_path: Path, meshes: tuple[dict[str, int] | None, ...]
) -> None:
    """Each life has another number of replicas, and the next one of the meshes."""
    for number, point in enumerate(LIVES):
        there = published(tmp_path)
        step = _age(there[-1])[1] if there and point != "restore" else 0
        job = live(
            tmp_path,
            "gpt",
            kill_where_one_stops,
            replicas=1 + number % 3,
            mesh=meshes[number % len(meshes)],
            steps=NO_END,
            every="2steps",
            faults=f"*@{point}:{step + 3 * (point != 'restore')}+=SIGSTOP",
            expected_code=None,
        )
        check_restore(job, there)
    steps = _age(published(tmp_path)[-1])[1] + MORE
    job = live(tmp_path, "gpt", nothing, replicas=2, steps=steps)

    check(job, elastic.reference("gpt", steps), steps)
