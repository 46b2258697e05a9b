"""Starts a job of pliant for a benchmark, orders it about and reads its event log.

Owns the way in: the command line, the job's REST interface with its token (lighter than starting
``pliant scale`` beside the measured workers, and what that command calls), the event log.  Must
not know what is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from pliant.observe.log import Record
from pliant.observe.reading import read

CLI = (sys.executable, "-m", "pliant")


@dataclass(frozen=True, slots=True, kw_only=True)
class PliantJob:
    """One running job."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def out(self) -> Path:
        """Where the run writes its files."""
        return self.folder / "run"

    def records(self) -> list[Record]:
        """Return the event log so far."""
        return list(read(self.out / "events.jsonl"))

    def status(self) -> dict[str, Any]:
        """Return what ``pliant status --json`` prints."""
        return self._call("GET", "/v1/status")

    def scale(self, target: int) -> None:
        """Wish for another number of replicas."""
        self._call("POST", "/v1/scale", {"target": target})

    def drain(self, replica: str, notice_s: float = 30.0) -> None:
        """Let a replica leave on notice."""
        self._call("POST", f"/v1/replicas/{replica}/drain", {"notice_s": notice_s})

    def sigkill(self, replica: str) -> None:
        """Kill the worker process itself, as the kernel would."""
        known = {r["name"]: r["pids"] for r in self.status()["replicas"]}
        os.kill(known[replica][0], signal.SIGKILL)

    def _call(self, verb: str, path: str, body: object = None) -> dict[str, Any]:
        jobs = self.folder / "state" / "pliant" / "jobs"
        url = json.loads((jobs / f"{self.name}.json").read_text())["url"]
        token = (jobs / f"{self.name}.token").read_text().strip()
        request = urllib.request.Request(
            url + path,
            method=verb,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


@contextlib.contextmanager
def running(
    folder: Path,
    script: Sequence[str],
    *,
    least: int,
    start: int,
    most: int,
    name: str,
    more: Mapping[str, str] | None = None,
) -> Iterator[PliantJob]:
    """Start a job with its own state directory; end it, with all its processes, on the way out.

    ``more`` goes into its environment.
    """
    command = [
        *(*CLI, "run", "--name", name, "--out", str(folder / "run")),
        *("--min", str(least), "--start", str(start), "--max", str(most)),
        *script,
    ]
    environment = harness.environment(XDG_STATE_HOME=str(folder / "state"), **(more or {}))
    output = folder / "output.txt"
    with harness.process(command, env=environment, output=output) as started:
        try:
            yield PliantJob(name=name, folder=folder, process=started)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            raise RuntimeError(f"{error}\n{output.read_text()[-4000:]}") from error
