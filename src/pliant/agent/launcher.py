"""How the process of a fork server is started, and with which environment.

Knows nothing of what is said to it (``fork_servers``).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

SERVER_ARGUMENTS = ("-m", "pliant.engine.worker.fork_server")
"""What the interpreter is started with."""

RESTART_ARGUMENTS = ("-m", "pliant.restart.server")
"""The same in restart mode."""

FIXED_ENVIRONMENT = {
    # glibc gives memory back and faults it in again: up to 57,000 page faults a step.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    # Else torch initialises the driver where it looks for one, and no fork of it can use a device.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Read once, when a process starts; hence set here and not in the worker."""

DEFAULT_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""Set unless the user did: replicas must agree on the order of sets of strings."""


class ServerProcess(Protocol):
    """What is used of the process that a fork server is."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""

    def wait(self) -> int:
        """Wait until it has ended, and return how."""

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""


class StartServer(Protocol):
    """How the process of a fork server is started; returns at once."""

    def __call__(
        self, control: int, *, cwd: Path, environment: Mapping[str, str], output: IO[bytes]
    ) -> ServerProcess:
        """Start it with its end of the socket, and with files for what it prints."""


def start_restart_server(
    control: int, *, cwd: Path, environment: Mapping[str, str], output: IO[bytes]
) -> ServerProcess:
    """Start what starts the processes of scripts as they are: they get the environment alone."""
    return _started(control, RESTART_ARGUMENTS, cwd=cwd, environment=environment, output=output)


def start_server(
    control: int,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    output: IO[bytes],
    arguments: Sequence[str] = SERVER_ARGUMENTS,
) -> ServerProcess:
    """Start a fork server, which has torch imported."""
    surroundings = {**DEFAULT_ENVIRONMENT, **environment, **FIXED_ENVIRONMENT}
    return _started(control, arguments, cwd=cwd, environment=surroundings, output=output)


def _started(
    control: int,
    arguments: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    output: IO[bytes],
) -> ServerProcess:
    """Start an interpreter, in a session of its own: Ctrl-C in the terminal ends the agent only."""
    return subprocess.Popen(  # noqa: S603  # our own modules
        [sys.executable, *arguments, str(control)],
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[control],
        start_new_session=True,
    )
