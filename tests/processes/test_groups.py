"""Groups of real processes: what a kill, a stop and an abort do, and what is left afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
from tests.processes.crew import Member, crew, on_nudge

from pliant.engine.exchange import Plan, Reduction
from pliant.engine.groups import Abort, Group, GroupBroken, LayoutMismatch
from pliant.engine.layout import Layout
from pliant.engine.undertaker import UNDERTAKER

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

AT_ONCE_S = 1.0
"""Generous for a loaded machine; every other way out takes 10 s or more."""


def ending(act: Callable[[], Any]) -> tuple[str, float]:
    """Tell how a call ended, and when."""
    try:
        act()
    except GroupBroken as broken:
        return broken.reason, time.monotonic()
    return "fine", time.monotonic()


def gather(member: Member, generation: int) -> list[list[float]]:
    group = member.build(generation)
    rows = group.all_gather(torch.tensor([group.rank, 0.5], dtype=torch.float64))
    group.retire(grace_s=0.1)
    return rows.tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_everybody_learns_the_values_of_everybody(size: int) -> None:
    with crew(size) as members:
        for generation in (1, 2):
            rows = members.everybody(gather, generation)

            assert rows == [[[float(rank), 0.5] for rank in range(size)]] * size


# Building


def try_build(member: Member, shape: tuple[int, ...], deadline_s: float) -> tuple[str, float]:
    layout = Layout.of([("fc.bias", torch.empty(3)), ("fc.weight", torch.empty(shape))])
    try:
        group = member.build(1, layout=layout, deadline_s=deadline_s)
    except (GroupBroken, LayoutMismatch) as refused:
        return f"{type(refused).__name__}: {refused}", time.monotonic()
    group.retire(grace_s=0.1)
    return "built", time.monotonic()


def test_a_joiner_with_another_model_is_told_the_parameter_and_nobody_else_notices() -> None:
    with crew(3) as members:
        for rank, shape in enumerate([(4, 5), (4, 5), (4, 6)]):
            members.start(rank, try_build, shape, 2.0)

        outcomes = [members.result(rank)[0] for rank in range(3)]

    waited = "GroupBroken: group of generation 1: not built within 2 s"
    assert outcomes == [
        waited,
        waited,
        "LayoutMismatch: parameter 'fc.weight' is float32 [4, 6] on this worker "
        "but float32 [4, 5] on the members",
    ]


def build_until_nudged(member: Member, host: int) -> tuple[str, float]:
    abort = Abort()
    on_nudge(member, lambda: abort.set("a newer order came"))
    member.tell("building")
    return ending(lambda: member.build(1, host=host, abort=abort, deadline_s=30))


@pytest.mark.parametrize("host", [0, 2])
@pytest.mark.parametrize("trouble", [signal.SIGKILL, signal.SIGSTOP])
def test_a_build_with_a_lost_member_ends_when_it_is_aborted(
    host: int, trouble: signal.Signals
) -> None:
    """Rank 2 is lost; as host it takes the meeting point along."""
    with crew(3) as members:
        members.signal(2, trouble)
        for rank in (0, 1):
            members.start(rank, build_until_nudged, host)
        for rank in (0, 1):
            members.hear(rank)
        time.sleep(0.3)

        for rank in (0, 1):
            members.nudge(rank)
        aborted_at = time.monotonic()

        for rank in (0, 1):
            reason, ended_at = members.result(rank)
            assert reason == "a newer order came"
            assert ended_at - aborted_at < AT_ONCE_S


def build_again(member: Member) -> str:
    group = member.build(2, [0, 1])
    total = group.all_gather(torch.ones(1)).sum().item()
    group.retire(grace_s=0.1)
    return f"{group.size} members, {total:g}"


def test_a_host_killed_while_others_build_costs_only_that_attempt() -> None:
    with crew(3) as members:
        for rank in (0, 1):
            members.start(rank, build_until_nudged, 2)
        for rank in (0, 1):
            members.hear(rank)
        time.sleep(0.3)  # both wait for rank 2, who serves the store but has no order yet
        members.signal(2, signal.SIGKILL)
        time.sleep(0.3)
        for rank in (0, 1):
            members.nudge(rank)
            assert members.result(rank)[0] != "fine"

        for rank in (0, 1):
            members.start(rank, build_again)

        assert [members.result(rank) for rank in (0, 1)] == ["2 members, 2"] * 2


# Breaking


def reduce_for_ever(member: Member) -> tuple[str, float, bool]:
    """Reduce large buckets until the group breaks."""
    layout = Layout.of([("weight", torch.empty(2_500_000))])
    group = member.build(1, layout=layout)
    size = group.size
    plan = Plan.of(size, [range(rank, rank + 1) for rank in range(size)])
    reduction = Reduction(group, layout, plan)
    on_nudge(member, lambda: group.abandon("told to"))

    def steps() -> None:
        for step in range(1_000_000):
            reduction.launch(0, [torch.ones(2_500_000)])
            reduction.finish()
            if step == 3:
                member.tell("in the middle")

    reason, ended_at = ending(steps)
    group.abandon("done")  # of no effect: it is broken
    return reason, ended_at, group.buried.wait(2.0)


@pytest.mark.parametrize("size", [2, 3])
def test_a_kill_in_the_middle_of_a_bucket_breaks_the_group_of_the_others(size: int) -> None:
    with crew(size) as members:
        for rank in range(size):
            members.start(rank, reduce_for_ever)
        members.hear(0)
        time.sleep(0.02)

        members.signal(size - 1, signal.SIGKILL)
        killed_at = time.monotonic()

        for rank in range(size - 1):
            reason, ended_at, is_buried = members.result(rank)
            assert "closed" in reason or "reset" in reason.lower() or "Broken pipe" in reason
            assert ended_at - killed_at < AT_ONCE_S
            assert is_buried


@pytest.mark.parametrize("size", [2, 3])
def test_an_abort_wakes_who_waits_for_a_stopped_member_at_once(size: int) -> None:
    with crew(size) as members:
        for rank in range(size):
            members.start(rank, reduce_for_ever)
        members.hear(0)
        members.signal(size - 1, signal.SIGSTOP)
        time.sleep(0.3)

        for rank in range(size - 1):
            members.nudge(rank)
        aborted_at = time.monotonic()

        for rank in range(size - 1):
            _, ended_at, is_buried = members.result(rank)
            assert ended_at - aborted_at < AT_ONCE_S
            assert is_buried


def wait_too_long(member: Member) -> tuple[str, float]:
    group = member.build(1, collective_s=1.0)
    if group.rank == 1:
        time.sleep(3.0)
        return "slept", 0.0
    started_at = time.monotonic()
    reason, ended_at = ending(lambda: group.all_gather(torch.ones(1)))
    return reason, ended_at - started_at


def test_a_collective_has_a_deadline() -> None:
    with crew(2) as members:
        for rank in range(2):
            members.start(rank, wait_too_long)

        reason, took_s = members.result(0)

        assert reason
        assert took_s < 2.5


# What is left


def churn(member: Member, first: int, last: int) -> None:
    """Build, use and give up generations; the odd ones in the middle of a bucket."""
    layout = Layout.of([("weight", torch.empty(200_000))])
    plan = Plan.of(3, [range(rank, rank + 1) for rank in range(3)])
    groups: list[Group] = []
    reduction = None
    for generation in range(first, last):
        group = member.build(generation, layout=layout)
        group.all_gather(torch.ones(1))  # all have built it: none is abandoned half-built
        reduction = Reduction(group, layout, plan, previous=reduction)
        reduction.launch(0, [torch.ones(200_000)])
        if generation % 2:
            group.abandon("churn")
        else:
            ending(reduction.finish)
            group.retire(grace_s=0.2)
        groups.append(group)
    assert all(group.buried.wait(10) for group in groups)


def leftovers(_: Member, threads: int, descriptors: int) -> tuple[int, int]:
    """Count what is left; wait a while for it to come down to the given numbers.

    A store notices a moment later that the other members have closed their connections.
    """
    process = psutil.Process(os.getpid())
    deadline_at = time.monotonic() + 10.0
    while True:
        found = process.num_threads(), process.num_fds()
        if (found[0] <= threads and found[1] <= descriptors) or time.monotonic() > deadline_at:
            return found
        time.sleep(0.05)


def test_fifty_generations_leave_no_thread_and_no_descriptor() -> None:
    with crew(3) as members:
        members.everybody(churn, 1, 5)
        before = members.everybody(leftovers, 0, 0)

        members.everybody(churn, 5, 55)

        for rank, (threads, descriptors) in enumerate(before):
            members.start(rank, leftovers, threads, descriptors)
            left_threads, left_descriptors = members.result(rank)
            assert left_threads <= threads
            assert left_descriptors <= descriptors


def give_up_builds(member: Member, first: int, last: int) -> None:
    """Fail to build: rank 2 gives its group up while the others still connect."""
    for generation in range(first, last):
        with contextlib.suppress(GroupBroken):
            group = member.build(generation, deadline_s=1.0)
            if member.rank == 2:
                group.abandon("at once")
            elif member.rank == 1:
                time.sleep(0.01)
            group.abandon("soon")
    UNDERTAKER.wait_until_below(1, deadline_s=10)


def test_failed_builds_leave_no_thread_and_no_descriptor() -> None:
    with crew(3) as members:
        members.everybody(churn, 1, 5)
        before = members.everybody(leftovers, 0, 0)

        members.everybody(give_up_builds, 5, 25)

        for rank, (threads, descriptors) in enumerate(before):
            members.start(rank, leftovers, threads, descriptors)
            left_threads, left_descriptors = members.result(rank)
            assert left_threads <= threads
            assert left_descriptors <= descriptors


def test_a_closed_crew_leaves_no_process() -> None:
    with crew(2) as members:
        pids = [process.pid for process in members.processes]
        members.everybody(gather, 1)

    assert not any(psutil.pid_exists(pid) for pid in pids if pid)
