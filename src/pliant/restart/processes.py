"""The processes of a script that one replica has in one generation: started, watched, ended.

Owns their environment, which is torchrun's, their groups of processes, what they print on stderr
last, and how each has ended.  Must not know why they are started or ended.

    started --exit 0--> done           all of them: the script is done
            --other---> failed         the first: a fault of the generation
            --SIGTERM, then SIGKILL--> ended

Each leads a process group; what is left of that when it ends is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pliant.core.errors import ConfigError
from pliant.machine.event_loop import within
from pliant.machine.named_modules import FLAG as MODULE
from pliant.machine.processes import signal_name
from pliant.restart.output import ERR, OUT, Logs, Output
from pliant.restart.page import PAGE_VARIABLE, Page

NO_PYTHON = "--no-python"
"""Begins a command that is a program of its own."""

ON_PATH = Path(__file__).parents[1] / "integrations" / "on_path"
"""Directory with the package by whose name scripts for HyperPod import what they ask."""

KILL_S = 5.0
"""From SIGTERM to SIGKILL, in seconds, where nothing is to be saved."""

DEFAULTS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
"""In the environment, as torchrun sets it, unless something else is there."""

TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Where the processes of one replica stand among all of a generation."""

    replica: str
    group_rank: int
    group_world_size: int
    local_world_size: int
    first_rank: int
    world_size: int
    master: tuple[str, int]
    """Address and port of rank 0's store, which its process opens itself."""

    role: str = "default"
    restarts: int = 0
    """Faults after which all were started again."""

    def environment(self, local_rank: int, *, job: str, max_restarts: int) -> dict[str, str]:
        """Return what torchrun tells a process of where it stands."""
        rank = self.first_rank + local_rank
        values = {
            "LOCAL_RANK": local_rank,
            "RANK": rank,
            "GROUP_RANK": self.group_rank,
            "ROLE_RANK": rank,
            "ROLE_NAME": self.role,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "WORLD_SIZE": self.world_size,
            "GROUP_WORLD_SIZE": self.group_world_size,
            "ROLE_WORLD_SIZE": self.world_size,
            "MASTER_ADDR": self.master[0],
            "MASTER_PORT": self.master[1],
            "TORCHELASTIC_RESTART_COUNT": self.restarts,
            "TORCHELASTIC_MAX_RESTARTS": max_restarts,
            "TORCHELASTIC_RUN_ID": job,
            "TORCHELASTIC_USE_AGENT_STORE": False,
        }
        return {name: str(value) for name, value in values.items()}


@dataclass(slots=True)
class Process:
    """One process of the script."""

    rank: int
    popen: subprocess.Popen[bytes]
    pidfd: int
    outputs: Sequence[Output]
    """Of stderr, and of stdout if that goes elsewhere."""

    error_file: Path
    page: Page
    code: int | None = None
    """How it has ended, as of ``Popen.returncode``; None: it runs."""

    is_told: bool = False
    """It was sent SIGTERM."""

    @property
    def how(self) -> str:
        """Say how it has ended."""
        code = self.code or 0
        return f"was ended by {signal_name(-code)}" if code < 0 else f"exited with code {code}"

    def error(self) -> tuple[str, str]:
        """Return the last line of what it says of its failure, and the traceback; empty: nothing.

        What ``@record`` of torch has written says most, else what it printed.
        """
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            said: Any = json.loads(self.error_file.read_text())["message"]
            if isinstance(said, dict):
                callstack = str(said.get("extraInfo", {}).get("py_callstack", ""))
                return str(said["message"]), callstack
            return str(said), ""
        text = self.outputs[0].tail.decode(errors="replace")
        _, found, rest = text.rpartition(TRACEBACK)
        if not found:
            return "", ""
        lines = rest.splitlines()
        last = next((n for n in range(1, len(lines)) if lines[n][:1].strip()), len(lines) - 1)
        return lines[last], "\n".join([found + lines[0], *lines[1 : last + 1]]) + "\n"


def arguments_of(command: Sequence[str]) -> list[str]:
    """Return what is executed for a script, a module or a program."""
    if command[0] == NO_PYTHON:
        return list(command[1:])
    flags = [MODULE, *command[1:]] if command[0] == MODULE else list(command)
    return [sys.executable, "-u", *flags]


