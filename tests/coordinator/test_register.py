"""The register: durable, and never overwritten by a coordinator that did not read it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from tests.coordinator.register_file import RegisterFile

from pliant.coordinator import register as register_module
from pliant.coordinator.register import HeldRegister, StoredRegister
from pliant.coordinator.register_places import LockedFile
from pliant.core.errors import ConfigError, ConflictError, PermanentError, RegisterGoneError
from pliant.core.values import (
    Generation,
    Incarnation,
    Lineage,
    Order,
    Outcome,
    Register,
    ReplicaId,
    Seat,
)
from pliant.machine.locks import locked

FIRST = Register(incarnation=Incarnation(1), number=Generation(0), lineage=Lineage(1))
SECOND = replace(
    FIRST,
    number=Generation(2),
    newest=Order(
        generation=Generation(2),
        members=(Seat(replica=ReplicaId("r1"), endpoint="h:1"),),
        origin=ReplicaId("r1"),
    ),
    joiners=(ReplicaId("r1"),),
)


def test_what_was_written_is_read_by_the_next_coordinator(tmp_path: Path) -> None:
    register = RegisterFile(tmp_path / "register.json")

    register.write(FIRST, expected=None)
    register.write(SECOND, expected=FIRST)

    assert RegisterFile(tmp_path / "register.json").read() == SECOND


def test_who_has_another_token_cannot_take_over_a_job_that_goes_on(tmp_path: Path) -> None:
    """Its agents would not be let in: they train on, and the job would begin a second time."""
    place = LockedFile(tmp_path / "register.json")
    StoredRegister(place, "one").write(FIRST, expected=None)

    with pytest.raises(ConfigError, match=r"register\.json has another token: give this host the"):
        StoredRegister(place, "two").write(SECOND, expected=FIRST)
    assert StoredRegister(place).read() == FIRST
    assert b"one" not in (tmp_path / "register.json").read_bytes()

    StoredRegister(place, "one").write(SECOND, expected=FIRST)
    ended = replace(SECOND, outcome=Outcome(exit_code=3, reason="stopped"))
    StoredRegister(place, "one").write(ended, expected=SECOND)
    StoredRegister(place, "two").write(FIRST, expected=ended)


def test_who_runs_another_command_cannot_take_over_a_job_that_goes_on(tmp_path: Path) -> None:
    """Two jobs of one name and one token file: the first one's hosts would find no coordinator."""
    place, old = LockedFile(tmp_path / "register.json"), ("train.py", "--lr", "0.1")
    StoredRegister(place, "one", old).write(FIRST, expected=None)

    with pytest.raises(ConfigError, match=r"register\.json runs another command, and goes on; beg"):
        StoredRegister(place, "one", ("tune.py",)).write(SECOND, expected=FIRST)
    assert StoredRegister(place).read() == FIRST

    StoredRegister(place, "one", old).write(SECOND, expected=FIRST)
    ended = replace(SECOND, outcome=Outcome(exit_code=3, reason="stopped"))
    StoredRegister(place, "one", old).write(ended, expected=SECOND)
    StoredRegister(place, "one", ("tune.py",)).write(FIRST, expected=ended)


def test_what_this_coordinator_has_written_is_not_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = RegisterFile(tmp_path / "register.json")
    register.write(FIRST, expected=None)
    monkeypatch.setattr(register_module, "_parsed", None)
    monkeypatch.setattr(register_module, "_beside", None)

    register.confirm(FIRST)
    register.write(SECOND, expected=FIRST)

    assert register.read() == SECOND
    assert register.holds(SECOND)
    monkeypatch.undo()
    assert RegisterFile(tmp_path / "register.json").read() == SECOND


def test_nothing_is_recorded_at_first(tmp_path: Path) -> None:
    assert RegisterFile(tmp_path / "deep" / "register.json").read() is None


def test_a_coordinator_that_was_overtaken_cannot_write(tmp_path: Path) -> None:
    old, new = (RegisterFile(tmp_path / "register.json") for _ in range(2))
    old.write(FIRST, expected=None)
    new.write(replace(FIRST, incarnation=Incarnation(2)), expected=FIRST)

    with pytest.raises(ConflictError, match="incarnation 2"):
        old.write(SECOND, expected=FIRST)

    recorded = old.read()
    assert recorded is not None
    assert recorded.incarnation == 2


def test_a_first_write_over_a_register_is_a_conflict(tmp_path: Path) -> None:
    register = RegisterFile(tmp_path / "register.json")
    register.write(FIRST, expected=None)

    with pytest.raises(ConflictError):
        register.write(FIRST, expected=None)


def test_a_file_that_is_no_register_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "register.json"
    path.write_text('{"incarnation": "one"}')

    with pytest.raises(PermanentError, match="is no register"):
        RegisterFile(path).write(FIRST, expected=None)

    assert path.read_text() == '{"incarnation": "one"}'


def test_a_register_that_was_removed_is_named(tmp_path: Path) -> None:
    register = RegisterFile(tmp_path / "register.json")

    with pytest.raises(ConflictError, match=r"register\.json was removed while the job ran"):
        register.write(SECOND, expected=FIRST)


