"""A worker's descriptors are all open, or none is."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.scene import in_a_loop

from pliant.agent.output import nobody_listens
from pliant.agent.worker import Worker
from pliant.core.values import ReplicaId

NEEDED = 7
"""The log, and both ends of a socket and of two pipes."""


def open_descriptors() -> set[int]:
    found = list(Path("/proc/self/fd").iterdir())
    return {int(path.name) for path in found if os.path.lexists(path)}  # not that of the listing


@contextmanager
def room_for(count: int) -> Iterator[None]:
    """Let this process open so many descriptors, and no more."""
    last, held = max(open_descriptors()), [-1]
    while held[-1] < last:  # a limit is on the highest number: leave none below it
        held.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held[1:]:
            os.close(fd)


async def opened(log: Path, room: int) -> tuple[int, ...]:
    """Open a worker and close it; return what the child would have got."""
    worker = Worker(ReplicaId("r1"), on_message=lambda _: None, on_refusal=lambda *_: None)
    try:
        with room_for(room):
            return await worker.open(log, nobody_listens)
    finally:
        worker.close()
        for _ in range(3):  # transports close their files when they come to it
            await asyncio.sleep(0)


@pytest.mark.parametrize("room", range(NEEDED))
@in_a_loop
async def test_without_room_for_all_descriptors_none_is_left_open(
    *, tmp_path: Path, room: int
) -> None:
    gc.collect()  # what other tests left may close meanwhile
    before = open_descriptors()

    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        await opened(tmp_path / "r1.log", room)

    assert open_descriptors() == before


@in_a_loop
async def test_with_room_for_all_the_childs_ends_are_left_to_who_starts_it(
    *, tmp_path: Path
) -> None:
    gc.collect()  # what other tests left may close meanwhile
    before = open_descriptors()

    ends = await opened(tmp_path / "r1.log", NEEDED + 4)  # threads of other tests may need some

    assert open_descriptors() == before | set(ends)
    for end in ends:
        os.close(end)


def test_a_worker_that_has_no_process_yet_is_not_silent() -> None:
    """Its fork server may import torch for a minute, while others of its replica wait for it."""
    worker = Worker(ReplicaId("r1"), on_message=lambda _: None, on_refusal=lambda *_: None)

    said = [worker.unsaid_life() for _ in range(5)]

    assert (said, worker.silent_looks) == ([None] * 5, 0)
