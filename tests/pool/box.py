"""Real pools and claims in processes of their own, looked at from outside.

Owns their start and end, and the checks that trust nobody: who uses a device is seen by the
kernel's word on its lock, not by what a pool says.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.stage import FORKED_PLIANT, Program, Stage, stage

from pliant.http.client import Caller
from pliant.machine.device_locks import holders, is_free
from pliant.machine.registry import Served, served
from pliant.observe.log import Record
from pliant.observe.reading import read

HERE = Path(__file__).parent

DEADLINE_S = 40.0
"""No wait of a test is longer, in seconds."""


def until(is_so: Callable[[], object], what: str, within_s: float = DEADLINE_S) -> None:
    """Wait for something that is seen from outside."""
    pause, deadline_s = threading.Event(), time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {what}"
        pause.wait(0.02)


@dataclass(frozen=True)
class Process:
    """One that was started, with what it prints."""

    program: Program
    out: Path

    @property
    def pid(self) -> int:
        return self.program.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.program.poll()

    def ended(self, within_s: float = DEADLINE_S) -> int:
        what = f"process {self.pid} has ended: {self.said()}"
        until(lambda: self.code is not None, what, within_s)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.ended()

    def send(self, number: signal.Signals) -> None:
        self.program.send_signal(number)

    def said(self) -> str:
        return self.out.read_text() if self.out.exists() else ""


@dataclass(frozen=True)
class Claim(Process):
    """One ``pliant claim`` that runs."""

    name: str

    @property
    def told(self) -> list[dict[str, Any]]:
        lines = self.said().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    @property
    def state(self) -> str:
        return str(self.told[-1]["state"]) if self.told else ""

    @property
    def devices(self) -> list[int]:
        given = [one["devices"] for one in self.told if "devices" in one]
        return list(given[-1]) if given else []

    @property
    def reason(self) -> str:
        return str(self.told[-1]["reason"])

    def until(self, state: str, within_s: float = DEADLINE_S) -> None:
        until(lambda: self.state == state, f"{self.name} is {state}: {self.said()}", within_s)


class Box:
    """One machine: its state directory, its pools and everybody who was started on it."""

    def __init__(self, directory: Path, stage: Stage, *, has_torch: bool = False) -> None:
        self.directory = directory
        self._pliant = [FORKED_PLIANT] if has_torch else ["-m", "pliant"]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PLIANT_")},
            "XDG_STATE_HOME": str(directory),
        }
        self.pools = directory / "pliant" / "pools"
        self.locks = self.pools / "default" / "devices"
        self._stage = stage
        self._started: list[Process] = []

    def start_pool(self, *options: str, silent_s: float = 15.0, grace_s: float = 0.5) -> Process:
        process = self._keep(
            self._run(HERE / "start_pool.py", silent_s, grace_s, "pool", "start", *options)
        )
        until(lambda: self._serves(process), "the pool serves")
        return process

    def _serves(self, process: Process) -> bool:
        assert process.code is None, process.said()
        return any(pool.pid == process.pid for pool in served("pool", self.pools))

    def claim(self, devices: int, *options: str, name: str) -> Claim:
        """Start a claim of so many devices."""
        one = self._run(*self._pliant, "claim", devices, "--name", name, "--json", *options)
        claim = Claim(one.program, one.out, name)
        self._started.append(claim)
        return claim

    def start(self, *arguments: str) -> Process:
        """Start a command."""
        return self._keep(self._run(*self._pliant, *arguments))

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command to its end; return its exit code and what it said."""
        process = self.start(*arguments)
        return process.ended(), process.said()

    def served(self) -> Served:
        return served("pool", self.pools)[0]

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        with contextlib.closing(Caller(self.served())) as caller:
            return caller.ask(method, path, body)

    def status(self) -> dict[str, Any]:
        return self.ask("GET", "/v1/status")

    def claims(self) -> dict[str, dict[str, Any]]:
        return {claim["name"]: claim for claim in self.status()["claims"]}

    def records(self, kind: str) -> list[Record]:
        records = read(self.pools / "default" / "events.jsonl")
        return [record for record in records if record["kind"] == kind]

    def users(self, device: int) -> set[int]:
        """Return the processes that use a device, by the kernel's word."""
        return {holder.pid for holder in holders(self.locks, device)}

    def used(self, devices: int = 8) -> set[int]:
        return {device for device in range(devices) if not is_free(self.locks, device)}

    def end(self) -> None:
        """End everybody."""
        for process in self._started:
            process.send(signal.SIGKILL)
        for process in self._started:
            process.ended()

    def _run(self, *words: object) -> Process:
        out = self.directory / f"{len(self._started)}.out"
        program = self._stage.start(
            *words, out=out, environment=self.environment, cwd=self.directory
        )
        return Process(program, out)

    def _keep(self, process: Process) -> Process:
        self._started.append(process)
        return process


@contextlib.contextmanager
def box(directory: Path, *, has_torch: bool = False) -> Iterator[Box]:
    """Lend a box; at its end nobody is left on it.  With torch, its jobs train without a wait."""
    with stage(forked=True, has_torch=has_torch) as here:
        lent = Box(directory, here, has_torch=has_torch)
        try:
            yield lent
        finally:
            lent.end()
            until(lambda: lent.used(64) == set(), "nobody uses a device")
