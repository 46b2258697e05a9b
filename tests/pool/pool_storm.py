"""A storm over one pool: arrivals, claims, departures, kills and restarts, in an order from a seed.

Real jobs train small models while claims come and go, and everybody may die at any moment: workers,
whole jobs, claims, commands and the pool.  After the last event the sky clears, and every job must
finish with the digest of a run that nobody touched.  Who used which device is watched by a process
of its own (``checker.py``), which believes neither the pool nor its log.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.storm import Storm
from tests.pool.box import Box, Claim, Process, until

from pliant.core.errors import ConfigError
from pliant.machine.device_locks import claim_on
from pliant.observe.reading import read

HERE = Path(__file__).parent
PRIORITIES = ("low", "normal", "normal", "high", "urgent")
FINISH_S = 900.0
"""Longest wait for all jobs after the storm, in seconds."""


@dataclass(frozen=True)
class PoolWeather:
    """What a storm is made of."""

    seed: int
    events: int
    jobs: int
    """Most that arrive, in all."""

    devices: int = 6
    together: int = 3
    """Most jobs at a time."""

    steps: int = 40
    pace_s: float = 0.02
    notice_s: float = 4.0
    pause_s: float = 0.5
    """Mean time between two events."""


@dataclass
class Job:
    """One job over all its lives."""

    name: str
    arguments: list[str]
    directory: Path
    process: Process
    lives: int = 1

    @property
    def out(self) -> Path:
        return self.directory / f"out-{self.lives}"


@dataclass
class PoolStorm:
    """One storm; ``rage`` and then ``clear``."""

    box: Box
    weather: PoolWeather

    def __post_init__(self) -> None:
        self.random = random.Random(self.weather.seed)
        self.storm = Storm(self.random, self._events())
        self.beats = self.box.directory / "beats"
        self.beats.mkdir()
        self.jobs: dict[str, Job] = {}
        self.claims: list[Claim] = []
        self.asleep: list[Claim] = []
        self.out_of_use: set[int] = set()
        self.pool = self.box.start_pool("--devices", str(self.weather.devices), grace_s=1.0)
        self.report = self.box.directory / "report.json"
        arguments = [str(self.box.locks), str(self.beats), str(self.report)]
        self.checker = subprocess.Popen(
            [sys.executable, str(HERE / "checker.py"), *arguments], stdin=subprocess.PIPE
        )

    # --- the storm ----------------------------------------------------------------

    def rage(self) -> None:
        pause = threading.Event()
        while self.storm.happened.total() < self.weather.events:
            if self.storm.happen():
                pause.wait(self.random.expovariate(1 / self.weather.pause_s))
            self.look_after_jobs()

    def _events(self) -> dict[str, tuple[float, Callable[[], bool]]]:
        return {
            "arrive": (8, self.arrive),
            "claim": (14, self.claim),
            "depart": (6, self.depart),
            "kill a claim": (3, self.kill_claim),
            "stop a claim": (1, self.stop_claim),
            "wake a claim": (1, self.wake_claim),
            "kill a worker": (10, self.kill_worker),
            "kill a job": (1, self.kill_job),
            "kill the pool": (3, self.kill_pool),
            "set the devices": (2, self.set_devices),
            "cordon or drain": (2, self.take_out),
            "uncordon": (2, self.put_in),
            "change a team": (1, self.change_team),
        }

    def arrive(self) -> bool:
        running = [job for job in self.jobs.values() if job.process.code is None]
        number = len(self.jobs)
        if number >= self.weather.jobs or len(running) >= self.weather.together:
            return False
        name = f"job-{number}"
        directory = self.box.directory / name
        directory.mkdir()
        low = self.random.randint(1, 2)
        words: list[object] = [HERE / "train_in_pool.py", self.beats, "--model", "gpt"]
        words += ["--steps", self.weather.steps, "--pace", self.weather.pace_s]
        words += ["--digest-file", directory / "digests", "--checkpoint", directory / "kept"]
        words += ["--every", "10steps"]
        options = ["--min", low, "--max", self.random.randint(low, self.weather.devices)]
        options += ["--priority", self.random.choice(PRIORITIES), "--max-restarts", 1000]
        arguments = [str(word) for word in ("--name", name, *options)]
        command = [str(word) for word in words]
        out = str(directory / "out-1")
        process = self.box.start("run", "--pool=default", *arguments, "--out", out, *command)
        self.jobs[name] = Job(name, [*arguments, "--", *command], directory, process)
        return True

    def claim(self) -> bool:
        number = sum(claim.name.startswith("claim") for claim in self.claims)
        options = [
            "--priority",
            self.random.choice(PRIORITIES),
            "--notice",
            f"{self.weather.notice_s}s",
        ]
        if self.random.random() < 0.9:
            options += ["--for", f"{self.random.uniform(0.3, 3):.2f}s"]
        devices = self.random.randint(1, max(1, self.weather.devices // 2))
        command = [sys.executable, "-S", str(HERE / "witness.py"), str(self.beats)]
        name = f"claim-{number}"
        self.claims.append(self.box.claim(devices, *options, "--", *command, name=name))
        return True

    def depart(self) -> bool:
        return self._signal(self._pick(), signal.SIGINT)

    def kill_claim(self) -> bool:
        return self._signal(self._pick(), signal.SIGKILL)

    def stop_claim(self) -> bool:
        claim = self._pick()
        if claim is not None:
            self.asleep.append(claim)
        return self._signal(claim, signal.SIGSTOP)

    def wake_claim(self) -> bool:
        return bool(self.asleep) and self._signal(self.asleep.pop(), signal.SIGCONT)

    def kill_worker(self) -> bool:
        users = [
            pid
            for device in range(self.weather.devices)
            if claim_on(self.box.locks, device) in self.jobs
            for pid in self.box.users(device)
        ]
        if not users:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.random.choice(users), signal.SIGKILL)
        return True

    def kill_job(self) -> bool:
        running = [job for job in self.jobs.values() if job.process.code is None]
        if not running:
            return False
        self.random.choice(running).process.kill()
        return True

    def kill_pool(self) -> bool:
        self.pool.kill()
        threading.Event().wait(self.random.uniform(0, 1.5))
        self.pool = self.box.start_pool("--devices", str(self.weather.devices), grace_s=1.0)
        return True

    def set_devices(self) -> bool:
        number = self.random.randint(self.weather.devices // 2, self.weather.devices)
        return self._wish("POST", "/v1/devices", {"devices": number})

    def take_out(self) -> bool:
        device = self.random.randrange(self.weather.devices)
        how = self.random.choice(("cordon", "drain"))
        self.out_of_use.add(device)
        return self._wish("POST", f"/v1/devices/{device}/{how}")

    def put_in(self) -> bool:
        if not self.out_of_use:
            return False
        return self._wish("POST", f"/v1/devices/{self.out_of_use.pop()}/uncordon")

    def change_team(self) -> bool:
        quota = self.random.randint(0, 2)
        return self._wish("PUT", "/v1/teams/default", {"name": "default", "quota": quota})

    def _pick(self) -> Claim | None:
        running = [claim for claim in self.claims if claim.code is None]
        return self.random.choice(running) if running else None

    @staticmethod
    def _signal(claim: Claim | None, number: signal.Signals) -> bool:
        if claim is None:
            return False
        claim.send(number)
        return True

    def _wish(self, method: str, path: str, body: dict[str, Any] | None = None) -> bool:
        """Wish something of the pool; what it refuses has happened as well."""
        with suppress(ConfigError):
            self.box.ask(method, path, body)
        return True

    # --- afterwards -----------------------------------------------------------------

    def clear(self) -> None:
        """Let the sun shine, and wait until every job has finished."""
        for claim in self.claims:
            claim.send(signal.SIGCONT)
            claim.send(signal.SIGINT)
        for device in sorted(self.out_of_use):
            self._wish("POST", f"/v1/devices/{device}/uncordon")
        self._wish("POST", "/v1/devices", {"devices": self.weather.devices})
        self._wish("PUT", "/v1/teams/default", {"name": "default"})
        for claim in self.claims:
            claim.ended()
        until(self.look_after_jobs, f"all jobs have finished: {self.said()}", FINISH_S)

    def look_after_jobs(self) -> bool:
        """Start those again that were killed; return whether all have finished."""
        for job in self.jobs.values():
            code, said = job.process.code, job.process.said()
            had_no_pool = code == 2 and ("no pool named" in said or "did not answer" in said)
            if had_no_pool or (code is not None and code < 0):
                self._again(job)
            else:
                assert code in (None, 0), f"{job.name}: {said}"
        return all(job.process.code == 0 for job in self.jobs.values())

    def _again(self, job: Job) -> None:
        kinds = {record["kind"] for record in read(job.out / "events.jsonl")}
        if "saved" in kinds:
            words = ["--resume", "--out", str(job.out)]
        else:
            job.lives += 1
            words = ["--out", str(job.out)]
        at = job.arguments.index("--")
        options, command = job.arguments[:at], job.arguments[at + 1 :]
        job.process = self.box.start("run", "--pool=default", *options, *words, *command)

    def digests(self, job: Job) -> set[str]:
        lines = (job.directory / "digests").read_text().splitlines()
        values = [json.loads(line) for line in lines]
        return {v["digest"] for v in values if v["committed"] == self.weather.steps}

    def watched(self) -> dict[str, Any]:
        """End the checker; return what it has seen."""
        self.checker.communicate(timeout=30)
        report: dict[str, Any] = json.loads(self.report.read_text())
        return report

    def said(self) -> str:
        jobs = {job.name: (job.process.code, job.lives) for job in self.jobs.values()}
        return f"seed {self.weather.seed}, {dict(self.storm.happened)}, jobs {jobs}"
