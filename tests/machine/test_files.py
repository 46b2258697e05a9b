"""Files are whole or as they were, and what a writer leaves behind is known."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from pliant.machine.files import (
    LEAST_BYTES,
    PRIVATE,
    NoFileError,
    RotatingFile,
    SpareSpace,
    fresh_beside,
    is_leftover,
    make_private_directory,
    open_private,
    open_to_read,
    replace_file,
)


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path, is_durable: bool) -> None:
    path = tmp_path / "token"

    for data in (b"one", b"two"):
        replace_file(path, data, mode=PRIVATE, is_durable=is_durable)

    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == PRIVATE
    assert os.listdir(tmp_path) == ["token"]  # noqa: PTH208


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_file(path, b"old")

    with pytest.raises(TypeError):
        replace_file(path, None)  # type: ignore[arg-type]

    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_what_a_killed_writer_leaves_is_known_by_its_name(tmp_path: Path) -> None:
    with fresh_beside(tmp_path / "a.json") as fresh:
        fresh.write_bytes(b"half")

        assert is_leftover(fresh.name)
        assert not is_leftover("a.json")
        assert fresh.parent == tmp_path
    assert not fresh.exists()


def test_what_a_killed_writer_left_is_replaced_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "register.json"
    for _ in range(3):
        (tmp_path / ".register.json.new").write_text("half")
        replace_file(path, b"whole")

    assert [one.name for one in tmp_path.iterdir()] == ["register.json"]
    assert path.read_bytes() == b"whole"


def test_a_private_file_is_nobody_elses_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private_directory(tmp_path / "run")
        os.close(open_private(tmp_path / "run" / "events.jsonl", os.O_WRONLY))
    finally:
        os.umask(before)

    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run" / "events.jsonl").stat().st_mode & 0o777 == PRIVATE


def test_what_somebody_has_put_in_place_of_a_private_file_is_not_written_to(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "events.jsonl"
    precious.write_text("mine")
    link.symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"):
        open_private(link, os.O_WRONLY | os.O_TRUNC)
    assert precious.read_text() == "mine"

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PermissionError, match="it is no file of this user's"):
        open_private(tmp_path / "pipe", os.O_RDWR)


def test_what_is_no_file_is_not_opened_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name in ("pipe", "link", "directory"):
        with pytest.raises(NoFileError, match="it is no regular file"):
            open_to_read(tmp_path / name)

    (tmp_path / "file").write_bytes(b"whole")
    with open_to_read(tmp_path / "file") as file:
        assert file.read() == b"whole"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file another user's")
def test_a_file_of_another_user_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "register.lock"
    path.touch(mode=0o666)
    os.chown(path, 65534, 65534)

    with pytest.raises(PermissionError, match="it is no file of this user's"):
        open_private(path, os.O_WRONLY)


def test_it_is_had_until_it_is_given_and_can_be_taken_again(tmp_path: Path) -> None:
    place = tmp_path / "space"

    space = SpareSpace(place, 1 << 18)
    assert place.stat().st_blocks * 512 >= 1 << 18
    assert space.release()
    assert not place.exists()
    assert not space.release()
    space.reserve()
    assert place.stat().st_blocks * 512 >= 1 << 18


def test_where_there_is_less_it_has_less(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LEAST_BYTES, hard))  # EFBIG, as a full disk ENOSPC
    try:
        SpareSpace(tmp_path / "space", 1 << 18)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert (tmp_path / "space").stat().st_size == LEAST_BYTES


def test_where_there_is_none_it_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)

    assert not SpareSpace(tmp_path / "space", 1 << 18).release()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "r1.log"


def test_a_file_is_rotated_when_it_is_full(path: Path) -> None:
    file = RotatingFile(path, max_bytes=10, kept=2)

    for number in range(5):
        file.write(f"line {number}\n".encode())
    file.close()

    kept = {found.name: found.read_text() for found in path.parent.iterdir()}
    assert kept == {"r1.log": "line 4\n", "r1.log.1": "line 3\n", "r1.log.2": "line 2\n"}


def test_a_file_goes_on_where_an_earlier_one_ended(path: Path) -> None:
    for number in range(2):
        file = RotatingFile(path)
        file.write(f"{number}\n".encode())
        file.close()

    assert path.read_text() == "0\n1\n"


def test_a_piece_larger_than_a_file_is_still_written(path: Path) -> None:
    file = RotatingFile(path, max_bytes=4)

    file.write(b"0123456789")
    file.close()

    assert path.read_bytes() == b"0123456789"


def test_a_file_that_cannot_be_put_aside_grows(path: Path) -> None:
    file = RotatingFile(path, max_bytes=10, kept=1)
    path.with_name("r1.log.1").mkdir()

    for number in range(3):
        file.write(f"line {number}\n".encode())
    path.with_name("r1.log.1").rmdir()
    file.write(b"line 3\n")
    file.close()

    assert path.with_name("r1.log.1").read_text() == "line 0\nline 1\nline 2\n"
    assert path.read_text() == "line 3\n"
