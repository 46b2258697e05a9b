"""State moves from survivors to joiners, or visibly does not."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.processes.crew import Member, background, crew, on_nudge

from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.group import Group
from pliant.engine.state.transfer import (
    Stamp,
    SurvivorsDiffer,
    TensorSpec,
    TransferRefused,
    receive_state,
    send_state,
)

HEARD_S = 10.0
"""Between what ends at once and what ends with its limit, 30 s."""

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]


def a_state(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    weight = torch.nn.Parameter(values(300, 1000))
    return {
        "weight": weight,
        "tied": weight,
        "filters": values(64, 32, 5, 5).to(memory_format=torch.channels_last),
        "gaps": values(50, 60)[:, ::2],
        "half": values(1000).bfloat16(),
        "flags": values(77) > 0,
        "complex": torch.view_as_complex(values(9, 2)),
        "nothing": torch.empty(0, 3),
        "step": torch.tensor(7),
        "large": values(3_000_001),
        "many": [values(11, 3) for _ in range(40)],
        "milestones": Counter({3: 1, 5: 2}),
        "lr": (0.1, float("inf")),
    }


def own_storage(_: Any, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
    """Destinations as a joiner's model has them: some with other strides than the sender's."""
    return [torch.full(spec.shape, 1, dtype=spec.dtype) for spec in specs]


def like_sender(_: Any, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
    return [spec.empty() for spec in specs]


def names(group: Group) -> dict[str, list[str]]:
    return {"replicas": [f"r{rank}" for rank in range(group.size)]}


def move(
    member: Member, generation: int, ranks: list[int], survivors: list[int], steps: dict[int, int]
) -> str:
    """Take part in a transfer; tell how it went."""
    group = member.build(generation, ranks)
    joiners = [r for r in range(group.size) if r not in survivors]
    stamp = Stamp(generation=generation, step=steps.get(group.rank, 5), lineage=1)
    parties: Any = {"stamp": stamp, "survivors": survivors, "joiners": joiners, **names(group)}
    outcome = "sent"
    try:
        if group.rank in survivors:
            send_state(group, **parties, value=a_state(1)).wait()
        else:
            allocate = own_storage if generation % 2 else like_sender
            got = receive_state(group, **parties, allocate=allocate)
            outcome = "equal" if same(got, a_state(1)) else "different"
    except TransferRefused as refused:
        return f"refused: {refused}"
    group.retire()
    return outcome


def same(mine: Any, theirs: Any) -> bool:
    if type(mine) is dict:
        return mine["tied"] is mine["weight"] and all(same(mine[k], theirs[k]) for k in theirs)
    if type(mine) is list:
        return all(map(same, mine, theirs))
    if isinstance(mine, torch.Tensor):
        return torch.equal(mine, theirs) and mine.dtype == theirs.dtype
    return bool(mine == theirs)


def test_joiners_get_the_state_of_any_number_of_survivors_in_any_strides() -> None:
    with crew(4) as members:
        generation = 0
        for num_survivors in (1, 2, 3):
            for _ in range(2):
                generation += 1
                survivors = list(range(num_survivors))

                outcomes = members.everybody(move, generation, [0, 1, 2, 3], survivors, {})

                expected = ["sent"] * num_survivors + ["equal"] * (4 - num_survivors)
                assert outcomes == expected, generation


def test_states_of_two_steps_are_refused_by_everybody() -> None:
    with crew(3) as members:
        outcomes = members.everybody(move, 1, [0, 1, 2], [0, 1], {1: 6})

    sentence = (
        "refused: rank 1 means the state of generation, step, lineage [1, 6, 1], "
        "rank 0 that of [1, 5, 1]"
    )
    assert outcomes == [sentence] * 3


def send_other_values(member: Member, value: dict[str, Any]) -> str:
    group = member.build(1)
    stamp = Stamp(generation=1, step=5, lineage=1)
    parties: Any = {"stamp": stamp, "survivors": [0, 1], "joiners": [2], **names(group)}
    try:
        if group.rank == 2:
            receive_state(group, **parties, allocate=like_sender)
        else:
            send_state(group, **parties, value=value).wait()
    except SurvivorsDiffer as refused:
        return str(refused)
    return "moved"


@pytest.mark.parametrize(
    ("values", "difference"),
    [
        (
            [{"training": {"body": flag}} for flag in (True, False, True)],
            "training of module 'body' (train() or eval()) differs between replicas (True on r0; "
            "False on r1)",
        ),
        (
            [{"parameters": {"w": torch.full((3,), n)}} for n in (1.0, 2.0, 3.0)],
            "parameter 'w' differs between replicas (torch.float32 (3,) digest",
        ),
    ],
)
def test_survivors_whose_states_differ_are_told_what_differs(
    values: list[dict[str, Any]], difference: str
) -> None:
    with crew(3) as members:
        for rank, value in enumerate(values):
            members.start(rank, send_other_values, value)
        outcomes = {members.result(rank) for rank in range(3)}

    (outcome,) = outcomes
    assert outcome.startswith(f"at step 5 {difference}")


def big_transfer(member: Member) -> tuple[str, float]:
    """Move 400 MB from all others to the last; tell how and when it ended, and whether it quiesced.

    The joiner tells the test when the survivors are sending and it does not receive yet.
    """
    group = member.build(1)
    joiner = group.size - 1
    stamp = Stamp(generation=1, step=5, lineage=1)
    survivors = list(range(joiner))
    parties: Any = {"stamp": stamp, "survivors": survivors, "joiners": [joiner], **names(group)}

    def allocate(_: Any, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
        member.tell("in the middle")
        time.sleep(0.2)
        return [spec.empty() for spec in specs]

    on_nudge(member, lambda: group.abandon("told to"))
    outcome = "complete"
    try:
        if group.rank == joiner:
            receive_state(group, **parties, allocate=allocate)
        else:
            state = [torch.full((1_000_000,), float(i)) for i in range(100)]
            send_state(group, **parties, value=state).wait()
    except GroupBroken:
        outcome = "broken"
    return outcome, time.monotonic()


@pytest.mark.parametrize("victim", [0, 2])
def test_a_kill_in_the_middle_of_a_transfer_breaks_it_on_the_others(victim: int) -> None:
    with crew(3) as members:
        for rank in range(3):
            members.start(rank, big_transfer)
        members.hear(2)
        time.sleep(0.1)

        members.signal(victim, signal.SIGKILL)
        killed_at = time.monotonic()

        joiner_or_both = {0, 1, 2} - {victim} if victim == 2 else {2}
        for rank in joiner_or_both:
            outcome, ended_at = members.result(rank)
            assert outcome == "broken"
            assert ended_at - killed_at < HEARD_S


def test_an_abort_ends_a_transfer_with_a_stopped_survivor_at_once() -> None:
    with crew(3) as members:
        for rank in range(3):
            members.start(rank, big_transfer)
        members.hear(2)
        members.signal(0, signal.SIGSTOP)
        time.sleep(0.7)

        members.nudge(2)
        aborted_at = time.monotonic()

        outcome, ended_at = members.result(2)
        assert outcome == "broken"
        assert ended_at - aborted_at < HEARD_S


def join_twice(member: Member) -> str:
    """Break a transfer into a joiner's storage off, then repeat it into the same storage."""
    storage: list[torch.Tensor] = []

    def allocate(_: Any, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
        if not storage:
            storage.extend(spec.empty() for spec in specs)
            background(lambda: first.abandon("told to"))
        return storage

    first = member.build(1)
    parties: Any = {"survivors": [0, 1], "joiners": [2], **names(first)}
    try:
        stamp = Stamp(generation=1, step=5, lineage=1)
        if first.rank == 2:
            receive_state(first, stamp=stamp, **parties, allocate=allocate)
        else:
            old = [torch.full((1_000_000,), 1.0) for i in range(50)]
            send_state(first, stamp=stamp, **parties, value=old).wait()
    except GroupBroken:
        first.abandon("the joiner left")
    second = member.build(2)
    stamp = Stamp(generation=2, step=6, lineage=1)
    if second.rank < 2:
        new = [torch.full((1_000_000,), 2.0) for i in range(50)]
        send_state(second, stamp=stamp, **parties, value=new).wait()
        return "sent"
    receive_state(second, stamp=stamp, **parties, allocate=allocate)
    time.sleep(0.3)
    return "clean" if all(bool((tensor == 2.0).all()) for tensor in storage) else "mixed"


def test_late_chunks_of_an_abandoned_transfer_never_reach_the_joiners_storage() -> None:
    with crew(3) as members:
        assert members.everybody(join_twice) == ["sent", "sent", "clean"]
