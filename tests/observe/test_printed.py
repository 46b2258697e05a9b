"""What a replica printed is read piece by piece, none left out and none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.observe.printed import PrintedUntil, chosen, printed_after, printers, workers_of


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


def on_no_host(_name: str) -> list[str]:
    return []


def test_who_is_meant_is_the_only_replica_or_has_to_be_said(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("forkserver.log", "r10.log", "r2.1.log", "r2.0.log", "r2.0.log.1", "x.txt"):
        (logs / name).touch()
    names = printers(tmp_path)

    def meant(names: list[str], asked: str | None = None) -> str:
        return chosen(names, asked, "here", on_no_host)

    assert names == ["r2.0", "r2.1", "r10", "forkserver"]
    assert meant(["forkserver", "r1"]) == "r1"
    assert meant(["r2.0", "r2.1"]) == meant(names, "r2") == "r2"
    assert meant(names, "r2.1") == "r2.1"
    with pytest.raises(ConfigError, match=r"^say whose output: r2, r10; r2.0 is one worker of r2$"):
        meant(names)
    with pytest.raises(ConfigError, match=r"^there is no output of r3; there is of r2, r10, "):
        meant(names, "r3")
    with pytest.raises(ConfigError, match=r"^there is no output of r2.7; there is of r2.0, r2.1$"):
        meant(names, "r2.7")
    with pytest.raises(ConfigError, match=r"^no replica has printed anything yet \(looked in here"):
        meant([])


def test_whose_output_has_not_come_is_said_to_be_where_it_runs() -> None:
    def hosts_of(name: str) -> list[str]:
        return {"r3": ["a", "b"], "r3.1": ["b"]}[name]

    with pytest.raises(ConfigError, match=r"^nothing that r3.1 printed is here yet; it runs on b$"):
        chosen(["r3.0"], "r3.1", "here", hosts_of)
    with pytest.raises(
        ConfigError, match=r"^nothing that r3 printed is here yet; it runs on a and b$"
    ):
        chosen([], "r3", "here", hosts_of)


def test_a_worker_s_lines_are_all_of_its_replica_or_its_own() -> None:
    names = ["r1.0", "r1.1", "r10.0", "r11"]

    assert workers_of(names, "r1") == ["r1.0", "r1.1"]
    assert workers_of(names, "r1.1") == ["r1.1"]
    assert workers_of(names, "r11") == ["r11"]
