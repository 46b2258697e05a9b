"""Where a test starts programs, each ``python WORDS``, and finds every process that came of them.

    fresh     a new interpreter for each program, as a user starts it
    forked    forked from a process that has imported everything: seconds faster (``zygote.py``)

At its end nothing on a stage lives, whatever the test did.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import psutil

from pliant.agent.launcher import DEFAULT_ENVIRONMENT, FIXED_ENVIRONMENT

ROOT = Path(__file__).parents[2]
FORKED_PLIANT = Path(__file__).with_name("forked_pliant.py")
"""``pliant`` on a forked stage, with forked fork servers."""

DEADLINE_S = 60.0
BEGINS_S = 240.0
"""Until a zygote has imported everything, where that has a tenth of a core."""

MAX_RECORD_BYTES = 1 << 17
MARK = "PLIANT_TEST_MARK"


class Program(Protocol):
    """What is used of a ``subprocess.Popen``."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """How it ended; None before that was asked for."""

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return how."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""


class Stage(Protocol):
    """Where a test starts programs."""

    def start(
        self,
        *words: object,
        out: Path,
        environment: Mapping[str, str],
        cwd: Path | None = None,
        err: Path | None = None,
    ) -> Program:
        """Start ``python *words`` in a session of its own; what it says is added to ``out``.

        What it complains of is added to ``err`` if that is given, else to ``out`` as well.
        """

    def processes(self) -> list[psutil.Process]:
        """List every living process that was ever started here, whatever became of its parent."""

    def end(self) -> None:
        """Kill whatever lives here, and wait until it is gone."""


@contextlib.contextmanager
def stage(*, forked: bool, has_torch: bool = True) -> Iterator[Stage]:
    """Lend a stage; what is forked there has torch loaded unless it needs none."""
    lent = ForkedStage(zygote(has_torch=has_torch).request()) if forked else FreshStage()
    try:
        yield lent
    finally:
        lent.end()


# --- fresh ----------------------------------------------------------------------------------


class FreshStage:
    """Programs as a user starts them; a variable of the environment marks what came of them."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self._programs: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        *words: object,
        out: Path,
        environment: Mapping[str, str],
        cwd: Path | None = None,
        err: Path | None = None,
    ) -> Program:
        with out.open("ab") as said, (err or out).open("ab") as complained:
            program = subprocess.Popen(
                [sys.executable, *map(str, words)],
                stdout=said,
                stderr=complained,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                env={**environment, MARK: self._mark},
                start_new_session=True,
            )
        self._programs.append(program)
        return program

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and _is_alive(process):
                    found.append(process)
        return found

    def end(self) -> None:
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        for program in self._programs:
            program.wait(DEADLINE_S)


# --- forked ---------------------------------------------------------------------------------


class Forked:
    """A program on a forked stage."""

    def __init__(self, stage: ForkedStage) -> None:
        self._stage = stage
        self.pid = 0
        self.returncode: int | None = None

    def poll(self) -> int | None:
        while self.returncode is None and self._stage.hear(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        timeout_s = DEADLINE_S if timeout is None else timeout
        until_s = time.monotonic() + timeout_s
        while self.returncode is None:
            if not self._stage.hear(max(0.0, until_s - time.monotonic())):
                raise subprocess.TimeoutExpired("a forked program", timeout_s)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedStage:
    """The test's end of a stage (``zygote.py``), which adopts what its programs leave."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._programs: list[Forked] = [Forked(self)]
        try:
            self._await(self._programs[0], BEGINS_S)
        except BaseException:
            control.close()
            raise

    def start(
        self,
        *words: object,
        out: Path,
        environment: Mapping[str, str],
        cwd: Path | None = None,
        err: Path | None = None,
        host: int | None = None,
    ) -> Program:
        """Start it as any stage does; ``host``: where that process is, in its namespaces."""
        program = Forked(self)
        self._programs.append(program)
        for path in (out, err or out):
            path.touch()  # may be read before the program has begun
        asked = {
            "number": len(self._programs) - 1,
            "words": [str(word) for word in words],
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(environment),
            "out": str(out),
            "err": str(err or out),
            "host": host,
        }
        self._control.send(json.dumps(asked).encode())
        self._await(program)
        return program

    def processes(self) -> list[psutil.Process]:
        """List them twice or more: one whose parent ends meanwhile may be missed once."""
        before: set[psutil.Process] | None = None
        while (found := self._descendants()) != before:
            before = found
        return [process for process in found if _is_alive(process)]

    def end(self) -> None:
        self._control.shutdown(socket.SHUT_WR)
        until_s = time.monotonic() + DEADLINE_S
        with self._control, contextlib.suppress(EOFError):
            while self.hear(max(0.0, until_s - time.monotonic())):
                pass
            raise TimeoutError("the stage does not end")

    def hear(self, timeout_s: float) -> bool:
        """Take in one piece of news; False if none comes."""
        ready, _, _ = select.select([self._control], [], [], timeout_s)
        if not ready:
            return False
        data = self._control.recv(MAX_RECORD_BYTES)
        if not data:
            raise EOFError("the stage is gone")
        news = json.loads(data)
        program = self._programs[news["number"]]
        program.pid = news.get("pid", program.pid)
        program.returncode = news.get("code")
        return True

    def _await(self, program: Forked, within_s: float = DEADLINE_S) -> None:
        until_s = time.monotonic() + within_s
        while not program.pid:
            if not self.hear(max(0.0, until_s - time.monotonic())):
                raise TimeoutError("the zygote forks nothing")

    def _descendants(self) -> set[psutil.Process]:
        return set(psutil.Process(self._programs[0].pid).children(recursive=True))


class Zygote:
    """The test's end of a zygote (``zygote.py``)."""

    def __init__(self, *, has_torch: bool) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.live.zygote", *["torch"] * has_torch],
                cwd=ROOT,
                stdin=theirs.fileno(),
                env={**DEFAULT_ENVIRONMENT, **os.environ, **FIXED_ENVIRONMENT},
                start_new_session=True,
            )

    def request(self) -> socket.socket:
        """Have a stage forked; return the test's end of the socket to it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._requests, [b"."], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """End the zygote, and with it every stage."""
        self._requests.close()
        self._process.wait(DEADLINE_S)


_ZYGOTES: dict[bool, Zygote] = {}


def zygote(*, has_torch: bool = True) -> Zygote:
    """Return a zygote of this test process; it starts when it is first needed."""
    if has_torch not in _ZYGOTES:
        _ZYGOTES[has_torch] = Zygote(has_torch=has_torch)
    return _ZYGOTES[has_torch]


def end_zygotes() -> None:
    """End the zygotes of this test process."""
    while _ZYGOTES:
        _ZYGOTES.popitem()[1].close()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
