"""Whatever happens to a job, it ends with the bits of one that nothing happened to."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
from tests.processes.footprint import Footprint
from tests.processes.job_storm import POINTS, Damage, JobWeather, long_storm, storm
from tests.processes.launching import RunningJob

pytestmark = pytest.mark.processes


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_short_storm_leaves_no_trace_in_the_result(tmp_path: Path, seed: int) -> None:
    damage = storm(tmp_path, JobWeather.of(seed, num_steps=40))

    assert damage.generations > 1


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_storms_of_every_kind_leave_no_trace_in_the_results(tmp_path: Path) -> None:
    """Goes on until 300 events and 10 deaths at each point were survived.

    ``SEED=n make soak`` repeats one; it prints its seed first.
    """
    first = int(os.environ.get("SEED", random.randrange(10**6)))
    total, seed = Damage(), first
    say(f"first seed: {first}")
    while sum(total.events.values()) < 300 or min(total.deaths_at[p] for p in POINTS) < 10:
        weather = JobWeather.of(seed, num_steps=200)
        say(f"storm {weather}")
        total.add(storm(tmp_path / str(seed), weather))
        say(f"  so far {sum(total.events.values())} events {dict(total.events)}")
        say(f"  deaths at {dict(total.deaths_at)}, {total.generations} generations")
        seed += 1


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_a_thousand_events_take_no_more_memory_and_no_more_descriptors(tmp_path: Path) -> None:
    """``EVENTS=n`` for another number."""
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    num_events = int(os.environ.get("EVENTS", 1000))
    weather = JobWeather.of(seed, num_steps=4 * num_events, num_names=num_events)
    say(f"storm {weather}")
    held: dict[str, Footprint] = {}

    def look(job: RunningJob) -> None:
        if not held:
            held.update(job=Footprint(job.process.pid), r1=Footprint(job.pid_of("r1")))
            held.update(fork_server=Footprint(job.fork_server().pid))
        for each in held.values():
            each.look()

    damage = long_storm(tmp_path, weather, num_events, look)

    say(f"{dict(damage.events)}, {damage.generations} generations")
    for name, footprint in held.items():
        say(f"  {name}: {footprint}")
    assert {name: grown for name, each in held.items() if (grown := each.growth())} == {}


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
