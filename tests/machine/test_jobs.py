"""A running job is found from any directory; one that is gone leaves no trace."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.machine.nfs import lock_as_on_nfs

from pliant.core.errors import ConfigError
from pliant.machine import discovery
from pliant.machine.discovery import RuntimeFiles, Served, StateDirectory
from pliant.machine.files import PRIVATE, replace_file
from pliant.machine.jobs import find_job, running_jobs


def record(directory: Path, job: str, pid: int, started: float = 1.0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    values = {"job": job, "url": "http://h", "pid": pid, "out": f"/runs/{job}", "started": started}
    (directory / f"{job}.json").write_text(json.dumps(values))
    (directory / f"{job}.token").write_text("secret\n")
    return directory


def gone() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_only_job_is_found(tmp_path: Path) -> None:
    job = find_job(None, record(tmp_path, "gpt", os.getpid()))

    assert (job.name, job.out, job.token()) == ("gpt", Path("/runs/gpt"), "secret")


def test_without_a_job_it_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_job(None, tmp_path)

    assert str(caught.value) == "no job is running; start one with pliant run"


def test_among_several_the_one_of_this_directory_is_meant_then_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, "late", os.getpid(), started=2.0)
    record(tmp_path, "early", os.getpid(), started=1.0)

    assert find_job(None, tmp_path).name == "late"
    assert find_job("early", tmp_path).name == "early"
    path = tmp_path / "early.json"
    values = json.loads(path.read_text()) | {"out": str(tmp_path / "runs" / "early")}
    path.write_text(json.dumps(values))
    for here in (tmp_path, tmp_path / "runs" / "early" / "logs"):
        here.mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(here)
        assert find_job(None, tmp_path).name == "early"


def test_a_name_that_does_not_run_is_refused_with_those_that_do(tmp_path: Path) -> None:
    record(tmp_path, "gpt", os.getpid())

    with pytest.raises(ConfigError) as caught:
        find_job("cnn", tmp_path)

    assert str(caught.value) == "no job named cnn is running; running: gpt"


def test_records_of_the_gone_are_removed_by_whoever_looks(tmp_path: Path) -> None:
    record(tmp_path, "old", gone())
    record(tmp_path, "new", os.getpid())

    assert [job.name for job in running_jobs(tmp_path)] == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.json", "new.token"]


def test_who_has_the_process_id_of_one_that_is_gone_is_not_taken_for_it(tmp_path: Path) -> None:
    """After a reboot the ids are soon given again, and the records are still there."""
    path = record(tmp_path, "gpt", os.getpid()) / "gpt.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"began": "1"}))

    assert running_jobs(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_take_a_name_at_one_moment_the_second_is_refused(tmp_path: Path) -> None:
    record(tmp_path, "gpt", os.getppid())
    files = RuntimeFiles.of("job", "gpt", tmp_path)

    with pytest.raises(ConfigError) as caught:
        files.write(url="http://new", token="new", out=tmp_path, is_alone=True)
    files.remove()

    assert str(caught.value) == ("a job named gpt is running already; choose another with --name")
    assert find_job("gpt", tmp_path).url == "http://h"


def test_a_record_that_is_written_meanwhile_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has seen that the process is dead, and the next of its name writes before it removes."""
    record(tmp_path, "gpt", gone())
    files = RuntimeFiles("job", tmp_path / "gpt.json", tmp_path / "gpt.token")
    read, writers = discovery._read, list[RuntimeFiles]()

    def slow(kind: str, path: Path) -> Served | None:
        one = read(kind, path)
        if not writers:
            writers.append(files)
            files.write(url="http://new", token="new", out=tmp_path)
        return one

    monkeypatch.setattr(discovery, "_read", slow)
    running_jobs(tmp_path)

    job = find_job("gpt", tmp_path)
    assert (job.url, job.token()) == ("http://new", "new")


@pytest.mark.parametrize("flock", [fcntl.flock, lock_as_on_nfs])
def test_whoever_removes_records_is_waited_for_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: Callable[[int, int], None]
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(discovery, "WRITE_S", 0.05)
    record(tmp_path, "old", gone())
    files = RuntimeFiles("job", tmp_path / "gpt.json", tmp_path / "gpt.token")
    with discovery.alone_in(tmp_path, within_s=0) as is_alone:
        assert is_alone
        assert running_jobs(tmp_path) == []
        files.write(url="http://new", token="new", out=tmp_path)
        assert (tmp_path / "old.json").exists()

    assert [job.name for job in running_jobs(tmp_path)] == ["gpt"]
    assert not (tmp_path / "old.json").exists()


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "gpt.token").mkdir()

    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "gpt.token", b"secret", mode=PRIVATE)

    assert [path.name for path in tmp_path.iterdir()] == ["gpt.token"]


def test_the_token_of_a_job_that_was_killed_as_it_started_is_removed_later(tmp_path: Path) -> None:
    """Whatever the wall clock says; not while a job writes its record, which takes the lock."""
    token = tmp_path / "killed.token"
    token.write_text("secret\n")
    os.utime(token, (time.time() + 3600.0,) * 2)

    with discovery.alone_in(tmp_path, within_s=0):
        assert running_jobs(tmp_path) == []
        assert token.exists()
    assert running_jobs(tmp_path) == []
    assert not token.exists()


def test_a_record_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "gpt.json").write_text('{"job": "gp')

    assert running_jobs(tmp_path) == []
    assert (tmp_path / "gpt.json").exists()


def test_a_token_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    job = find_job(None, record(tmp_path, "gpt", os.getpid()))
    (tmp_path / "gpt.token").unlink()

    with pytest.raises(ConfigError, match="the token of job gpt cannot be read: No such file"):
        job.token()


def test_the_state_directory_is_the_users() -> None:
    assert StateDirectory.of({"XDG_STATE_HOME": "/s"}).jobs == Path("/s/pliant/jobs")
    assert StateDirectory.of({}).jobs == Path("~/.local/state/pliant/jobs").expanduser()
