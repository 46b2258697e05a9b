"""A job on the test accelerator that is killed, paused, suspended and resumed ends as one alone.

One history of as many events as there are seeds: what happens is drawn, to whom as well, and every
worker has delays of its own.  Lives differ in size, and each third one is on the CPU: checkpoints
are written by one device and read by another.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.accelerator import checks
from tests.engine import models
from tests.processes.elastic import drain, kill, members, scale
from tests.processes.launching import RunningJob
from tests.processes.test_durable import NO_END, check, live, live_until_over, steps_of, suspend
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = [checks.needs_compiler, pytest.mark.processes, pytest.mark.timeout(1500)]

SEEDS = int(os.environ.get("SIM_SEEDS", "3"))
SIZES, DEVICES = (2, 3), ("sim", "sim", "cpu")

Happen = Callable[[RunningJob, str, int], None]


def wait_for_size(job: RunningJob, size: int, *gone: str) -> None:
    def is_there() -> bool:
        return len(found := members(job)) == size and not found & set(gone)

    job.wait_for(is_there, f"{size} train together without {gone}")


def kill_one(job: RunningJob, victim: str, size: int) -> None:
    kill(job, victim)
    wait_for_size(job, size, victim)


def kill_all(job: RunningJob, victim: str, size: int) -> None:
    job.wait_for(lambda: job.records("saved"), "there is a checkpoint")
    present = members(job)
    for name in present:
        kill(job, name)
    wait_for_size(job, size, *present)


def drain_one(job: RunningJob, victim: str, size: int) -> None:
    drain(job, victim)
    wait_for_size(job, size - 1, victim)
    scale(job, size)
    wait_for_size(job, size)


def pause_one(job: RunningJob, victim: str, size: int) -> None:
    pid = job.pid_of(victim)
    os.kill(pid, signal.SIGSTOP)
    job.wait_for(lambda: job.records("commit"), "something is known")
    os.kill(pid, signal.SIGCONT)


SUSPEND = "suspend"
EVENTS: tuple[Happen | str, ...] = (kill_all, SUSPEND, kill_one, drain_one, pause_one)


def lives_of(seed: int) -> list[list[Happen]]:
    """Draw what happens in each life of the job."""
    plan = [EVENTS[number % len(EVENTS)] for number in range(SEEDS)]
    random.Random(seed).shuffle(plan)
    lives: list[list[Happen]] = [[]]
    for event in plan:
        if isinstance(event, str):
            lives.append([])
        else:
            lives[-1].append(event)
    return lives


@pytest.mark.parametrize(
    "streams",
    [
        pytest.param("async", marks=pytest.mark.slow),
        pytest.param("sync", marks=pytest.mark.soak),
    ],
)
def test_a_storm_leaves_no_trace(
    tmp_path: Path, streams: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_ASYNC", str(int(streams == "async")))
    monkeypatch.setenv("SIM_DELAY_US", "1500")
    seed = int(os.environ.get("SIM_STORM", "1"))
    victims, lives = random.Random(seed), lives_of(seed)

    for number, events in enumerate(lives):
        size, is_last = SIZES[number % len(SIZES)], number == len(lives) - 1

        def play(
            job: RunningJob,
            size: int = size,
            events: list[Happen] = events,
            is_last: bool = is_last,
        ) -> None:
            wait_for_size(job, size)
            for happen in events:
                happen(job, victims.choice(sorted(members(job))), size)
            if not is_last:
                suspend(job, len(job.records("commit")) + 2)

        options: dict[str, Any] = {
            "replicas": size,
            "restarts": 3 * SEEDS,
            "case_options": {"randomness": False},
            "more": ("--device", DEVICES[number % len(DEVICES)], "--plain-attention"),
        }
        if not is_last:
            live(tmp_path, "gpt", play, steps=NO_END, expected_code=3, **options)
    job = live_until_over(tmp_path, "gpt", play, **options)

    with sdpa_kernel(SDPBackend.MATH):
        alone = models.train(models.build("gpt", randomness=False), steps_of(job))
    check(job, alone, steps_of(job))
