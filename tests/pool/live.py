"""Real pools and claims in processes of their own, looked at from outside.

Owns their start and end, and the checks that trust nobody: who uses a device is seen by the
kernel's word on its lock, not by what a pool says.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pliant.cli.client import Caller
from pliant.cli.discovery import Served, served
from pliant.observe.log import Record, read
from pliant.wire.devices import holders, is_free

DEADLINE_S = 15.0
"""No wait of a test is longer, in seconds."""

QUICK = """
import sys
from pliant.cli import pooling
from pliant.pool.driver import PoolSettings
from pliant.wire.clock import TICK_S

run = pooling.run_pool
def run_quickly(config, *, listener):
    from dataclasses import replace
    settings = PoolSettings(silent_s=float(sys.argv[1]), grace_s=float(sys.argv[2]))
    return run(replace(config, settings=settings), listener=listener)
pooling.run_pool = run_quickly

from pliant.cli.main import main
main(sys.argv[3:])
"""
"""``pliant pool start`` with other waits than those of people."""


def until(is_so: Callable[[], object], what: str, within_s: float = DEADLINE_S) -> None:
    """Wait for something that is seen from outside."""
    pause, deadline_s = threading.Event(), time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {what}"
        pause.wait(0.02)


@dataclass
class Claim:
    """One ``pliant claim`` that runs."""

    name: str
    process: subprocess.Popen[str]
    said: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.said.append(json.loads(line))

    @property
    def state(self) -> str:
        return str(self.said[-1]["state"]) if self.said else ""

    @property
    def devices(self) -> list[int]:
        given = [one["devices"] for one in self.said if "devices" in one]
        return list(given[-1]) if given else []

    @property
    def reason(self) -> str:
        return str(self.said[-1]["reason"])

    def until(self, state: str, within_s: float = DEADLINE_S) -> None:
        until(lambda: self.state == state, f"{self.name} is {state}, not {self.said}", within_s)

    def ended(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.ended()


class Box:
    """One machine: its state directory, its pools and everybody who was started on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PLIANT_")},
            "XDG_STATE_HOME": str(directory),
        }
        self.pools = directory / "pliant" / "pools"
        self.locks = self.pools / "default" / "devices"
        self._started: list[subprocess.Popen[Any]] = []
        self._claims: list[Claim] = []

    def start_pool(
        self, *options: str, silent_s: float = 15.0, grace_s: float = 0.5
    ) -> subprocess.Popen[Any]:
        arguments = [str(silent_s), str(grace_s), "pool", "start", *options]
        process = self._start([sys.executable, "-c", QUICK, *arguments])
        until(lambda: self._serves(process), f"the pool serves ({process.poll()})")
        return process

    def _serves(self, process: subprocess.Popen[Any]) -> bool:
        assert process.poll() is None, "the pool has ended"
        return any(pool.pid == process.pid for pool in served("pool", self.pools))

    def claim(self, devices: int, *options: str, name: str) -> Claim:
        """Start a claim of so many devices; it says what it is told as JSON."""
        arguments = ["claim", str(devices), "--name", name, "--json", *options]
        process = self._start(
            [sys.executable, "-m", "pliant", *arguments], stdout=subprocess.PIPE, text=True
        )
        claim = Claim(name, process)
        self._claims.append(claim)
        return claim

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "pliant", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

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
        records = read(self.pools / "default" / "events.jsonl").records
        return [record for record in records if record["kind"] == kind]

    def users(self, device: int) -> set[int]:
        """Return the processes that use a device, by the kernel's word."""
        return {holder.pid for holder in holders(self.locks, device)}

    def used(self, devices: int = 8) -> set[int]:
        return {device for device in range(devices) if not is_free(self.locks, device)}

    def end(self) -> None:
        """End everybody; nothing of a pool that has ended in order is left but its files."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in self._started:
            process.wait(DEADLINE_S)
        for claim in self._claims:
            claim.ended()

    def _start(self, arguments: list[str], **options: Any) -> subprocess.Popen[Any]:
        process: subprocess.Popen[Any] = subprocess.Popen(
            arguments, env=self.environment, **options
        )
        self._started.append(process)
        return process


@contextlib.contextmanager
def box(directory: Path) -> Iterator[Box]:
    """Lend a box; at its end nobody is left on it."""
    lent = Box(directory)
    try:
        yield lent
    finally:
        lent.end()
        assert lent.used(64) == set()
