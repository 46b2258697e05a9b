"""A storm: one job, a seed, and everything that can happen to it, in any order.

Two sources of trouble run at once.  *Placed* faults: every replica but the first carries a plan of
its own, so that it dies or stops at a named point of some step; its replacement carries another.
*Live* events: a second process asks for sizes and drains, and kills one or two members at a time.
At the end the digest must be that of a run that nobody touched, the audit must hold, and nothing
may be left.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.live.storm import Storm
from tests.processes import elastic
from tests.processes.launching import RunningJob

from pliant.observe.audit import audit_run

POINTS = (
    "build",
    "prepared",
    "boundary",
    "transfer",
    "micro_batch",
    "bucket",
    "reduced",
    "vote",
    "commit",
    "tail",
    "reform",
)

TURNS = (*POINTS, "reform", "reform", "reform")
"""A replica meets a Reform only if another dies first; it gets more turns."""

MODELS = ("gpt", "cnn", "moe", "frozen")

NUM_SLOTS = tuple(range(1, 25))

NUM_NAMES = 80
"""Replicas that carry a plan; a storm uses fewer."""

HEARTBEAT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWeather:
    """What a seed stands for."""

    seed: int
    model: str
    num_slots: int
    max_replicas: int
    num_steps: int
    num_workers: int
    has_windows: bool
    """Whether gradients are reduced through windows, as they would be in a larger model."""
    faults: dict[str, str]
    """Planned fault of each replica that has one: ``point:step=action``."""

    @classmethod
    def of(cls, seed: int, *, num_steps: int, num_names: int = NUM_NAMES) -> JobWeather:
        """Draw everything that is fixed before the job starts; so many replicas carry a plan."""
        draw = random.Random(seed)
        num_slots = draw.choice(NUM_SLOTS)
        faults = {}
        for number in range(2, num_names):
            if draw.random() < 0.95:
                point = TURNS[(number + seed) % len(TURNS)]  # each point gets its turn
                action = "SIGSTOP" if draw.random() < 0.08 else "SIGKILL"
                soon = 4 * number + draw.randint(-4, 8)  # about when this name is in
                step = 0 if draw.random() < 0.3 else max(0, min(soon, num_steps - 5))
                faults[f"r{number}"] = f"{point}:{step}+={action}"
        return cls(
            seed=seed,
            model=draw.choice(MODELS),
            num_slots=num_slots,
            max_replicas=min(draw.choice((2, 3, 3, 4, 4, 5)), num_slots),
            num_steps=num_steps,
            num_workers=draw.choice((0, 0, 2)),
            has_windows=seed % 4 != 2,
            faults=faults,
        )

    @property
    def plan(self) -> str:
        """The placed faults as the script's argument."""
        return ",".join(f"{name}@{fault}" for name, fault in self.faults.items())

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.model}, K={self.num_slots}, up to {self.max_replicas} "
            f"replicas, {self.num_steps} steps, {self.num_workers} loader processes, "
            f"{'windows' if self.has_windows else 'sockets'}"
        )


@dataclass(slots=True)
class Damage:
    """What happened, counted from the job's own log and from what was done to it."""

    events: Counter[str] = field(default_factory=Counter)
    deaths_at: Counter[str] = field(default_factory=Counter)
    generations: int = 0
    largest: int = 0

    def add(self, other: Damage) -> None:
        """Count another storm's damage as well."""
        self.events += other.events
        self.deaths_at += other.deaths_at
        self.generations += other.generations
        self.largest = max(self.largest, other.largest)


def storm(directory: Path, weather: JobWeather) -> Damage:
    """Let one job live through it and check what came out; return what it lived through."""
    sizes = _sizes(weather)
    live = Live(weather)
    outcome = elastic.run(
        directory, weather.model, weather.num_steps, live.play, **_given(weather, sizes)
    )
    return _checked(outcome, weather, live, sizes)


def long_storm(
    directory: Path, weather: JobWeather, num_events: int, looked_at: Callable[[RunningJob], None]
) -> Damage:
    """Let one job live through so many events; ``looked_at`` is called between them."""
    sizes = _sizes(weather)
    live = LongLive(weather, num_events, looked_at)
    outcome = elastic.run_until_over(directory, weather.model, live.play, **_given(weather, sizes))
    return _checked(outcome, weather, live, sizes)


def _sizes(weather: JobWeather) -> dict[str, int]:
    micro = 2 if weather.num_slots <= 12 else 1  # the smallest dataset has 40 samples
    return {"global_batch_size": micro * weather.num_slots, "micro_batch_size": micro}


def _given(weather: JobWeather, sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        "replicas": weather.max_replicas,
        "num_workers": weather.num_workers,
        "pace": 0.1 / weather.num_slots,
        "faults": weather.plan,
        "settings": {"heartbeat_s": HEARTBEAT_S},
        "restarts": 10_000,
        "windows_above": 0 if weather.has_windows else 1 << 40,
        **sizes,
    }


def _checked(
    outcome: elastic.Outcome, weather: JobWeather, live: Live, sizes: dict[str, Any]
) -> Damage:
    digest = elastic.reference(weather.model, outcome.steps, **sizes)
    outcome.check(digest)
    audit = audit_run(outcome.job.out)
    assert audit.exactly_once, audit.problems
    assert audit.committed_steps == outcome.steps
    return _damage(outcome.job, weather, live)