def test_a_register_is_locked_from_the_look_to_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two another coordinator must not write, or both believe that they decide."""
    register, seen = RegisterFile(tmp_path / "register.json"), []

    def look(*_: object, **__: object) -> None:
        with locked(tmp_path / "register.lock", within_s=0.0) as is_free:
            seen.append(is_free)

    monkeypatch.setattr("pliant.coordinator.register_places.replace_file", look)

    register.write(FIRST, expected=None)

    assert seen == [False]


def test_what_another_has_written_while_a_write_failed_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read after a failure is only believed to be ours if it is what we wrote."""
    monkeypatch.setattr(LockedFile, "write_again_s", (0.01, 0.01))
    path, other = tmp_path / "register.json", replace(FIRST, incarnation=Incarnation(2))
    file, real = RegisterFile(path), RegisterFile.write

    def write(self: RegisterFile, register: Register, *, expected: Register | None) -> None:
        monkeypatch.setattr(RegisterFile, "write", real)
        real(RegisterFile(path), other, expected=expected)
        raise OSError(5, "Input/output error")

    async def main() -> None:
        held = HeldRegister(file)
        await held.write(FIRST)
        monkeypatch.setattr(RegisterFile, "write", write)
        await held.write(SECOND)

    with pytest.raises(ConflictError, match="incarnation 2"):
        asyncio.run(main())

    assert file.read() == other


def test_what_another_has_written_alike_while_a_write_failed_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two start at one moment, with the same next incarnation: one of them must not go on."""
    monkeypatch.setattr(LockedFile, "write_again_s", (0.01, 0.01))
    path, real = tmp_path / "register.json", LockedFile.exchange

    def exchange(self: LockedFile, data: bytes, *, expected: bytes | None) -> bool:
        monkeypatch.setattr(LockedFile, "exchange", real)
        RegisterFile(path).write(FIRST, expected=None)
        raise OSError(110, "Connection timed out")

    async def main() -> None:
        held = HeldRegister(RegisterFile(path))
        monkeypatch.setattr(LockedFile, "exchange", exchange)
        await held.write(FIRST)

    with pytest.raises(ConflictError, match="incarnation 1"):
        asyncio.run(main())


def test_a_write_that_happens_after_it_was_looked_is_no_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that was asked in vain does it seconds later, between a look and the next try."""
    monkeypatch.setattr(LockedFile, "write_again_s", (0.01,) * 3)
    path, exchange, holds = tmp_path / "register.json", LockedFile.exchange, RegisterFile.holds
    late: list[bytes] = []

    def fail(_: LockedFile, data: bytes, *, expected: bytes | None) -> bool:
        del expected
        monkeypatch.setattr(LockedFile, "exchange", exchange)
        late.append(data)
        raise OSError(110, "Connection timed out")

    def look(self: RegisterFile, register: Register) -> bool:
        found = holds(self, register)
        if late:
            path.write_bytes(late.pop())
        return found

    async def main() -> None:
        held = HeldRegister(RegisterFile(path))
        await held.write(FIRST)
        monkeypatch.setattr(LockedFile, "exchange", fail)
        monkeypatch.setattr(RegisterFile, "holds", look)
        await held.write(SECOND)
        await held.confirm()

    asyncio.run(main())

    assert RegisterFile(path).read() == SECOND


def test_a_register_that_cannot_be_looked_at_after_a_write_failed_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its storage is away for a moment: neither writes nor reads come through."""
    monkeypatch.setattr(LockedFile, "write_again_s", (0.01,) * 9)
    away, real = iter(range(5)), LockedFile.read

    def read(self: LockedFile) -> bytes | None:
        if next(away, None) is not None:
            raise OSError(110, "Connection timed out")
        return real(self)

    monkeypatch.setattr(LockedFile, "read", read)

    asyncio.run(HeldRegister(RegisterFile(tmp_path / "register.json")).write(FIRST))

    assert RegisterFile(tmp_path / "register.json").read() == FIRST


def test_a_register_of_a_version_that_named_no_writer_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "register.json"
    path.write_bytes(TypeAdapter(Register).dump_json(FIRST))
    register = RegisterFile(path)

    assert register.read() == FIRST
    register.write(SECOND, expected=FIRST)

    assert register.holds(SECOND)


def test_what_another_coordinator_has_written_is_not_confirmed(tmp_path: Path) -> None:
    old, new = (RegisterFile(tmp_path / "register.json") for _ in range(2))
    old.write(FIRST, expected=None)
    old.confirm(FIRST)
    new.write(replace(FIRST, incarnation=Incarnation(2)), expected=FIRST)

    with pytest.raises(ConflictError, match="incarnation 2"):
        old.confirm(FIRST)


def test_a_sole_coordinator_without_register_opens_no_new_history(tmp_path: Path) -> None:
    place = tmp_path / "register.json"

    async def play() -> None:
        held = HeldRegister(RegisterFile(place), is_sole=True)
        await held.write(FIRST)
        place.unlink()
        await held.confirm()
        assert held.is_gone
        await held.write(replace(FIRST, number=Generation(7)))
        with pytest.raises(PermanentError, match="no new history may begin"):
            await held.write(replace(FIRST, lineage=Lineage(FIRST.lineage + 1)))

    asyncio.run(play())
    assert not place.exists()


def test_of_several_coordinators_none_goes_on_without_register(tmp_path: Path) -> None:
    place = tmp_path / "register.json"

    async def play() -> None:
        held = HeldRegister(RegisterFile(place))
        await held.write(FIRST)
        place.unlink()
        await held.confirm()

    with pytest.raises(RegisterGoneError, match="was removed while the job ran"):
        asyncio.run(play())
