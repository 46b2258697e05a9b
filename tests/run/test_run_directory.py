"""A run has a directory of its own, and is the same to its checkpoints in every life."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.coordinator.register import RegisterFile
from pliant.core.errors import ConfigError
from pliant.core.values import Generation, Incarnation, Lineage, Register
from pliant.run.run_directory import holder_of, new_directory


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


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        new_directory(tmp_path / "file" / "run", "gpt")


def test_an_empty_record_of_the_holder_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "holder").touch()  # the disk was full

    holder = holder_of(tmp_path, "train")

    assert holder.startswith("train-")
    assert holder_of(tmp_path, "train") == holder


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
