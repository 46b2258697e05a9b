"""Files are whole or as they were, and what a writer leaves behind is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.machine.files import PRIVATE, fresh_beside, is_leftover, replace_file


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
