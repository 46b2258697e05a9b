"""What a process needs to run a pool."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.run import pool_host
from pliant.run.pool_config import PoolConfig
from pliant.run.pool_host import check, make_directory


def shared(records: Path) -> PoolConfig:
    return PoolConfig(name="ml", devices=1, default_devices=1, records=records, gid=os.getegid())


def test_members_find_a_shared_pool_whatever_the_umask_of_its_owner(tmp_path: Path) -> None:
    place = tmp_path / "lib" / "pools"
    before = os.umask(0o077)
    try:
        out = make_directory(shared(place))
    finally:
        os.umask(before)

    modes = [path.stat().st_mode & 0o777 for path in (place.parent, place, out)]
    assert modes == [0o755, 0o755, 0o710]


def test_a_place_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o751)

    make_directory(shared(tmp_path))

    assert tmp_path.stat().st_mode & 0o777 == 0o751


def test_where_processes_of_others_are_hidden_a_shared_pool_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would refuse every claim: their processes would not live here."""
    check(shared(tmp_path))
    monkeypatch.setattr(pool_host, "process_started", lambda pid: None)

    with pytest.raises(ConfigError, match="/proc hides them here"):
        check(shared(tmp_path))
