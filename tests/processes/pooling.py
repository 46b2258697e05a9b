"""Starts a pool that offers what a test tells it to, and looks at the locks of its devices."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pliant.core.errors import ConfigError
from pliant.machine import device_locks as locks
from pliant.machine.registry import find_pool
from pliant.wire.offers import Report

DEADLINE_S = 60.0
NAME = "default"


@dataclass
class FakePool:
    """A pool in a process of its own, below the state directory of a test."""

    process: subprocess.Popen[bytes]
    directory: Path
    url: str = ""

    def offer(self, claim: str, *devices: int, is_pushed: bool = True, **more: Any) -> None:
        """Offer these devices from now on; unless pushed, only as the answer to a report."""
        body = {"devices": devices, "is_pushed": is_pushed, **more}
        httpx.put(f"{self.url}/test/{claim}", json=body, trust_env=False).raise_for_status()

    def refuse(self, sentence: str) -> None:
        """Refuse every claim from now on."""
        httpx.put(f"{self.url}/test/refuse", json={"sentence": sentence}, trust_env=False)

    def reports(self, claim: str) -> list[Report]:
        """Return what was reported, without what was only said again."""
        values = httpx.get(f"{self.url}/test/{claim}", trust_env=False).json()
        return [Report.model_validate(value) for value in values]

    def report(self, claim: str) -> Report:
        """Return the last report."""
        return self.reports(claim)[-1]

    def wait_for(self, claim: str, what: Callable[[Report], bool]) -> Report:
        """Return the first report of which that is true."""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            for report in self.reports(claim):
                if what(report):
                    return report
            time.sleep(0.02)
        raise AssertionError(self.reports(claim)[-3:])

    def users(self) -> dict[int, list[int]]:
        """Return which processes hold which devices, by the kernel's word."""
        held = {
            int(path.stem): [one.pid for one in locks.holders(path.parent, int(path.stem))]
            for path in self.locks.glob("*.lock")
        }
        return {device: pids for device, pids in held.items() if pids}

    @property
    def locks(self) -> Path:
        """Where the locks of the devices are."""
        return self.directory / "state" / "pliant" / "pools" / NAME / "devices"


@contextmanager
def fake_pool(directory: Path) -> Iterator[FakePool]:
    """Run a pool for the jobs of this directory; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("fake_pool.py")), NAME],
        env={**os.environ, "XDG_STATE_HOME": str(directory / "state")},
        stdin=subprocess.DEVNULL,
    )
    pool = FakePool(process, directory)
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while not pool.url:
            try:
                found = find_pool(NAME, directory / "state" / "pliant" / "pools")
                pool.url = found.url if found.pid == process.pid else ""
            except ConfigError:
                assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        yield pool
    finally:
        process.kill()
        process.wait()
