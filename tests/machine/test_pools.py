"""A running pool is found from any directory; the sentence says what to type if there is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.machine.discovery import StateDirectory
from pliant.machine.pools import find_pool


def record(directory: Path, name: str) -> None:
    values = {"pool": name, "url": "http://h", "pid": os.getpid(), "out": "/o", "started": 1.0}
    (directory / f"{name}.json").write_text(json.dumps(values))
    (directory / f"{name}.token").write_text("secret\n")


def refused(name: str | None, directory: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        find_pool(name, directory)
    return str(caught.value)


def test_the_only_pool_is_found(tmp_path: Path) -> None:
    record(tmp_path, "default")

    pool = find_pool(None, tmp_path)

    assert (pool.name, pool.url, pool.token()) == ("default", "http://h", "secret")


def test_without_a_pool_it_says_how_to_start_one(tmp_path: Path) -> None:
    start = "pliant pool start --devices N"
    assert refused(None, tmp_path) == f"no pool is running; start one with {start}"
    assert refused("a", tmp_path) == (f"no pool named a is running; start it with {start} --name a")


def test_among_several_it_asks_which(tmp_path: Path) -> None:
    record(tmp_path, "a")
    record(tmp_path, "b")

    assert refused(None, tmp_path) == ("several pools are running, say which with --pool: a, b")
    assert refused("c", tmp_path) == "no pool named c is running; running: a, b"
    assert find_pool("b", tmp_path).name == "b"


def test_a_pools_files_lie_beside_its_record() -> None:
    assert StateDirectory.of({"XDG_STATE_HOME": "/s"}).pools / "gpu" == Path("/s/pliant/pools/gpu")
