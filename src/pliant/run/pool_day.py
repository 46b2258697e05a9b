"""A day of a shared pool, for who wants to see its page: simulated, and logged as a pool logs.

Owns the world of that day, and how it stood at each moment.  Decides nothing: the pool's core
shares the devices out and each elastic job's policy says how many it takes, as live.  Knows nothing
of who looks.

    jobs --> simulate.Simulation --> event log --> PoolView --> GET /v1/view
                   |
                   +--> the core after each event --> status at a moment --> GET /v1/status
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pliant.core.allocation import Action, Event, kinds
from pliant.core.device_names import kind_of
from pliant.core.policy.decide import Policy
from pliant.core.tenancy import DEFAULT_CLASS
from pliant.observe.log import EventLog
from pliant.pool.pool_status import claim_of, teams_of
from pliant.simulate.resize_costs import costs_of
from pliant.simulate.simulation import SimulatedWorld, Simulation
from pliant.spec.cluster import ClusterSpec, NodeEntry
from pliant.spec.pool import TeamEntry
from pliant.spec.workload import WorkloadJob

NAME, NUM_DEVICES, DAY_S = "simulated-day", 16, 86_400.0
NAMES = {device: f"cuda:{device}" for device in range(NUM_DEVICES)}
MEMORY_BYTES = 80 << 30


class PoolDay:
    """Simulates the day into a log at once; then says how the pool stood."""

    def __init__(self, log: Path, began_at: float) -> None:
        """Simulate a day that began at a moment of the wall clock.

        Raises:
            OSError: the log cannot be written.
        """
        self.log, self._began_at = log, began_at
        self._moments: list[float] = []
        self._cores: list[kinds.KindedPool] = []
        simulation = Simulation(world(), costs_of("in-place"), until_s=DAY_S)
        pool = simulation.pool
        events = EventLog(
            log, job=NAME, wall=lambda: began_at + pool.now_s, monotonic=lambda: pool.now_s
        )

        def write_step(event: Event, actions: Sequence[Action]) -> None:
            events.write_value(event, now_s=pool.now_s)
            for action in actions:
                events.write_value(action)
            self._moments.append(pool.now_s)
            self._cores.append(pool.core)

        pool.listener = write_step
        self._cores.append(pool.core)
        events.write("pool_started", name=NAME, devices=NUM_DEVICES, names=list(NAMES.values()))
        simulation.run()
        events.write("pool_stopped", name=NAME, keeping=sorted(pool.claimants))
        events.close()

    def status(self, at: float | None) -> dict[str, Any]:
        """Return how it stood at a moment of the wall clock; None: at the end of the day."""
        now_s = DAY_S if at is None else at - self._began_at
        core = self._cores[bisect_right(self._moments, now_s)]
        summary = kinds.summary_of_kinds(core)
        claims = [
            claim_of(core, name, names=NAMES, now_s=now_s) for name in kinds.claims_of_kinds(core)
        ]
        for claim in claims:
            claim["since"] += self._began_at
        served = {name: place for place, name in enumerate(summary.waiting)}
        claims.sort(key=lambda claim: (served.get(claim["name"], -1), claim["since"]))
        owners = {device: claim["name"] for claim in claims for device in claim["devices"]}
        return {
            "pool": NAME,
            "size": NUM_DEVICES,
            "limit": summary.limit,
            "usable": summary.usable,
            "in_use": len(owners),
            "free": NUM_DEVICES - len(owners),
            "recovering": [],
            "failure": None,
            "devices": [
                {
                    "device": device,
                    "name": name,
                    "kind": kind_of(name),
                    "memory_bytes": MEMORY_BYTES,
                    "claim": owners.get(device),
                    "is_cordoned": False,
                    "is_blocked": False,
                    "note": None,
                }
                for device, name in NAMES.items()
            ],
            "claims": claims,
            "teams": teams_of(summary),
        }


def yesterday() -> float:
    """Return when yesterday began here, by the wall clock."""
    day = time.localtime(time.time() - DAY_S)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))


def world() -> SimulatedWorld:
    """Return the devices, teams and jobs of the day; always the same."""
    teams = [TeamEntry(name=name, quota=quota) for name, quota in QUOTAS.items()]
    nodes = [NodeEntry(name="host", count=1, devices=NUM_DEVICES)]
    draw = random.Random("demo")  # noqa: S311 - the same day each time
    jobs = sorted(_jobs(draw), key=lambda job: job.arrival_s)
    return SimulatedWorld(cluster=ClusterSpec(nodes=nodes, teams=teams), jobs=jobs, policy=Policy())


QUOTAS = {"language": 8, "vision": 6, "students": 2}


def _jobs(draw: random.Random) -> list[WorkloadJob]:
    """Return one long pre-training that takes what nobody uses, and what comes by day."""
    jobs = [
        _job("pretrain", 0, 40, (4, 8, 16), "language", "low"),
        _job("incident", 15.3, 0.75, (6, 8, 8), "vision", "urgent"),
        *(_job(f"eval-{at}", at, 0.25, (2, 2, 2), "language", "high") for at in range(2, 24, 3)),
    ]
    for number, hour in enumerate(sorted(draw.triangular(6, 22, 13) for _ in range(12)), 1):
        jobs.append(_job(f"finetune-{number}", hour, draw.uniform(0.5, 2), (2, 4, 6), "vision"))
    for number, hour in enumerate(sorted(draw.triangular(8, 23, 15) for _ in range(18)), 1):
        jobs.append(_job(f"notebook-{number}", hour, draw.uniform(0.3, 2), (1, 1, 1), "students"))
    return jobs


def _job(
    name: str,
    hour: float,
    hours: float,
    sizes: tuple[int, int, int],
    team: str,
    priority: str = DEFAULT_CLASS,
) -> WorkloadJob:
    """Return a job that takes so many hours at the middle one of its sizes."""
    least, usual, most = sizes
    return WorkloadJob(
        name=name,
        arrival_s=3600.0 * hour,
        work_s=3600.0 * hours,
        devices=usual,
        min_devices=least,
        max_devices=most,
        num_slots=48 if least < most else None,
        team=team,
        priority=priority,
    )
