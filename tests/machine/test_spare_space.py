from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from pliant.machine.spare_space import LEAST_BYTES, SpareSpace


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
