"""Locks keep other processes away; here other descriptors stand for them."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.machine.nfs import lock_as_on_nfs

from pliant.machine.files import replace_file
from pliant.machine.interfaces import user_name
from pliant.machine.locks import (
    held,
    held_file,
    lock,
    lock_file,
    lock_is_held,
    locked,
    who_holds,
)


def test_a_lock_is_refused_at_once_or_after_its_time(tmp_path: Path) -> None:
    began_s = time.monotonic()

    with locked(tmp_path / "a.lock") as first, locked(tmp_path / "a.lock", within_s=0) as second:
        assert (first, second) == (True, False)
    with locked(tmp_path / "b") as first, locked(tmp_path / "b", within_s=0.1) as second:
        assert (first, second) == (True, False)

    assert time.monotonic() - began_s >= 0.1


def test_who_shares_a_lock_tolerates_others_who_do(tmp_path: Path) -> None:
    path = tmp_path / "running.lock"

    with locked(path, shared=True), locked(path, shared=True, within_s=0) as second:
        assert second
        with locked(path, within_s=0) as alone:
            assert not alone
    with locked(path, within_s=0) as afterwards:
        assert afterwards


def test_a_lock_that_is_not_given_back_is_waited_for_so_long_and_its_holder_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "register.lock"
    who = f"process {os.getpid()} of user {user_name(os.getuid())}"
    sentence = f"{who} has held its lock for 0.05 s"
    for hold in (held, held_file):
        with locked(path), pytest.raises(TimeoutError, match=sentence), hold(path, within_s=0.05):
            raise AssertionError("two hold one lock")


def test_a_file_is_locked_as_it_is_by_then(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    path.write_text("old")
    first = lock_file(path, within_s=0)
    assert first is not None

    with ThreadPoolExecutor() as pool:
        second = pool.submit(lock_file, path, within_s=30)
        replace_file(path, b"new")
        third = lock_file(path, within_s=0)  # unless the second came only now
        os.close(first)
        if third is not None:
            os.close(third)
        fd = second.result(30)

    assert fd is not None
    with os.fdopen(fd) as file:
        assert file.read() == "new"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_who_runs_is_seen_on_nfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, mode: int
) -> None:
    path = tmp_path / "running.lock"
    path.touch(mode)
    if mode == 0o600:
        monkeypatch.setattr(fcntl, "flock", lock_as_on_nfs)
    assert not lock_is_held(path)

    with path.open("rb+" if mode == 0o600 else "rb") as file:
        assert lock(file.fileno(), shared=shared)
        assert lock_is_held(path)

    assert not lock_is_held(path)


def test_a_lock_whose_taker_is_gone_is_what_it_has_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "3.lock"
    assert who_holds(path) == "another process"
    takes = "import fcntl, os, subprocess, sys; fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)\n"
    takes += "fcntl.flock(fd, fcntl.LOCK_EX)\n"
    takes += "print(subprocess.Popen(['sleep', '60'], pass_fds=[fd], stdout=2).pid, flush=True)"
    taker = subprocess.Popen(
        [sys.executable, "-c", takes, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    left = int(taker.communicate()[0])
    try:
        assert who_holds(path) == f"what process {taker.pid} has left behind"
    finally:
        os.kill(left, signal.SIGKILL)
