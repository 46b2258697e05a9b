"""Groups: jobs, tickets, and what is left of a group that ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
import torch

from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.group import Group
from pliant.engine.comm.mesh import Port
from pliant.engine.comm.rendezvous import Rendezvous
from pliant.engine.comm.transport import SocketTransport
from pliant.engine.reduce.buckets import Layout


@contextmanager
def no_collection() -> Iterator[None]:
    """Let nothing that refers to itself be found: a long run may not look for hours."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_build_that_fails_keeps_no_connection() -> None:
    port, process = Port(), psutil.Process()

    def build_with_nobody(generation: int) -> None:
        rendezvous = Rendezvous(
            generation=generation,
            seats=[("r0", "127.0.0.1:1"), ("r1", port.endpoint), ("r2", "127.0.0.1:1")],
            replica="r1",
            secret=bytes(32),
            port=port,
            layout=Layout.of([]),
            deadline_s=0.3,
        )
        with pytest.raises(GroupBroken, match=r"not built within 0\.3 s"):
            SocketTransport().group(rendezvous)

    build_with_nobody(1)  # what is opened once, and kept
    gc.collect()
    before = process.num_fds()
    with no_collection():
        for generation in (2, 3, 4):
            build_with_nobody(generation)
        assert process.num_fds() <= before
    port.close()


def test_a_group_of_one_answers_at_once_and_fails_when_it_was_abandoned() -> None:
    group = Group.alone(1)

    assert group.all_gather(torch.tensor([3.0])).tolist() == [[3.0]]
    assert group.share("name", b"mine") == [b"mine"]

    group.abandon("told to")
    with pytest.raises(GroupBroken, match="told to"):
        group.all_gather(torch.ones(1))
