"""Groups that fail: what is left of them, and who is told."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from pliant.engine.groups.build import GroupBuild
from pliant.engine.groups.ending import GroupBroken
from pliant.engine.groups.gloo import StoreServer
from pliant.engine.groups.group import Group
from pliant.engine.groups.reaper import REAPER
from pliant.engine.reduce.buckets import Layout

SOON_S = 10.0


class LostSend:
    """A backend between whose ends the connection is closed, with an operation that never ends.

    Gloo loses one if its peer dies at the wrong moment; the processes of
    ``tests/processes/test_groups.py`` come upon that by chance.
    """

    def __init__(self, *, is_silent: bool) -> None:
        self.may_end = threading.Event()
        self._is_silent = is_silent

    def all_to_all(self, *_: Any) -> Any:
        never: torch.futures.Future[Any] = torch.futures.Future()
        return SimpleNamespace(get_future=lambda: never)

    def has_lost_a_peer(self) -> bool:
        return True

    def cut(self) -> None:
        pass

    def is_silent(self) -> bool:
        return self._is_silent

    def destroy(self) -> None:
        self.may_end.wait(SOON_S)


@pytest.fixture
def backends() -> Iterator[list[LostSend]]:
    made: list[LostSend] = []
    yield made
    for backend in made:
        backend.may_end.set()
    assert REAPER.wait_until_below(1, deadline_s=SOON_S)


def group_of(backend: LostSend) -> Group:
    return Group(
        generation=1,
        rank=0,
        size=2,
        backend=backend,  # type: ignore[arg-type]
        store=None,
        collective_s=1800.0,
    )


def test_who_waits_for_a_lost_operation_is_told_that_its_peer_is_gone(
    backends: list[LostSend],
) -> None:
    backends.append(LostSend(is_silent=True))

    with pytest.raises(GroupBroken, match="the connection of a member is closed"):
        group_of(backends[0]).all_gather(torch.ones(1))


def test_a_group_that_cannot_end_is_buried_once_it_is_silent(backends: list[LostSend]) -> None:
    backends.append(LostSend(is_silent=True))
    group = group_of(backends[0])

    group.abandon("a newer order came")

    assert group.quiesced.wait(SOON_S)


def test_a_group_that_may_still_write_is_not_buried_and_holds_up_no_other(
    backends: list[LostSend],
) -> None:
    backends.extend([LostSend(is_silent=False), LostSend(is_silent=True)])
    loud, silent = (group_of(backend) for backend in backends)

    loud.abandon("a newer order came")
    silent.abandon("a newer order came")

    assert silent.quiesced.wait(SOON_S)
    assert not loud.quiesced.is_set()
    backends[0].may_end.set()
    assert loud.quiesced.wait(SOON_S)


@contextmanager
def no_collection() -> Iterator[None]:
    """Let nothing that refers to itself be found: a long run may not look for hours."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_build_that_fails_keeps_no_connection() -> None:
    server, process = StoreServer(), psutil.Process()

    def build_with_nobody(generation: int) -> None:
        with pytest.raises(GroupBroken, match=r"not built within 0\.3 s"):
            GroupBuild(
                generation=generation,
                seats=[("r0", server.endpoint), ("r1", "127.0.0.1:1")],
                replica="r0",
                host="r0",
                server=server,
                layout=Layout.of([]),
                deadline_s=0.3,
            ).run()

    build_with_nobody(1)  # what is opened once, and kept
    gc.collect()
    before = process.num_fds()
    with no_collection():
        for generation in (2, 3, 4):
            build_with_nobody(generation)
        until_s = time.monotonic() + SOON_S
        while process.num_fds() > before and time.monotonic() < until_s:
            time.sleep(0.02)
        assert process.num_fds() <= before