class Live:
    """Asks for sizes and drains, and kills, while the job trains."""

    def __init__(self, weather: JobWeather) -> None:
        self._weather = weather
        self._draw = random.Random(weather.seed + 1)
        self.killed: set[str] = set()
        self.done: Counter[str] = Counter()
        """How often each, single deaths and pauses counted."""

    def play(self, job: RunningJob) -> None:
        """Do one thing after another until the last steps are near."""
        job.wait_for_steps(1)
        storm = Storm(self._draw, self._events(job))
        while self._is_on(job):
            self._wait(job)
            with suppress(httpx.HTTPStatusError, httpx.TransportError):  # refused, or just ended
                storm.happen()

    def _events(self, job: RunningJob) -> dict[str, tuple[float, Callable[[], bool]]]:
        return {
            "scale": (0.15, lambda: self._scale(job)),
            "room for the placed faults": (0.25, lambda: self._make_room(job)),
            "drain": (0.15, lambda: self._drain(job)),
            "pause": (0.15, lambda: self._pause(job)),
            "kill": (0.15, lambda: self._kill(job)),
            "nothing": (0.15, lambda: True),
        }

    def _scale(self, job: RunningJob) -> bool:
        elastic.scale(job, self._draw.randint(1, self._weather.max_replicas))
        self.done["scale"] += 1
        return True

    def _make_room(self, job: RunningJob) -> bool:
        elastic.scale(job, self._weather.max_replicas)
        return True

    def _drain(self, job: RunningJob) -> bool:
        if not (members := self._members(job)):
            return False
        notice_s = self._draw.choice((0.05, 20.0))
        elastic.drain(job, self._draw.choice(members), notice_s)
        self.done["drain"] += 1
        return True

    def _is_on(self, job: RunningJob) -> bool:
        last = len(job.records("commit"))
        return job.process.poll() is None and last < self._weather.num_steps - 10

    def _wait(self, job: RunningJob) -> None:
        """Wait for a few steps, or for a moment, whatever comes first."""
        until = len(job.records("commit")) + self._draw.randint(0, 8)
        deadline_s = time.monotonic() + self._draw.uniform(0.05, 4.0)
        while time.monotonic() < deadline_s and len(job.records("commit")) < until:
            time.sleep(0.05)

    def _members(self, job: RunningJob) -> list[str]:
        """Return who trains now, but for the first replica, which outlives everything."""
        with job.client() as client:
            replicas = client.get("/v1/status").json()["replicas"]
        return [r["name"] for r in replicas if r["state"] == "training" and r["name"] != "r1"]

    def _kill(self, job: RunningJob) -> bool:
        members = self._members(job)
        if len(members) < 2:
            return False
        most = min(2, len(members) - 1)
        for name in self._draw.sample(members, self._draw.randint(1, most)):
            with suppress(ProcessLookupError):
                os.kill(job.pid_of(name), signal.SIGKILL)
                self.killed.add(name)
                self.done["kill"] += 1
        return True

    def _pause(self, job: RunningJob) -> bool:
        """Stop a process for less than the deadline."""
        if not (members := self._members(job)):
            return False
        with suppress(ProcessLookupError):
            pid = job.pid_of(self._draw.choice(members))
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._draw.uniform(0.1, HEARTBEAT_S / 3))
            os.kill(pid, signal.SIGCONT)
            self.done["pause"] += 1
        return True


class LongLive(Live):
    """Goes on for a number of events, and reads no log on the way: it grows long."""

    def __init__(
        self, weather: JobWeather, num_events: int, looked_at: Callable[[RunningJob], None]
    ) -> None:
        super().__init__(weather)
        self._num_events = num_events
        self._looked_at = looked_at
        self._turns = itertools.count()

    def _is_on(self, job: RunningJob) -> bool:
        if next(self._turns) % 4 == 0:  # a look takes as long as an event
            self._looked_at(job)
        return job.process.poll() is None and self.done.total() < self._num_events

    def _wait(self, job: RunningJob) -> None:
        """Wait a little: the next event comes in the midst of what the last one has begun."""
        time.sleep(self._draw.uniform(0.0, 0.4))


def _damage(job: RunningJob, weather: JobWeather, live: Live) -> Damage:
    damage = Damage(events=Counter(live.done))
    ended = {r["replica"]: r["reason"] for r in job.records("end_replica")}
    for record in job.records("exited"):
        name = record["replica"]
        fault = weather.faults.get(name)
        if record["exited_kind"] != "signal" or fault is None or name in live.killed:
            continue
        stopped = fault.endswith("SIGSTOP")
        if name not in ended or (stopped and "sign of life" in ended[name]):
            damage.deaths_at[fault.partition(":")[0]] += 1
            damage.events["hang" if stopped else "death"] += 1
    damage.events["join"] = len({r["replica"] for r in job.records("spare")})
    orders = [r["order"] for r in job.records() if r["kind"] in ("switch", "reform")]
    damage.generations = len(orders)
    damage.largest = max(len(order["members"]) for order in orders)
    return damage
