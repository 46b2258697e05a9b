"""Places of registers: of several writers one wins, also one that was cut off in between."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.coordinator import register_places
from pliant.coordinator.register_places import LinkedFiles, LockedFile, RegisterPlace
from pliant.core.errors import PermanentError
from pliant.machine.files import write_new as write_new_file


def make(kind: str, directory: Path) -> RegisterPlace:
    return LinkedFiles(directory) if kind == "linked" else LockedFile(directory / "register.json")


@pytest.fixture(params=["linked", "locked"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_as_expected_is_replaced_and_nothing_else(kind: str, tmp_path: Path) -> None:
    one, other = make(kind, tmp_path / "r"), make(kind, tmp_path / "r")

    assert one.read() is None
    assert one.exchange(b"1", expected=None)
    assert not other.exchange(b"2", expected=None)
    assert other.exchange(b"2", expected=b"1")
    assert not one.exchange(b"3", expected=b"1")
    assert one.read() == other.read() == b"2"


def _write(kind: str, directory: Path, name: str, times: int) -> None:
    place = make(kind, directory / "register")
    won: list[int] = []
    while len(won) < times:
        before = place.read()
        number = int((before or b"0").split()[0]) + 1
        if place.exchange(f"{number} {name}".encode(), expected=before):
            won.append(number)
    (directory / name).write_text(" ".join(map(str, won)))


def test_of_several_processes_that_write_at_once_no_two_win_over_the_same(
    kind: str, tmp_path: Path
) -> None:
    """Each adds one to what it has read: if two had won, both would have the same number."""
    fork = multiprocessing.get_context("spawn")
    writers = [
        fork.Process(target=_write, args=(kind, tmp_path, name, 30)) for name in ("a", "b", "c")
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)

    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    won = " ".join((tmp_path / name).read_text() for name in ("a", "b", "c")).split()
    final = make(kind, tmp_path / "register").read()
    assert final is not None
    assert len(won) == len(set(won)) == 90
    assert final.split()[0].decode() in won


def test_only_the_newest_two_files_stay_and_what_killed_writers_left_goes(tmp_path: Path) -> None:
    place, before = LinkedFiles(tmp_path), None
    (tmp_path / ".register-000000000001.json.abc.new").touch()
    (tmp_path / "coordinator.json").touch()
    for number in range(6):
        assert place.exchange(b"%d" % number, expected=before)
        before = b"%d" % number

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "coordinator.json",
        "register-000000000005.json",
        "register-000000000006.json",
    ]


def test_a_writer_that_stood_still_while_others_wrote_much_has_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number that it was about to take was taken, and removed as old."""
    late, other = LinkedFiles(tmp_path), LinkedFiles(tmp_path)
    assert late.exchange(b"0", expected=None)
    real = write_new_file

    def write_new(*arguments: object, **more: object) -> None:
        monkeypatch.setattr(register_places, "write_new", real)
        for number in range(5):
            assert other.exchange(b"%d" % (number + 1), expected=b"%d" % number)
        real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(register_places, "write_new", write_new)

    assert not late.exchange(b"late", expected=b"0")
    assert other.read() == late.read() == b"5"
    assert other.exchange(b"6", expected=b"5")


def test_a_writer_whose_number_another_takes_at_that_moment_has_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, other = LinkedFiles(tmp_path), LinkedFiles(tmp_path)
    real = write_new_file

    def write_new(*arguments: object, **more: object) -> None:
        monkeypatch.setattr(register_places, "write_new", real)
        assert other.exchange(b"other", expected=None)
        real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(register_places, "write_new", write_new)

    assert not late.exchange(b"late", expected=None)
    assert late.read() == b"other"


def test_a_name_that_a_server_gave_and_did_not_confirm_is_the_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS: the answer was lost, the client asked again, and the name was taken, by itself."""
    real = os.link

    def link(source: Path, target: Path) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", link)

    assert LinkedFiles(tmp_path).exchange(b"mine", expected=None)


def test_a_listing_that_is_older_than_the_files_is_seen_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = LinkedFiles(tmp_path)
    assert place.exchange(b"0", expected=None)
    assert place.exchange(b"1", expected=b"0")
    monkeypatch.setattr(LinkedFiles, "_numbers", lambda _: [1])

    assert LinkedFiles(tmp_path).read() == b"1"


def test_a_file_system_without_hard_links_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)

    with pytest.raises(PermanentError, match=r"without hard links .* choose another --register"):
        LinkedFiles(tmp_path).exchange(b"0", expected=None)


@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40))
def test_two_that_write_what_they_have_read_never_both_win(
    turns: list[tuple[int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each may look long before it writes."""
    directory = tmp_path_factory.mktemp("register")
    places = [LinkedFiles(directory) for _ in range(3)]
    seen: list[bytes | None] = [None, None, None]
    newest: bytes | None = None
    for number, (who, is_look) in enumerate(turns):
        if is_look:
            seen[who] = places[who].read()
            continue
        data = b"%d by %d" % (number, who)
        won = places[who].exchange(data, expected=seen[who])
        assert won == (seen[who] == newest)
        newest = data if won else newest
    assert places[0].read() == newest


def test_readers_beside_writers_always_find_something_whole(tmp_path: Path) -> None:
    place, over = LinkedFiles(tmp_path), threading.Event()
    assert place.exchange(b"0", expected=None)
    found: list[bytes | None] = []

    def look() -> None:
        while not over.is_set():
            found.append(LinkedFiles(tmp_path).read())

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(100):
            assert place.exchange(b"%d" % (number + 1), expected=b"%d" % number)
    finally:
        over.set()
        reader.join(20)

    numbers = [int(one or b"-1") for one in found]
    assert numbers == sorted(numbers)
    assert min(numbers) >= 0
