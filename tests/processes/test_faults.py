"""Real members are killed or stopped at any moment: the results are right, or there is an end."""

from __future__ import annotations

import random
import signal
import time
from functools import partial
from typing import Any

import pytest
from tests.engine.comm.scripts import expected, play, script
from tests.processes.crew import Crew, Member, background, crew

from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.rendezvous import Abort

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

BOUND_S = 8.0


def work(
    member: Member, generation: int, ranks: list[int], num_scripts: int, is_told: bool
) -> tuple[str, int]:
    """Build, play scripts, and compare all results; tell the end and how many were right."""
    abort, groups = Abort(), list[Any]()

    def give_up() -> None:
        abort.set("told to")
        for group in groups:
            group.abandon("told to")

    def hear() -> None:
        member.nudges.recv()
        give_up()

    listening = background(hear) if is_told else None
    try:
        return _work(member, generation, ranks, num_scripts, abort, groups)
    finally:
        if listening is not None:
            listening.join()  # the next one is not told of this end


def _work(
    member: Member,
    generation: int,
    ranks: list[int],
    num_scripts: int,
    abort: Abort,
    groups: list[Any],
) -> tuple[str, int]:
    num_right = 0
    try:
        group = member.build(generation, ranks, abort=abort, deadline_s=30)
        groups.append(group)
        if abort.reason:
            group.abandon(abort.reason)
        for seed in range(generation, generation + num_scripts):
            steps, got = script(seed, len(ranks), 200_000), dict[int, Any]()
            try:
                group.submit(partial(play, steps=steps, seed=seed, got=got)).wait()
            finally:
                for step in steps:
                    if step.number in got:
                        is_right = got[step.number] == expected(step, group.rank, group.size)
                        assert is_right, f"wrong: {generation=} {seed=} {step}"
                        num_right += 1
    except GroupBroken as broken:
        return broken.reason, num_right
    group.retire()
    return "done", num_right


def ended(members: Crew, ranks: list[int]) -> list[str]:
    """Let these end, told to if they do not by themselves; return why they did."""
    for rank in ranks:
        members.nudge(rank)
    return [members.result(rank, BOUND_S)[0] for rank in ranks]


def go_on(members: Crew, generation: int, ranks: list[int]) -> None:
    """Make sure that these are of use again."""
    for rank in ranks:
        members.start(rank, work, generation, ranks, 2, False)
    assert [members.result(rank)[0] for rank in ranks] == ["done"] * len(ranks)


def kill_one_after_the_other(seed: int) -> None:
    rng = random.Random(seed)
    with crew(4) as members:
        ranks = list(range(4))
        for trial in range(2):
            generation = 100 * seed + 10 * trial + 1
            for rank in rng.sample(ranks, len(ranks)):
                members.start(rank, work, generation, ranks, 10_000, True)
            time.sleep(rng.choice([0, 0.02, 0.1, 0.2]) * rng.random() * 2)
            lost = ranks.pop(rng.randrange(len(ranks)))
            members.signal(lost, signal.SIGKILL)
            time.sleep(rng.random() * 0.05)

            assert "done" not in ended(members, ranks)
            go_on(members, generation + 1, ranks)


def stop_again_and_again(seed: int, num_trials: int) -> None:
    rng = random.Random(seed)
    with crew(3) as members:
        for trial in range(num_trials):
            generation = 10_000 * seed + 10 * trial + 1
            for rank in rng.sample(range(3), 3):
                members.start(rank, work, generation, [0, 1, 2], 10_000, True)
            time.sleep(rng.choice([0, 0.02, 0.1]) * rng.random() * 2)
            lost = rng.randrange(3)
            others = [rank for rank in range(3) if rank != lost]
            members.signal(lost, signal.SIGSTOP)
            time.sleep(rng.random() * 0.05)
            try:
                assert "done" not in ended(members, others)
                go_on(members, generation + 1, others)
            finally:
                members.signal(lost, signal.SIGCONT)

            assert "done" not in ended(members, [lost])


@pytest.mark.parametrize("seed", [1, 2])
def test_a_kill_at_any_moment_costs_one_generation(seed: int) -> None:
    kill_one_after_the_other(seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_stop_at_any_moment_costs_one_generation_and_spoils_no_result(seed: int) -> None:
    stop_again_and_again(seed, 5)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_kills_and_stops_spoil_no_result() -> None:
    for seed in range(10, 40):
        kill_one_after_the_other(seed)
        stop_again_and_again(seed, 20)
