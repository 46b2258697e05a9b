"""Forks a program from a process that has imported what the program would take seconds to import.

Owns what forking must put right: a program finds the signals, paths, environment, files and
streams that ``python PROGRAM`` would give it, and ends as it would.  Its fork server is forked as
well.  From there on nothing is special: workers are forked as ever.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import runpy
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, NoReturn

from tests.live import entering

from pliant.agent.launcher import DEFAULT_ENVIRONMENT, FIXED_ENVIRONMENT
from pliant.engine.worker import bootstrap, fork_server
from pliant.machine.processes import die_with_parent, signal_at_parents_death

_PATH = sys.path[1:]
"""Where a fresh interpreter looks, besides the directory of what it was started with."""


def fork(work: Callable[[], object]) -> int:
    """Run ``work`` in a child that dies with this process; return its number.

    The child is in a session of its own, treats signals as a fresh interpreter does, and ends as
    one: after its threads and its ``atexit`` handlers.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        die_with_parent(parent, code=1)
        _reset_signals()
        code = _code_of(work)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        bootstrap.flush_files()
    finally:
        os._exit(code)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a job of a shell's background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _code_of(work: Callable[[], object]) -> int:
    """Return the exit code that the interpreter would end with after ``work``."""
    try:
        try:
            work()
        except SystemExit:
            raise
        except BaseException as error:  # a process boundary
            error.__traceback__ = _of_the_program(error.__traceback__)
            sys.excepthook(type(error), error, error.__traceback__)
            if isinstance(error, KeyboardInterrupt):
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
            return 1
    except SystemExit as stop:  # also of the hook
        if isinstance(stop.code, int | None):
            return stop.code or 0
        sys.stderr.write(f"{stop.code}\n")
        return 1
    return 0


def _of_the_program(trace: TracebackType | None) -> TracebackType | None:
    """Return it from where an interpreter would begin to tell it."""
    found = trace
    while found is not None and found.tb_frame.f_code is not _run_script.__code__:
        found = found.tb_next
    return trace if found is None else found.tb_next


def run(
    words: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    out: str,
    err: str | None = None,
    host: int | None = None,
) -> None:
    """Become ``python *words``, whose output is added to the files ``out`` and ``err``.

    ``host``: a process whose namespaces this one enters first.
    """
    with Path(out).open("ab") as said, Path(err or out).open("ab") as complained:
        say_to(said.fileno(), complained.fileno())
    _close_all_but({0, 1, 2})
    if host is not None:
        entering.enter(host)
    _settle(cwd, environment)
    more = _more_path(environment)
    sys.path[:] = [*more, *_PATH]
    _customise(more)
    if words[0] == "-m":
        sys.argv[:], sys.path[:0] = words[1:], [cwd]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        script = Path(words[0]).absolute()
        sys.argv[:], sys.path[:0] = words, [str(script.parent)]
        _run_script(str(script))


def _run_script(path: str) -> None:
    """Run it as its interpreter would; ``runpy`` changes ``sys.argv`` and adds to tracebacks."""
    sys.modules["__main__"] = main = ModuleType("__main__")
    main.__file__ = path
    exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)


def _more_path(environment: Mapping[str, str]) -> list[str]:
    """Return where an interpreter looks in this environment, and this one would not."""
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    return [each for each in given if each and each not in _PATH]


def _customise(places: Sequence[str]) -> None:
    """Do what ``sitecustomize`` does there; modules that it changes are imported already."""
    if any(Path(place, "sitecustomize.py").exists() for place in places):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


class ForkedServer:
    """A fork server as ``launcher.start_server`` starts it, but that it is forked."""

    def __init__(
        self, control: int, *, cwd: Path, environment: Mapping[str, str], output: IO[bytes]
    ) -> None:
        self._code: int | None = None
        settled = {**DEFAULT_ENVIRONMENT, **environment, **FIXED_ENVIRONMENT}
        self.pid = fork(lambda: _be_server(control, cwd, settled, output.fileno()))

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _be_server(control: int, cwd: Path, environment: Mapping[str, str], output: int) -> NoReturn:
    signal_at_parents_death(0)  # it buries its workers when the agent is gone
    say_to(output, output)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # `pliant run` has its own
    _close_all_but({0, 1, 2, control})
    _settle(cwd, environment)
    sys.argv[:] = ["forkserver", str(control)]
    sys.path[:] = ["", *_more_path(environment), *_PATH]  # what changed the agent changes this, too
    fork_server.main()


def _settle(cwd: Path | str, environment: Mapping[str, str]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # is looked up again


def say_to(said: int, complained: int) -> None:
    """Let what this process says and complains of go to open files."""
    os.dup2(said, 1)
    os.dup2(complained, 2)


def _close_all_but(kept: Collection[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # numbers, not paths
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def buried() -> Iterator[tuple[int, int]]:
    """Bury the dead children, adopted ones included; yield who they were and their statuses."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def children() -> list[int]:
    """List living children, adopted ones included; the dead among them are buried."""
    for _ in buried():
        pass
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii")
    return [int(word) for word in text.split()]


def end_children() -> None:
    """Kill whatever lives below this process, adopted ones included."""
    while left := children():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
