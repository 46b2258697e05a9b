"""A run has a directory of its own, and is the same to its checkpoints in every life."""

from __future__ import annotations

import os
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.coordinator.register_file import RegisterFile

from pliant.core.errors import ConfigError
from pliant.core.values import Generation, Incarnation, Lineage, Register
from pliant.machine import run_files
from pliant.machine.run_files import newest_run
from pliant.run.run_directory import (
    holder_of,
    lasting_token,
    locked,
    new_directory,
    resumed_directory,
    writable,
)


def test_a_second_run_gets_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = new_directory(None, "gpt")
    (first / "events.jsonl").touch()

    second = new_directory(None, "gpt")

    assert (first, second) == (tmp_path / "runs" / "gpt", tmp_path / "runs" / "gpt-2")


def test_a_directory_that_was_asked_for_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()

    with pytest.raises(ConfigError, match="already holds a run; choose another --out"):
        new_directory(tmp_path, "gpt")


def test_a_run_that_was_killed_while_its_log_was_cut_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the rename of a part and the first record of the next one."""
    monkeypatch.chdir(tmp_path)
    for name, log in (("gpt", "events.jsonl"), ("gpt-2", "events.000000.jsonl")):
        path = tmp_path / "runs" / name / log
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (len(name), len(name)))

    assert resumed_directory(None, "gpt") == tmp_path / "runs" / "gpt-2"
    assert newest_run() == Path("runs/gpt-2")
    assert new_directory(None, "gpt") == tmp_path / "runs" / "gpt-3"


def test_a_log_that_goes_while_the_newest_run_is_looked_for_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").touch()
    os.utime(tmp_path / "a" / "events.jsonl", (5, 5))
    find = run_files.runs_in

    def find_and_lose(runs: Path) -> list[Path]:
        found = find(runs)
        (tmp_path / "b" / "events.jsonl").unlink()
        return found

    monkeypatch.setattr(run_files, "runs_in", find_and_lose)

    assert newest_run(tmp_path) == tmp_path / "a"


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        new_directory(tmp_path / "file" / "run", "gpt")


def test_an_empty_record_of_the_holder_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "holder").touch()  # the disk was full

    holder = holder_of(tmp_path, "train")

    assert holder.startswith("train-")
    assert holder_of(tmp_path, "train") == holder


def test_of_two_hosts_that_name_a_job_at_one_moment_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever takes over could not write the checkpoints, or two jobs have one register."""

    def named_meanwhile(_: int) -> str:
        (tmp_path / "holder").write_text("gpt-1\n")
        return "2"

    monkeypatch.setattr(secrets, "token_hex", named_meanwhile)

    assert holder_of(tmp_path, "tune") == "gpt-1"
    assert (tmp_path / "holder").read_text() == "gpt-1\n"
    assert [each.name for each in tmp_path.iterdir()] == ["holder"]


def test_the_directory_of_a_run_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        out = new_directory(tmp_path / "run", "gpt")
        holder_of(out, "gpt")
        RegisterFile(out / "register.json").write(
            Register(incarnation=Incarnation(1), number=Generation(0), lineage=Lineage(1)),
            expected=None,
        )
    finally:
        os.umask(before)

    modes = {path.name: path.stat().st_mode & 0o777 for path in (out, *out.iterdir())}
    files = ("holder", "register.json", "register.lock", "register.space")
    assert modes == {"run": 0o700} | dict.fromkeys(files, 0o600)


def test_a_file_that_is_replaced_while_a_directory_is_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator takes over while the one before it writes its register."""
    monkeypatch.setattr(Path, "iterdir", lambda out: iter([out / ".register.json.new"]))

    assert writable(tmp_path) == tmp_path


def test_several_hosts_may_try_a_directory_at_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch, others = Path.touch, [tmp_path]

    def touched(path: Path, mode: int = 0o666, exist_ok: bool = True) -> None:
        touch(path, mode, exist_ok)
        if others:
            others.clear()
            writable(tmp_path)

    monkeypatch.setattr(Path, "touch", touched)

    assert writable(tmp_path) == tmp_path

    assert not others
    assert not list(tmp_path.iterdir())


def test_who_is_about_to_leave_a_directory_is_waited_for(tmp_path: Path) -> None:
    """As where `pliant resume` is typed right behind `pliant suspend`."""
    leaving, is_inside = threading.Event(), threading.Event()

    def stay() -> None:
        with locked(tmp_path, alone=True):
            is_inside.set()
            leaving.wait(10)

    with ThreadPoolExecutor(1) as thread:
        staying = thread.submit(stay)
        assert is_inside.wait(10)
        with pytest.raises(ConfigError, match="running already"), locked(tmp_path, alone=True):
            pass
        threading.Timer(0.3, leaving.set).start()
        with locked(tmp_path, alone=True, within_s=10):
            assert leaving.is_set()
        staying.result()


def test_of_two_coordinators_that_make_the_token_at_one_moment_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first would go on with a token that no agent finds in the file."""
    path, theirs = tmp_path / "token", "the-token-of-another-one"

    def made_meanwhile(_: int) -> str:
        path.write_text(theirs)
        return "a-token-that-comes-second"

    monkeypatch.setattr(secrets, "token_urlsafe", made_meanwhile)

    assert lasting_token(path) == theirs == path.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["token"]
