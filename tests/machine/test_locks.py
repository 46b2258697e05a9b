"""Locks keep other processes away; here other descriptors stand for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pliant.machine.locks import held, locked, who_holds
from pliant.machine.peers import user_name


def test_a_lock_is_refused_at_once_or_after_its_time(tmp_path: Path) -> None:
    began_s = time.monotonic()

    with locked(tmp_path / "a.lock") as first, locked(tmp_path / "a.lock", within_s=0) as second:
        assert (first, second) == (True, False)
    with locked(tmp_path) as first, locked(tmp_path, within_s=0.1) as second:
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
    for path in (tmp_path, tmp_path / "register.lock"):
        who = f"process {os.getpid()} of user {user_name(os.getuid())}"
        sentence = f"{who} has held its lock for 0.05 s"
        with locked(path), pytest.raises(TimeoutError, match=sentence), held(path, within_s=0.05):
            raise AssertionError("two hold one lock")


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
