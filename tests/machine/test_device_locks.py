"""A device is used by one process at a time, whatever anybody says; seen from other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pliant.machine.device_locks import (
    claim_on,
    end_holders,
    holders,
    is_free,
    path_of,
    take_device,
)

HOLDER = """
import subprocess, sys
from pathlib import Path
from pliant.machine.device_locks import take_device
lock = take_device(Path(sys.argv[1]), 3, claim=sys.argv[2])
if len(sys.argv) > 3:
    child = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fd], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
else:
    print("held" if lock else "taken", flush=True)
sys.stdin.read()
"""

Starter = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    started = []

    def starting(claim: str, *more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path), claim, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield starting
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_of_two_that_want_a_device_one_has_it(tmp_path: Path, start: Starter) -> None:
    assert said(start("gpt")) == "held"

    assert take_device(tmp_path, 3, claim="mine", within_s=0) is None
    assert not is_free(tmp_path, 3)
    assert claim_on(tmp_path, 3) == "gpt"


def test_dying_frees_a_device(tmp_path: Path, start: Starter) -> None:
    holder = start("gpt")
    said(holder)

    holder.kill()
    holder.wait()

    assert is_free(tmp_path, 3)
    lock = take_device(tmp_path, 3, claim="mine", within_s=0)
    assert lock is not None
    assert claim_on(tmp_path, 3) == "mine"
    lock.release()
    lock.release()
    assert is_free(tmp_path, 3)


def test_a_look_does_not_keep_anybody_from_a_device(tmp_path: Path) -> None:
    assert is_free(tmp_path, 3)
    assert not path_of(tmp_path, 3).exists()
    lock = take_device(tmp_path, 3, claim="gpt")
    assert lock is not None
    lock.release()

    assert is_free(tmp_path, 3)


def test_who_shares_a_lock_holds_the_device_as_well(tmp_path: Path, start: Starter) -> None:
    holder = start("gpt", "with a child")
    child = int(said(holder))
    assert {found.pid for found in holders(tmp_path, 3)} == {holder.pid, child}

    holder.kill()
    holder.wait()

    assert not is_free(tmp_path, 3)
    assert [found.pid for found in holders(tmp_path, 3)] == [child]
    assert end_holders(tmp_path, 3, claim="gpt") == [child]
    assert freed(tmp_path)


def test_who_still_shares_a_lock_that_was_given_back_is_known(tmp_path: Path) -> None:
    lock = take_device(tmp_path, 3, claim="gpt")
    assert lock is not None
    child = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fd])

    lock.release()

    assert [found.pid for found in holders(tmp_path, 3)] == [child.pid]
    assert end_holders(tmp_path, 3, claim="gpt") == [child.pid]
    assert child.wait(5) == -9


def test_only_who_took_the_device_for_that_claim_is_ended(tmp_path: Path, start: Starter) -> None:
    holder = start("gpt")
    said(holder)

    assert end_holders(tmp_path, 3, claim="other") == []
    assert holder.poll() is None
    assert end_holders(tmp_path, 3, claim="gpt") == [holder.pid]
    assert holder.wait(5) == -9


def test_who_only_looks_into_the_file_is_never_ended(tmp_path: Path, start: Starter) -> None:
    holder = start("gpt")
    said(holder)
    with path_of(tmp_path, 3).open():
        assert [found.pid for found in holders(tmp_path, 3)] == [holder.pid]


def test_who_took_a_device_without_writing_for_whom_is_never_ended(tmp_path: Path) -> None:
    """A person with ``flock 3.lock sleep 60``, over what a killed worker had left in the file."""
    path_of(tmp_path, 3).write_text(f'{{"claim": "gpt", "pid": {os.getppid()}}}')
    person = locking(tmp_path)
    try:
        assert end_holders(tmp_path, 3, claim="gpt") == []
        assert person.poll() is None
    finally:
        for found in holders(tmp_path, 3):
            os.kill(found.pid, signal.SIGKILL)
        person.wait(5)


@pytest.mark.parametrize("of_its_user", [True, False])
def test_of_what_holds_a_granted_device_only_processes_of_its_user_are_ended(
    tmp_path: Path, of_its_user: bool
) -> None:
    """Who was given a file can hand it, open and locked, to anybody's process."""
    uid = os.getuid() if of_its_user else os.getuid() + 1
    path_of(tmp_path, 3).write_text(json.dumps({"claim": "ada/gpt", "pid": 0, "uid": uid}))
    holder = locking(tmp_path)
    found = {one.pid for one in holders(tmp_path, 3)}

    ended = end_holders(tmp_path, 3, claim="ada/gpt")

    assert set(ended) == (found if of_its_user else set())
    assert holder.poll() is None or of_its_user
    for pid in found - set(ended):
        os.kill(pid, signal.SIGKILL)
    holder.wait(5)


def test_a_pipe_in_place_of_a_devices_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(path_of(tmp_path, 3))

    assert not is_free(tmp_path, 3)
    assert claim_on(tmp_path, 3) == ""
    with pytest.raises(OSError, match="no regular file"):
        take_device(tmp_path, 3, claim="gpt", within_s=0)


def locking(directory: Path) -> subprocess.Popen[bytes]:
    """Start what locks a device as a person does; return once it and its child hold the lock."""
    person = subprocess.Popen(["flock", str(path_of(directory, 3)), "sleep", "60"])
    while len(holders(directory, 3)) < 2:
        assert person.poll() is None
    return person


def freed(directory: Path) -> bool:
    lock = take_device(directory, 3, claim="mine", within_s=5)
    if lock is not None:
        lock.release()
    return lock is not None
