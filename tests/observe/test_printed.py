"""What a replica printed is read piece by piece, none left out and none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.observe.printed import PrintedUntil, chosen, printed_after, printers


def test_pieces_of_rotated_files_follow_each_other_whatever_their_size(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for name, text in (("r1.log.2", "one two "), ("r1.log.1", "three "), ("r1.log", "four")):
        (logs / name).write_text(text)

    for most_bytes in (1, 3, 8, 100):
        place, said, piece = PrintedUntil(), b"", b"something"
        while piece:
            piece, place = printed_after(tmp_path, "r1", PrintedUntil.of(str(place)), most_bytes)
            assert len(piece) <= most_bytes
            said += piece

        assert said == b"one two three four"


@pytest.mark.parametrize(
    "text", ["", "-", "7", "7-", "-7", "x-7", "\u0663-1", "1-2-3-4", "1-2-", "9" * 50]
)
def test_what_is_no_place_is_the_beginning(text: str) -> None:
    assert PrintedUntil.of(text) == PrintedUntil()


def test_a_place_that_no_file_has_is_behind_its_end(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "r1.log").write_text("one")
    _, place = printed_after(tmp_path, "r1", PrintedUntil())

    beyond = PrintedUntil.of(f"{place.inode}-{'9' * 25}")

    assert printed_after(tmp_path, "r1", beyond)[0] == b""


def test_a_new_file_with_the_inode_of_one_that_went_is_read_from_its_beginning(
    tmp_path: Path,
) -> None:
    """File systems give the inode of a file that was removed to the next one."""
    log = tmp_path / "logs" / "r1.log"
    log.parent.mkdir()
    log.write_text("of a file that went")
    _, place = printed_after(tmp_path, "r1", PrintedUntil())
    log.write_text("of the file that has its inode now")

    piece, after = printed_after(tmp_path, "r1", PrintedUntil.of(str(place)))

    assert after.inode == place.inode
    assert piece == b"of the file that has its inode now"


def test_who_is_meant_is_the_only_one_or_has_to_be_said(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("forkserver.log", "r10.log", "r2.1.log", "r2.0.log", "r2.0.log.1", "x.txt"):
        (logs / name).touch()
    names = printers(tmp_path)

    assert names == ["r2.0", "r2.1", "r10", "forkserver"]
    assert chosen(["forkserver", "r1"], None, "here") == "r1"
    with pytest.raises(ConfigError, match=r"^say whose output: r2.0, r2.1, r10$"):
        chosen(names, None, "here")
    with pytest.raises(ConfigError, match=r"^there is no output of r3; there is of r2.0, "):
        chosen(names, "r3", "here")
    with pytest.raises(ConfigError, match=r"^no replica has printed anything yet \(looked in here"):
        chosen([], None, "here")
