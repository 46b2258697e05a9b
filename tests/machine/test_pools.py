"""A running pool is found from any directory; the sentence says what to type if there is none."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.machine import pools
from pliant.machine.discovery import Served, StateDirectory
from pliant.machine.granted_locks import make_entered
from pliant.machine.pools import find_pool, served_pools
from pliant.machine.shared_pools import listen, shared_pool


def record(directory: Path, name: str, pid: int | None = None) -> None:
    out = str(directory / name)
    values = {"pool": name, "url": "http://h", "pid": pid or os.getpid(), "out": out, "started": 1}
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


def test_a_pool_that_is_killed_while_it_stops_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "ENDING_S", 50.0)
    with subprocess.Popen(["sleep", "60"]) as process:
        record(tmp_path, "default", process.pid)
        pool, began_s = find_pool(None, tmp_path), time.monotonic()

        def kill() -> None:
            process.kill()
            process.wait()

        killing = threading.Timer(0.3, kill)
        killing.start()
        pools.wait_for_end(pool)
        killing.join()

    assert 0.2 < time.monotonic() - began_s < pools.ENDING_S / 2
    assert refused(None, tmp_path).startswith("no pool is running")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Lend a place of shared pools with two of them, and the trap of somebody."""
    with contextlib.ExitStack() as stack:
        for name in ("ml", "night", "trap"):
            make_entered(tmp_path / name, os.getegid())
            sock = listen(tmp_path / name, os.getegid(), waiting=8)
            stack.enter_context(contextlib.closing(sock))
        (tmp_path / "trap").chmod(0o777)
        yield tmp_path


def test_the_trap_of_somebody_hides_no_other_pool(place: Path) -> None:
    """A directory of mode 0777 with a socket: each report of each job would be lost."""
    assert find_pool("ml", place).name == "ml"
    assert [one.name for one in served_pools(place)] == ["ml", "night"]
    assert "trap may be changed by others" in refused("trap", place)
    assert refused(None, place).endswith("say which with --pool: ml, night")


def test_only_the_pool_that_is_named_is_asked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def looking(name: str, where: Path) -> Served | None:
        asked.append(name)
        return shared_pool(name, where)

    monkeypatch.setattr(pools, "shared_pool", looking)
    monkeypatch.setattr(pools, "shared_pools", lambda where: pytest.fail("all were asked"))

    assert find_pool("night", place).name == "night"
    assert asked == ["night"]


def test_a_pools_files_lie_beside_its_record() -> None:
    assert StateDirectory.of({"XDG_STATE_HOME": "/s"}).pools / "gpu" == Path("/s/pliant/pools/gpu")
