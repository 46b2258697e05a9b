"""What is appended without end is kept within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.machine.rotating_file import RotatingFile


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
