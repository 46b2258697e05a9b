"""Where workers meet: what is made, and which of those that others have left is removed."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pliant.agent import rendezvous_directory
from pliant.agent.rendezvous_directory import HELD, OWNER, make_meeting_place, remove_abandoned
from pliant.machine.processes import ProcessMark

OTHER_BOOT = "00000000-0000-0000-0000-000000000000 pid:[1]"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the only place that there is, with a path that is short enough."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        monkeypatch.setattr(rendezvous_directory, "_places", lambda: [directory])
        yield Path(directory)


@pytest.fixture(scope="module")
def dead() -> ProcessMark:
    """Return a process that has ended."""
    words = "import sys; sys.stdout.write(repr(process_mark.ProcessMark.own()))"
    text = f"import pliant.machine.processes as process_mark; {words}"
    said = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    found: ProcessMark = eval(said.stdout, {"ProcessMark": ProcessMark})
    return found


def leave(place: Path, owner: ProcessMark | None, **changed: Any) -> Path:
    """Leave one as an agent would that is killed together with its fork server."""
    path = Path(tempfile.mkdtemp(prefix="pliant-", dir=place))
    (path / "r1").mkdir()
    (path / "r1" / "held").touch()
    if owner is not None:
        (path / OWNER).write_text(json.dumps({**asdict(owner), **changed}))
    return path


def test_what_is_made_says_whose_it_is_and_stays_while_that_one_lives(place: Path) -> None:
    made = make_meeting_place()

    remove_abandoned()

    assert made.path.parent == place
    assert made.path.stat().st_mode & 0o777 == 0o700
    assert ProcessMark.of(json.loads((made.path / OWNER).read_text())) == ProcessMark.own()
    made.remove()
    assert list(place.iterdir()) == []


def test_that_of_an_agent_that_has_ended_is_removed(place: Path, dead: ProcessMark) -> None:
    left = [leave(place, dead), leave(place, dead, machine=OTHER_BOOT)]

    remove_abandoned()

    assert [path for path in left if path.exists()] == []


def in_another_namespace(path: Path, **changed: Any) -> None:
    """Let what is left be of an agent whose process id means nothing here."""
    boot = ProcessMark.own().machine.split()[0]
    said = json.loads((path / OWNER).read_text())
    said |= {"machine": f"{boot} pid:[1]", "host": "a container", **changed}
    (path / OWNER).write_text(json.dumps(said))


def test_that_of_another_namespace_stays_while_its_agent_holds_it(place: Path) -> None:
    """Containers of one machine may share ``/tmp``; one is killed with all that is in it."""
    made = make_meeting_place()
    in_another_namespace(made.path)

    remove_abandoned()
    assert made.path.exists()

    os.close(made.held)  # as when its agent is killed
    remove_abandoned()
    assert list(place.iterdir()) == []


def test_that_of_another_boot_stays_while_its_agent_holds_it(place: Path) -> None:
    """Of virtual machines of one name that share the directory each has a boot of its own."""
    made = make_meeting_place()
    in_another_namespace(made.path, machine=OTHER_BOOT, host=ProcessMark.own().host)

    remove_abandoned()
    assert made.path.exists()

    os.close(made.held)
    remove_abandoned()
    assert list(place.iterdir()) == []


def test_that_of_another_namespace_stays_where_its_lock_says_nothing(
    place: Path, dead: ProcessMark
) -> None:
    """It was not locked, as by a version before; the lock is gone; it is of another boot."""
    kept = [leave(place, dead), leave(place, dead, is_held=True), leave(place, dead, is_held=True)]
    for path in kept:
        in_another_namespace(path)
    (kept[0] / HELD).touch()
    (kept[2] / HELD).touch()
    in_another_namespace(kept[2], machine=OTHER_BOOT)

    remove_abandoned()

    assert all((path / "r1" / "held").exists() for path in kept)


def test_one_is_made_where_there_are_no_locks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def has_none(*_: object, **__: object) -> bool:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(rendezvous_directory, "lock", has_none)
    made = make_meeting_place()
    in_another_namespace(made.path)

    remove_abandoned()

    assert made.path.exists()
    made.remove()


def test_what_may_be_anothers_stays(
    place: Path, dead: ProcessMark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an owner, of another host, of a process that is there, by a link, cut off."""
    kept = [
        leave(place, None),
        leave(place, dead, machine=OTHER_BOOT, host="another"),
        leave(place, ProcessMark.own()),
        leave(tmp_path, dead),
        leave(place, dead),
    ]
    (place / "pliant-linked").symlink_to(kept[3])
    (kept[4] / OWNER).write_text('{"pid": ')
    (place / "pliant-file").touch()

    remove_abandoned()

    assert all((path / "r1" / "held").exists() for path in kept)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    others = leave(place, dead)
    remove_abandoned()
    assert others.exists()


def test_one_is_made_elsewhere_where_no_directory_takes_temporary_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", full)

    make_meeting_place().remove()


def test_one_that_cannot_say_whose_it_is_is_not_left(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rendezvous_directory, "write_new", is_full)

    with pytest.raises(OSError, match="no directory to meet in"):
        make_meeting_place()

    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("place")
def test_who_has_no_descriptor_for_one_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_none(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(rendezvous_directory, "open_private", has_none)

    with pytest.raises(OSError, match="no file descriptor is free"):
        make_meeting_place()
