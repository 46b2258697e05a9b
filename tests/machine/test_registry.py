"""A job or a pool that runs is found from any directory; one that is gone leaves no trace."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.machine.nfs import lock_as_on_nfs

from pliant.core.errors import ConfigError
from pliant.machine import registry
from pliant.machine.device_locks import make_entered, take_device
from pliant.machine.files import is_shared_directory
from pliant.machine.registry import (
    RuntimeFiles,
    Served,
    StateDirectory,
    find_job,
    find_pool,
    listen,
    pool_place,
    running_jobs,
    served_pools,
    shared_pool,
)


def record(
    directory: Path, name: str, pid: int, started: float = 1.0, *, kind: str = "job"
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    values = {kind: name, "url": "http://h", "pid": pid, "started": started}
    values["out"] = f"/runs/{name}" if kind == "job" else str(directory / name)
    (directory / f"{name}.json").write_text(json.dumps(values))
    (directory / f"{name}.token").write_text("secret\n")
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
    read, writers = registry._read, list[RuntimeFiles]()

    def slow(kind: str, path: Path) -> Served | None:
        one = read(kind, path)
        if not writers:
            writers.append(files)
            files.write(url="http://new", token="new", out=tmp_path)
        return one

    monkeypatch.setattr(registry, "_read", slow)
    running_jobs(tmp_path)

    job = find_job("gpt", tmp_path)
    assert (job.url, job.token()) == ("http://new", "new")


@pytest.mark.parametrize("flock", [fcntl.flock, lock_as_on_nfs])
def test_whoever_removes_records_is_waited_for_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: Callable[[int, int], None]
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(registry, "WRITE_S", 0.05)
    record(tmp_path, "old", gone())
    files = RuntimeFiles("job", tmp_path / "gpt.json", tmp_path / "gpt.token")
    with registry.alone_in(tmp_path, within_s=0) as is_alone:
        assert is_alone
        assert running_jobs(tmp_path) == []
        files.write(url="http://new", token="new", out=tmp_path)
        assert (tmp_path / "old.json").exists()

    assert [job.name for job in running_jobs(tmp_path)] == ["gpt"]
    assert not (tmp_path / "old.json").exists()


def test_the_token_of_a_job_that_was_killed_as_it_started_is_removed_later(tmp_path: Path) -> None:
    """Whatever the wall clock says; not while a job writes its record, which takes the lock."""
    token = tmp_path / "killed.token"
    token.write_text("secret\n")
    os.utime(token, (time.time() + 3600.0,) * 2)

    with registry.alone_in(tmp_path, within_s=0):
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


def refused(name: str | None, directory: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        find_pool(name, directory)
    return str(caught.value)


def test_the_only_pool_is_found(tmp_path: Path) -> None:
    record(tmp_path, "default", os.getpid(), kind="pool")

    pool = find_pool(None, tmp_path)

    assert (pool.name, pool.url, pool.token()) == ("default", "http://h", "secret")


def test_without_a_pool_it_says_how_to_start_one(tmp_path: Path) -> None:
    start = "pliant pool start --devices N"
    assert refused(None, tmp_path) == f"no pool is running; start one with {start}"
    assert refused("a", tmp_path) == (f"no pool named a is running; start it with {start} --name a")


def test_among_several_it_asks_which(tmp_path: Path) -> None:
    record(tmp_path, "a", os.getpid(), kind="pool")
    record(tmp_path, "b", os.getpid(), kind="pool")

    assert refused(None, tmp_path) == ("several pools are running, say which with --pool: a, b")
    assert refused("c", tmp_path) == "no pool named c is running; running: a, b"
    assert find_pool("b", tmp_path).name == "b"


def test_a_pool_that_is_killed_while_it_stops_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "ENDING_S", 50.0)
    with subprocess.Popen(["sleep", "60"]) as process:
        record(tmp_path, "default", process.pid, kind="pool")
        pool, began_s = find_pool(None, tmp_path), time.monotonic()

        def kill() -> None:
            process.kill()
            process.wait()

        killing = threading.Timer(0.3, kill)
        killing.start()
        registry.wait_for_end(pool)
        killing.join()

    assert 0.2 < time.monotonic() - began_s < registry.ENDING_S / 2
    assert refused(None, tmp_path).startswith("no pool is running")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Lend a place of shared pools with two of them, and the trap of somebody."""
    with contextlib.ExitStack() as stack:
        for name in ("ml", "night", "trap"):
            make_entered(tmp_path / name, os.getegid())
            sock = listen(tmp_path / name, os.getegid(), waiting=8)
            stack.enter_context(contextlib.closing(sock))
        (tmp_path / "trap").chmod(0o777)
        yield tmp_path


def test_the_trap_of_somebody_hides_no_other_pool(place: Path) -> None:
    """A directory of mode 0777 with a socket: each report of each job would be lost."""
    assert find_pool("ml", place).name == "ml"
    assert [one.name for one in served_pools(place)] == ["ml", "night"]
    assert "trap may be changed by others" in refused("trap", place)
    assert refused(None, place).endswith("say which with --pool: ml, night")


def test_only_the_pool_that_is_named_is_asked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def looking(name: str, where: Path) -> Served | None:
        asked.append(name)
        return shared_pool(name, where)

    monkeypatch.setattr(registry, "shared_pool", looking)
    monkeypatch.setattr(registry, "shared_pools", lambda where: pytest.fail("all were asked"))

    assert find_pool("night", place).name == "night"
    assert asked == ["night"]


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o750, 0o755, 0o770, 0o775])
def test_a_private_pools_directory_of_any_mode_is_private(tmp_path: Path, mode: int) -> None:
    """Made by hand, or under another umask."""
    directory = tmp_path / "default"
    directory.mkdir()
    directory.chmod(mode)

    assert not is_shared_directory(directory)
    lock = take_device(directory, 3, claim="gpt")
    assert lock is not None
    lock.release()


@pytest.mark.parametrize("mode", [0o710, 0o750, 0o755, 0o777])
def test_a_shared_pools_directory_stays_one_if_its_mode_is_changed(
    tmp_path: Path, mode: int
) -> None:
    """Else two processes could use one device: each takes it in another way."""
    state = StateDirectory(tmp_path / "state", shared_pools=tmp_path)
    make_entered(tmp_path / "ml", os.getegid())
    (tmp_path / "ml").chmod(mode)

    assert pool_place("ml", state) == tmp_path
    assert take_device(tmp_path / "ml", 3, claim="gpt", within_s=0) is None  # not granted
