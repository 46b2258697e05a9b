"""What was kept is there when everything else is used up."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pliant.machine.descriptors import SpareDescriptors, allow_many, shortage_of


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Let this process have few descriptors more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


ALONE = """
import errno, os, resource

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0) + 20, hard))

def use_up():
    taken = []
    while True:
        try:
            taken.append(os.dup(0))
        except OSError as error:
            assert error.errno == errno.EMFILE
            return taken

"""
"""In a process of its own: threads that other tests have left open and close files in this one."""

SCARCE = """
from pliant.machine.descriptors import SpareDescriptors

spare = SpareDescriptors(2)
assert use_up()
for _ in range(3):
    with spare.lent():
        for fd in [os.dup(0) for _ in range(2)]:
            os.close(fd)
    assert not use_up()
"""

FEW = """
from pliant.machine.descriptors import check_free

check_free(5)
for fd in use_up()[:3]:
    os.close(fd)
check_free(3)
try:
    check_free(4)
except OSError as error:
    assert error.errno == errno.EMFILE
else:
    raise AssertionError("there were four")
check_free(3)  # none was kept
"""


def run_alone(code: str) -> None:
    """Run this where descriptors are few and nobody else takes any."""
    words = [sys.executable, "-c", ALONE + code]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_must_not_fail_finds_descriptors_when_there_are_none() -> None:
    run_alone(SCARCE)


def test_they_are_given_up_with_the_object() -> None:
    before = those_open()  # of these the garbage collector may close some meanwhile

    spare = SpareDescriptors(5)
    opened = those_open() - before
    assert len(opened) == 5
    del spare

    assert not opened & those_open()


def those_open() -> set[int]:
    """Return the descriptors that are open, without that of the look itself."""
    listed = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    return {fd for fd in listed if Path(f"/proc/self/fd/{fd}").exists()}


@pytest.mark.usefixtures("few_descriptors")
def test_a_process_may_have_as_many_as_its_user_may() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    allow_many(soft + 10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft + 10, hard)

    allow_many(soft)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft + 10, hard)


def test_it_is_seen_whether_so_many_descriptors_are_free() -> None:
    run_alone(FEW)


def test_who_has_no_descriptor_is_told_how_many_there_may_be() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)

    own = shortage_of(OSError(errno.EMFILE, "Too many open files"))
    assert own == f"no file descriptor is free there (ulimit -n is {soft})"
    assert "whole machine" in shortage_of(OSError(errno.ENFILE, "Too many open files in system"))
    assert shortage_of(OSError(errno.ECONNREFUSED, "Connection refused")) == "Connection refused"
    assert shortage_of(OSError("several")) == "several"
