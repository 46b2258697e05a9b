"""Groups of real processes: what a kill, a stop and an abort do, and what is left afterwards."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from operator import le
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.processes.crew import Crew, Member, crew, on_nudge

from pliant.core.step import batching
from pliant.engine.comm.communicator import Communicator, GroupBroken, LeftAlone, WindowSize
from pliant.engine.comm.rendezvous import Abort, LayoutMismatch
from pliant.engine.comm.windows import Window
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.exchange import Reduction
from pliant.engine.reduce.plan import ReductionPlan

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

AT_ONCE_S = 4.0
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
    group.retire()
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
    group.retire()
    return "built", time.monotonic()


def test_a_joiner_with_another_model_is_told_the_parameter_and_nobody_else_notices() -> None:
    with crew(3) as members:
        for rank, shape in enumerate([(4, 5), (4, 5), (4, 6)]):
            members.start(rank, try_build, shape, 2.0)

        outcomes = [members.result(rank)[0] for rank in range(3)]

    waited = "GroupBroken: group of generation 1: not built within 2 s; not there: "
    missing = [outcome.removeprefix(waited).split(", ") for outcome in outcomes[:2]]
    assert all("r2" in names for names in missing)  # others too, where one gives up first
    assert outcomes[2:] == [
        "LayoutMismatch: parameter 'fc.weight' is float32 [4, 6] on this worker "
        "but float32 [4, 5] on the members",
    ]


def build_until_nudged(member: Member) -> tuple[str, float]:
    abort = Abort()
    on_nudge(member, lambda: abort.set("a newer order came"))
    member.tell("building")
    return ending(lambda: member.build(1, abort=abort, deadline_s=30))


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("trouble", [signal.SIGKILL, signal.SIGSTOP])
def test_a_build_with_a_lost_member_ends_when_it_is_aborted(
    lost: int, trouble: signal.Signals
) -> None:
    """The first one is greeted first by the others, the last one is waited for."""
    with crew(3) as members:
        others = [rank for rank in range(3) if rank != lost]
        members.signal(lost, trouble)
        for rank in others:
            members.start(rank, build_until_nudged)
        for rank in others:
            members.hear(rank)
        time.sleep(0.3)

        for rank in others:
            members.nudge(rank)
        aborted_at = time.monotonic()

        for rank in others:
            reason, ended_at = members.result(rank)
            assert reason == "a newer order came"
            assert ended_at - aborted_at < AT_ONCE_S


def build_again(member: Member) -> str:
    group = member.build(2, [0, 1])
    total = group.all_gather(torch.ones(1)).sum().item()
    group.retire()
    return f"{group.size} members, {total:g}"


def test_a_member_killed_while_others_build_costs_only_that_attempt() -> None:
    with crew(3) as members:
        for rank in (0, 1):
            members.start(rank, build_until_nudged)
        for rank in (0, 1):
            members.hear(rank)
        time.sleep(0.3)  # both wait for rank 2, who has no order yet
        members.signal(2, signal.SIGKILL)
        time.sleep(0.3)
        for rank in (0, 1):
            members.nudge(rank)
            assert members.result(rank)[0] != "fine"

        for rank in (0, 1):
            members.start(rank, build_again)

        assert [members.result(rank) for rank in (0, 1)] == ["2 members, 2"] * 2


# Breaking


def reduce_for_ever(member: Member, way: str) -> tuple[str, float]:
    """Reduce large buckets until the group breaks."""
    layout = Layout.of([("weight", torch.empty(2_500_000))])
    size = len(member.endpoints)
    plan = ReductionPlan.of(size, [range(rank, rank + 1) for rank in range(size)])
    group = member.build(1, layout=layout, plan=plan if way == "windows" else None)
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
    return reason, ended_at


@pytest.mark.parametrize("way", ["windows", "sockets"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_kill_in_the_middle_of_a_bucket_breaks_the_group_of_the_others(
    size: int, way: str
) -> None:
    with crew(size) as members:
        for rank in range(size):
            members.start(rank, reduce_for_ever, way)
        members.hear(0)
        time.sleep(0.02)

        members.signal(size - 1, signal.SIGKILL)
        killed_at = time.monotonic()

        for rank in range(size - 1):
            reason, ended_at = members.result(rank)
            assert "closed" in reason or "reset" in reason or "broken pipe" in reason
            assert ended_at - killed_at < AT_ONCE_S


@pytest.mark.parametrize("way", ["windows", "sockets"])
@pytest.mark.parametrize("size", [2, 3])
def test_an_abort_wakes_who_waits_for_a_stopped_member_at_once(size: int, way: str) -> None:
    with crew(size) as members:
        for rank in range(size):
            members.start(rank, reduce_for_ever, way)
        members.hear(0)
        members.signal(size - 1, signal.SIGSTOP)
        time.sleep(0.3)

        for rank in range(size - 1):
            members.nudge(rank)
        aborted_at = time.monotonic()

        for rank in range(size - 1):
            _, ended_at = members.result(rank)
            assert ended_at - aborted_at < AT_ONCE_S


NUMEL = 1_500_000


def train(
    member: Member, generation: int, ranks: list[int], num_steps: int, stop_at: int | None = None
) -> tuple[int, str]:
    """Reduce through windows; return how many results were right, and what ended it.

    Every step has other values, and what a member reads a step too early or too late is wrong.
    At ``stop_at`` rank 2 stops when it is about to copy the others' shards.
    """
    layout = Layout.of([("weight", torch.empty(NUMEL))])
    owned = batching.ownership(12, len(ranks))
    plan = ReductionPlan.of(12, owned)
    group = member.build(generation, ranks, layout=layout, plan=plan)
    assert group.shared is not None
    reduction = Reduction(group, layout, plan, previous=member.kept.get("reduction"))
    member.kept["reduction"] = reduction
    nodes = batching.subtrees(12, owned[group.rank])
    if member.rank < 2:
        on_nudge(member, lambda: group.abandon("told to"))
    meet = Communicator.meet
    meetings = 0

    def meet_and_stop(comm: Communicator, ranks: Iterable[int] | None = None) -> None:
        nonlocal meetings
        meet(comm, ranks)
        meetings += 1
        if member.rank == 2 and stop_at is not None and meetings == 2 * stop_at + 2:
            os.kill(os.getpid(), signal.SIGSTOP)

    Communicator.meet = meet_and_stop  # type: ignore[assignment,method-assign]
    step = 0
    try:
        for step in range(num_steps):
            factor = 1000 * generation + step
            for node, flat in zip(nodes, reduction.lent[0], strict=True):
                flat.fill_(float((node.hi - node.lo) * factor))
            reduction.launch(0, reduction.lent[0])
            (reduced,) = reduction.finish()
            assert bool((reduced == 12.0 * factor).all()), f"step {step} is wrong"
            if step == 3:
                member.tell("in the middle")
            group.all_gather(torch.ones(1))
    except GroupBroken as broken:
        return step, broken.reason
    finally:
        Communicator.meet = meet  # type: ignore[method-assign]
    group.retire()
    return num_steps, "done"


def wait_until_stopped(members: Crew, rank: int) -> None:
    process = psutil.Process(members.processes[rank].pid)
    deadline_at = time.monotonic() + 10.0
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline_at
        time.sleep(0.01)


def test_a_nudge_is_for_the_function_that_waits_now() -> None:
    """The one before took it, or took its own late: nobody told a member to abandon its group, or
    one was told that had just begun."""
    mine, theirs = multiprocessing.Pipe()
    member = Member(0, Any, theirs)  # type: ignore[arg-type]  # it meets nobody
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(20):
        on_nudge(member, partial(heard.put, number))

    mine.send(None)

    assert heard.get(timeout=30) == 19
    mine.close()


@pytest.mark.parametrize("hosts", [[[0, 1, 2]], [[0, 2], [1, 3]]], ids=["one", "two"])
def test_a_stopped_member_that_wakes_late_takes_no_wrong_result_and_disturbs_nobody(
    hosts: list[list[int]],
) -> None:
    """The others go on in the same windows; it stops when it reads, or at any other moment."""
    everybody = sorted(rank for host in hosts for rank in host)
    others = [rank for rank in everybody if rank != 2]
    with crew(len(everybody)) as members:
        members.divide(hosts)
        for trial in range(5):
            stop_at = 6 if trial < 2 else None
            for rank in everybody:
                members.start(rank, train, 2 * trial + 1, everybody, 1_000_000, stop_at)
            for rank in everybody:
                members.hear(rank)
            if stop_at is None:
                time.sleep(0.005 * trial)
                members.signal(2, signal.SIGSTOP)
            wait_until_stopped(members, 2)
            for rank in (0, 1):
                members.nudge(rank)
            for rank in others:
                assert members.result(rank)[1] != "done"
            for rank in others:
                members.start(rank, train, 2 * trial + 2, others, 12)
            for rank in others:
                members.hear(rank)

            members.signal(2, signal.SIGCONT)

            num_right, reason = members.result(2)
            assert num_right >= 3
            assert reason != "done"
            for rank in others:
                assert members.result(rank) == (12, "done")


def reduce_where_one_is_blind(
    member: Member, blind: int
) -> tuple[tuple[tuple[int, ...], ...], float]:
    """Reduce where one member offers no window."""
    layout = Layout.of([("weight", torch.empty(100_000))])
    plan = ReductionPlan.of(3, [range(rank, rank + 1) for rank in range(3)])
    group = member.build(1, layout=layout, plan=None if member.rank == blind else plan)
    reduction = Reduction(group, layout, plan)
    reduction.launch(0, [torch.full((100_000,), float(member.rank + 1))])
    (reduced,) = reduction.finish()
    hosts = () if group.shared is None else group.shared.hosts
    outcome = hosts, float(reduced.mean())
    group.all_gather(torch.ones(1))
    group.retire()
    return outcome


def test_where_one_member_has_no_window_the_others_use_theirs() -> None:
    with crew(3) as members:
        found = members.everybody(reduce_where_one_is_blind, 1)

    assert found == [(((0, 2), (1,)), 6.0)] * 3


def hide(member: Member) -> None:
    """Say where no window is, as in a container with processes of its own."""
    provide = member.transport.window_cache.provide

    def elsewhere(size: WindowSize) -> Window:
        window = provide(size)
        window.address = replace(window.address, pid=2**22 + 1)
        return window

    member.transport.window_cache.provide = elsewhere  # type: ignore[method-assign]


def test_where_one_window_cannot_be_mapped_the_others_use_theirs() -> None:
    with crew(3) as members:
        members.start(2, hide)
        members.result(2)

        found = members.everybody(reduce_where_one_is_blind, -1)

    assert found == [(((0, 1), (2,)), 6.0)] * 3


def test_where_nobody_can_map_anything_all_use_their_sockets() -> None:
    with crew(3) as members:
        members.divide([[0], [1], [2]])

        assert members.everybody(reduce_where_one_is_blind, -1) == [((), 6.0)] * 3


def wait_too_long(member: Member) -> tuple[str, float]:
    group = member.build(1, collective_s=1.0)
    if group.rank == 1:
        member.nudges.poll(60)
        return "came never", 0.0
    return ending(lambda: group.all_gather(torch.ones(1)))


def test_a_collective_has_a_deadline() -> None:
    with crew(2) as members:
        for rank in range(2):
            members.start(rank, wait_too_long)

        reason, _ = members.result(0)
        members.nudge(1)

        assert reason != "fine"


# What is left


def churn(member: Member, first: int, last: int) -> None:
    """Build, use and give up generations; the odd ones in the middle of a bucket.

    Every fifth has no windows, and every seventh needs larger ones.
    """
    layout = Layout.of([("weight", torch.empty(200_000))])
    plan = ReductionPlan.of(3, [range(rank, rank + 1) for rank in range(3)])
    large = ReductionPlan.of(24, [range(7), range(7, 17), range(17, 24)])
    reduction = None
    for generation in range(first, last):
        offered = large if generation % 7 == 0 else plan if generation % 5 else None
        group = member.build(generation, layout=layout, plan=offered)
        with contextlib.suppress(GroupBroken):  # another has all, and abandons it already
            group.all_gather(torch.ones(1))  # all have built it: none is abandoned half-built
        reduction = Reduction(group, layout, plan, previous=reduction)
        reduction.launch(0, [torch.ones(200_000)])
        if generation % 2:
            group.abandon("churn")
        else:
            ending(reduction.finish)
            group.retire()
    reduction = None  # an error that was suppressed keeps this frame until garbage is collected


def leftovers(_: Member, *limits: int) -> tuple[int, ...]:
    """Count threads, descriptors and mapped windows; wait a while until they are no more.

    A store notices a moment later that the other members have closed their connections.
    """
    process = psutil.Process(os.getpid())
    deadline_at = time.monotonic() + 10.0
    while True:
        mapped = Path("/proc/self/maps").read_text().count("pliant-window")
        found = process.num_threads(), process.num_fds(), mapped
        if time.monotonic() > deadline_at or all(map(le, found, limits)):
            return found
        time.sleep(0.05)


@pytest.mark.soak
def test_fifty_generations_leave_no_thread_no_descriptor_and_no_window() -> None:
    with crew(3) as members:
        members.everybody(churn, 1, 5)
        before = members.everybody(leftovers, 0, 0, 0)

        members.everybody(churn, 5, 55)

        for rank, counts in enumerate(before):
            members.start(rank, leftovers, *counts)
            left = members.result(rank)
            assert all(map(le, left, counts)), (left, counts)


def give_up_builds(member: Member, first: int, last: int) -> None:
    """Fail to build: rank 2 gives its group up while the others still connect."""
    for generation in range(first, last):
        with contextlib.suppress(GroupBroken):
            group = member.build(generation, deadline_s=0.3)
            if member.rank == 2:
                group.abandon("at once")
            elif member.rank == 1:
                time.sleep(0.01)
            group.abandon("soon")


@pytest.mark.soak
def test_failed_builds_leave_no_thread_and_no_descriptor() -> None:
    with crew(3) as members:
        members.everybody(churn, 1, 5)
        before = members.everybody(leftovers, 0, 0, 0)

        members.everybody(give_up_builds, 5, 11)  # each takes 3 s

        for rank, counts in enumerate(before):
            members.start(rank, leftovers, *counts)
            left = members.result(rank)
            assert all(map(le, left, counts)), (left, counts)


def test_a_closed_crew_leaves_no_process() -> None:
    with crew(2) as members:
        pids = [process.pid for process in members.processes]
        members.everybody(gather, 1)

    assert not any(psutil.pid_exists(pid) for pid in pids if pid)


# Notes


def share_or_not(member: Member) -> str:
    """Rank 1 goes on without giving its note."""
    group = member.build(1)
    if member.rank == 1:
        ending(lambda: group.all_gather(torch.ones(1)))
        return ""
    try:
        group.share("evaluate/1", b"mine")
    except LeftAlone as alone:
        return alone.reason
    return "shared"


def test_who_shares_what_another_member_leaves_out_is_told_at_once() -> None:
    with crew(2) as members:
        assert members.everybody(share_or_not)[0] == "rank 1 has gone on without evaluate/1"
