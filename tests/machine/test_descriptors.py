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

from pliant.machine.descriptors import SpareDescriptors, allow_many, check_free, shortage_of


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Let this process have few descriptors more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


SCARCE = """
import errno, os, resource
from pliant.machine.descriptors import SpareDescriptors

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0) + 20, hard))
spare = SpareDescriptors(2)

def is_full():
    try:
        os.dup(0)
    except OSError as error:
        return error.errno == errno.EMFILE
    return False

while not is_full():
    pass
for _ in range(3):
    with spare.lent():
        for fd in [os.dup(0) for _ in range(2)]:
            os.close(fd)
    assert is_full()
"""


def test_what_must_not_fail_finds_descriptors_when_there_are_none() -> None:
    """In a process of its own: threads that other tests have left open and close files here."""
    words = [sys.executable, "-c", SCARCE]

    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


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


@pytest.mark.usefixtures("few_descriptors")
def test_it_is_seen_whether_so_many_descriptors_are_free() -> None:
    check_free(5)
    taken = use_up()
    try:
        for fd in [taken.pop() for _ in range(3)]:
            os.close(fd)
        check_free(3)
        with pytest.raises(OSError, match="Too many open files"):
            check_free(4)
        check_free(3)  # none was kept
    finally:
        for fd in taken:
            os.close(fd)


def test_who_has_no_descriptor_is_told_how_many_there_may_be() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)

    own = shortage_of(OSError(errno.EMFILE, "Too many open files"))
    assert own == f"no file descriptor is free there (ulimit -n is {soft})"
    assert "whole machine" in shortage_of(OSError(errno.ENFILE, "Too many open files in system"))
    assert shortage_of(OSError(errno.ECONNREFUSED, "Connection refused")) == "Connection refused"
    assert shortage_of(OSError("several")) == "several"
