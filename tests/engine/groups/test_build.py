"""Groups are built by all or given up by each, at any moment, and leave nothing behind."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import pytest
import torch
from tests.engine.groups.circle import BOUND_S, Running, tls_contexts, wait_until

from pliant.engine.groups.build import GroupBuild
from pliant.engine.groups.ending import Abort, GroupBroken, LayoutMismatch
from pliant.engine.groups.group import Group
from pliant.engine.groups.port import Port
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.windows import WindowCache, WindowSize

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def ports() -> Iterator[list[Port]]:
    found = [Port() for _ in range(4)]
    yield found
    for port in found:
        port.close()


def build(
    ports: list[Port], rank: int, abort: Abort | None = None, *, generation: int = 1, **more: Any
) -> Running:
    given = {"secret": bytes(range(32)), "layout": Layout.of([]), "deadline_s": BOUND_S, **more}
    group_build = GroupBuild(
        generation=generation,
        seats=[(f"r{each}", port.endpoint) for each, port in enumerate(ports)],
        replica=f"r{rank}",
        port=ports[rank],
        collective_s=BOUND_S,
        abort=abort,
        **given,
    )
    return Running(group_build.run, f"rank {rank}")


def give_up(outcomes: list[Any]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Group):
            outcome.abandon("told to")


@pytest.mark.parametrize("seed", range(20))
def test_an_abort_at_any_moment_leaves_nothing(ports: list[Port], seed: int) -> None:
    rng = random.Random(seed)
    tls = tls_contexts() if seed % 2 else None
    process = psutil.Process()
    before = process.num_fds(), threading.active_count()
    aborts = [Abort() for _ in ports]
    order = rng.sample(range(4), rng.choice([3, 4, 4]))
    building = [build(ports, rank, aborts[rank], tls=tls) for rank in order]
    time.sleep(rng.random() * 0.02)

    for rank in order:
        aborts[rank].set("a newer order came")
    outcomes = [each.result() for each in building]
    give_up(outcomes)

    for outcome in outcomes:
        assert isinstance(outcome, Group) or outcome.reason == "a newer order came"
    wait_until(lambda: process.num_fds() <= before[0], "a descriptor is left")
    wait_until(lambda: threading.active_count() <= before[1], "a thread is left")


@pytest.mark.parametrize("rank", [1, 2])
def test_only_the_one_whose_layout_differs_is_told(ports: list[Port], rank: int) -> None:
    three = ports[:3]
    aborts = [Abort() for _ in three]
    layouts = [Layout.of([("w", torch.empty(2, 5 if each == rank else 4))]) for each in range(3)]
    building = [build(three, each, aborts[each], layout=layouts[each]) for each in range(3)]

    with pytest.raises(LayoutMismatch, match=r"'w' is float32 \[2, 5\] on this worker"):
        building[rank].result()

    others = [each for each in range(3) if each != rank]
    assert not any(building[each].ends_within(0.05) for each in others)
    again = build(three, rank, layout=layouts[0])
    groups = [building[each].result() for each in others] + [again.result()]
    assert all(isinstance(group, Group) for group in groups)
    give_up(groups)


@pytest.mark.parametrize("seed", range(10))
def test_abandon_and_retire_from_many_threads_end_it_once(ports: list[Port], seed: int) -> None:
    rng = random.Random(seed)
    before = threading.active_count()
    groups = [each.result() for each in [build(ports, rank) for rank in range(4)]]
    tickets = [
        group.submit(lambda comm: [comm.rows(torch.ones(50_000)) for _ in range(1000)])
        for group in groups
    ]
    time.sleep(rng.random() * 0.02)
    acts = [
        (group.abandon, (f"reason {number}",)) if rng.random() < 0.7 else (group.retire, ())
        for group in groups
        for number in range(3)
    ]
    acts += [(group.abandon, ("the last",)) for group in groups]

    for each in [Running(partial(act, *args)) for act, args in acts]:
        each.result()

    for group, ticket in zip(groups, tickets, strict=True):
        with pytest.raises(GroupBroken):
            ticket.wait(BOUND_S)
        with pytest.raises(GroupBroken):
            group.share("x", b"")
    wait_until(lambda: threading.active_count() <= before, "a thread is left")


def test_a_member_that_stops_after_the_meeting_costs_no_more_than_the_deadline(
    ports: list[Port], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not say whether it could map the others' windows."""
    stopped = threading.Event()
    mapped = GroupBuild._map_windows

    def stop(self: GroupBuild, *given: Any) -> Any:
        if self._rank == 1:
            stopped.wait(10)
            raise GroupBroken(1, "it woke")
        return mapped(self, *given)

    monkeypatch.setattr(GroupBuild, "_map_windows", stop)
    size = WindowSize(nbytes=4096)
    building = [
        build(ports[:2], rank, window_cache=WindowCache(), window_size=size, deadline_s=0.5)
        for rank in range(2)
    ]

    outcome = building[0].result()
    stopped.set()

    assert isinstance(outcome, GroupBroken)
    assert "no answer within" in outcome.reason
    building[1].result()
