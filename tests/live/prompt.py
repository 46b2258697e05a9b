"""What people type at a prompt: ``pliant ...`` or a script, with what it says and complains of.

Forked from a process that has imported everything, which saves seconds a command.  That a command
works in an interpreter of its own is for a few tests to ask.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.stage import FORKED_PLIANT, Program, Stage, stage

from pliant.core.errors import ConfigError
from pliant.http.client import Caller
from pliant.machine.registry import StateDirectory, running_jobs

WAIT_S = 120.0
"""Longest wait for the end of a command: a loaded machine takes half a minute to import torch."""


@dataclass(frozen=True)
class Typed:
    """A command that was typed."""

    words: tuple[str, ...]
    program: Program
    stage: Stage
    out: Path
    err: Path

    def ended(self) -> subprocess.CompletedProcess[str]:
        """Wait until it has ended and nothing that came of it lives; return what it said."""
        code = self.program.wait(WAIT_S)
        until_s = time.monotonic() + WAIT_S
        while left := self.stage.processes():
            assert time.monotonic() < until_s, f"{self.words} left {left}: {self.err.read_text()}"
            time.sleep(0.02)  # polling processes of others
        said, complained = (path.read_text("utf-8", "replace") for path in (self.out, self.err))
        return subprocess.CompletedProcess(self.words, code, said, complained)


@contextmanager
def typed(*words: object, cwd: Path, environment: Mapping[str, str]) -> Iterator[Typed]:
    """Start ``pliant *words``, or ``python *words``; at the end nothing of it lives."""
    plain = tuple(map(str, words))
    started = (str(FORKED_PLIANT), *plain[1:]) if plain[0] == "pliant" else plain
    with tempfile.TemporaryDirectory() as place, stage(forked=True) as here:
        out, err = Path(place, "out"), Path(place, "err")
        program = here.start(*started, out=out, err=err, environment=environment, cwd=cwd)
        yield Typed(plain, program, here, out, err)


def run_typed(
    *words: object, cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Start it as ``typed`` does, and wait for its end."""
    with typed(*words, cwd=cwd, environment=environment) as command:
        return command.ended()


def run_together(
    *commands: Sequence[object], cwd: Path, environment: Mapping[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    """Start them beside each other, as processes that meet are, and wait until all have ended."""
    with ExitStack() as all_of_them:
        begun = [
            all_of_them.enter_context(typed(*words, cwd=cwd, environment=environment))
            for words in commands
        ]
        return [command.ended() for command in begun]


def statuses(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what ``pliant status --json`` prints of each job that runs there."""
    found = []
    for job in running_jobs(StateDirectory.of(environment).jobs):
        try:
            with closing(Caller(job)) as caller:
                found.append(caller.ask("GET", "/v1/status"))
        except ConfigError:  # it has just ended, or not quite begun
            found.append({"state": "ending", "job": job.name})
    return found