class Processes:
    """Those of one replica in one generation."""

    def __init__(
        self,
        command: Sequence[str],
        ranks: Ranks,
        *,
        job: str,
        max_restarts: int,
        environ: Mapping[str, str],
        directory: Path,
        logs: Logs,
        on_exit: Callable[[], None],
    ) -> None:
        """Start them; ``on_exit`` is called when one has ended, ``directory`` is made for them.

        Raises:
            ConfigError: one cannot be started; those before it are ended.
        """
        self.ranks = ranks
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self._logs = logs
        self.all: list[Process] = []
        try:
            for local_rank in range(ranks.local_world_size):
                told = ranks.environment(local_rank, job=job, max_restarts=max_restarts)
                self._start(arguments_of(command), local_rank, {**DEFAULTS, **environ, **told})
        except OSError as error:
            self.close()
            raise ConfigError(f"{' '.join(command)} cannot be started: {error}") from error

    @property
    def running(self) -> list[Process]:
        """Return those that have not ended."""
        return [one for one in self.all if one.code is None]

    @property
    def failed(self) -> Process | None:
        """Return the first that has failed: a signal says more than what follows from it."""
        failed = [one for one in self.all if one.code]
        return min(failed, key=lambda one: (one.code or 0) > 0, default=None)

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to those that run."""
        for one in self.running:
            one.is_told = True
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(one.pidfd, number)

    def kill(self) -> None:
        """Kill those that run, with all of their groups."""
        for one in self.running:
            _kill_group(one.popen.pid)

    def close(self) -> None:
        """Let go of everything; those that run are killed and waited for."""
        self.kill()
        for one in self.running:
            one.popen.wait()
            self._reap(one)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self, arguments: list[str], local_rank: int, environ: dict[str, str]) -> None:
        directory = self._directory / str(local_rank)
        directory.mkdir(parents=True)
        error_file = directory / "error.json"
        page = Page(directory / "page", is_new=True)
        more = {
            "TORCHELASTIC_ERROR_FILE": str(error_file),
            PAGE_VARIABLE: str(directory / "page"),
        }
        # A function before exec, whatever it does, makes Python run its hooks of fork: those of the
        # fork server tie the process to this one (PR_SET_PDEATHSIG).
        popen = subprocess.Popen(  # noqa: S603  # what people asked for
            arguments,
            env={**environ, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._logs.takes(OUT) else None,
            stderr=subprocess.PIPE,
            process_group=0,
            preexec_fn=_nothing,
        )
        outputs = [
            Output(pipe, stream, self._logs, environ)
            for pipe, stream in ((popen.stderr, ERR), (popen.stdout, OUT))
            if pipe is not None
        ]
        rank = self.ranks.first_rank + local_rank
        one = Process(rank, popen, os.pidfd_open(popen.pid), outputs, error_file, page)
        self.all.append(one)
        self._loop.add_reader(one.pidfd, self._reap, one)
        for output in outputs:
            self._loop.add_reader(output.pipe, self._pass_on, output)

    def _pass_on(self, output: Output) -> None:
        if output.pass_on() is None:
            self._loop.remove_reader(output.pipe)

    def _reap(self, one: Process) -> None:
        if one.code is not None:
            return
        _kill_group(one.popen.pid)  # before it is reaped its number is nobody else's
        one.code = one.popen.wait()
        self._loop.remove_reader(one.pidfd)
        os.close(one.pidfd)
        for output in one.outputs:
            self._loop.remove_reader(output.pipe)
            output.close()
        self._on_exit()


async def ended(processes: Processes, news: asyncio.Event, limit_s: float) -> bool:
    """Wait until none runs any more, for so long; return whether that is so."""
    until_s = time.monotonic() + limit_s
    while processes.running:
        if (left_s := until_s - time.monotonic()) <= 0:
            return False
        news.clear()
        await within(news.wait(), left_s)
    return True


async def end(processes: Processes, news: asyncio.Event, *, limit_s: float = KILL_S) -> None:
    """End those that run: SIGTERM, and after ``limit_s`` SIGKILL."""
    processes.signal_all(signal.SIGTERM)
    if not await ended(processes, news, limit_s):
        processes.kill()
        await ended(processes, news, KILL_S)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _nothing() -> None:
    """Do nothing."""


def free_port(host: str) -> int:
    """Return a port that is free now: whoever listens there opens it itself."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def surroundings() -> dict[str, str]:
    """Return the environment of scripts, in which those for HyperPod find what they import."""
    found = dict(os.environ)
    if find_spec("hyperpod_elastic_agent") is None:
        paths = (found.get("PYTHONPATH"), str(ON_PATH))
        found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return found
