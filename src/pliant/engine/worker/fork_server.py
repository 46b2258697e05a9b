"""Starts workers warm: one process that has torch imported and forks the others.

Owns its children: forks them on request, kills them, reaps them, reports how they ended, leaves
signals for the whole job to the run, and leaves nothing behind when the agent dies.  Knows nothing
of what they train.

    agent ==socket pair of records== fork server --fork--> worker --fork--> its loader processes

One thread, no tensor operation, no ``torch.cuda`` call.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, assert_never

from pliant.core.errors import EXIT_FAILED
from pliant.core.events import ExitKind
from pliant.engine.worker import bootstrap
from pliant.machine.event_loop import END_SIGNALS
from pliant.machine.processes import adopt_orphans, die_with_parent
from pliant.wire import launch
from pliant.wire.codec import encode
from pliant.wire.framing import frame
from pliant.wire.messages import Ended

WARM_MODULES: tuple[str, ...] = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.optim",
    "pliant.engine.session",
)
"""What takes seconds to import.  An optimizer's first use imports torch._dynamo."""

END_ALL_S = 5.0
"""Longest wait for killed children to be gone, in seconds; they cannot refuse."""


TIDY_S = 1.0
"""Longest time for those that a dead worker has started to be gone, in seconds, where one of them
is to remove its shared memory after that; then all are killed."""


class AgentGoneError(Exception):
    """The agent closed its end: this process has no purpose any more."""


class ForkServer:
    """The loop of the fork server, over an open socket to the agent."""

    def __init__(
        self,
        agent: socket.socket,
        run: Callable[[launch.Assignment, socket.socket], NoReturn] = bootstrap.run_worker,
        *,
        in_sessions: bool = False,
    ) -> None:
        """``run``: what a worker does; ``in_sessions``: each starts groups of processes, which are
        known by its session.
        """
        self._agent = agent
        self._run = run
        self._in_sessions = in_sessions
        self._workers: dict[int, launch.Assignment] = {}
        self._guarded: dict[str, os.stat_result] = {}
        self._child_r, self._child_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> NoReturn:
        """Serve until the agent is gone, then leave nothing behind and exit."""
        adopt_orphans()  # so that a dead worker's helpers end with it
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the agent's to handle
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._child_w, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._agent, select.POLLIN)
        poll.register(self._child_r, select.POLLIN)
        try:
            self._report(launch.ServerReady(pid=os.getpid()))
            while True:
                ready = {fd for fd, _ in poll.poll()}
                if self._child_r in ready:
                    self._reap()
                if self._agent.fileno() in ready:
                    self._obey()
        except AgentGoneError:
            self._guard_what_is_asked()
            self._end_all()
            os._exit(0)

    def _report(self, report: launch.Report) -> None:
        try:
            self._agent.send(launch.REPORTS.dump_json(report))
        except OSError as error:
            raise AgentGoneError from error

    def _obey(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(
                self._agent, launch.MAX_RECORD_BYTES, launch.NUM_START_FDS
            )
        except OSError as error:
            raise AgentGoneError from error
        if not data:
            raise AgentGoneError
        match launch.REQUESTS.validate_json(data):
            case launch.StartWorker(assignment=assignment):
                self._start(assignment, fds)
            case launch.KillReplica(replica=replica):
                for pid, assignment in self._workers.items():
                    if assignment.replica == replica:
                        _kill(pid)  # the rest of its group once it is dead
            case launch.GuardFiles(paths=paths):
                self._guard(paths)
            case other:
                assert_never(other)

    def _guard_what_is_asked(self) -> None:
        """Guard what a dead agent still asks for, as where it died while this process imported."""
        while True:
            try:
                data = self._agent.recv(launch.MAX_RECORD_BYTES, socket.MSG_DONTWAIT)
            except ConnectionResetError:
                continue  # said once, before what it has sent
            except OSError:
                return
            if not data:
                return
            request = launch.REQUESTS.validate_json(data)
            if isinstance(request, launch.GuardFiles):
                self._guard(request.paths)

    def _guard(self, paths: Iterable[str]) -> None:
        there = self._guarded.items()
        self._guarded = {known: guarded for known, guarded in there if os.path.lexists(known)}
        for path in paths:
            with contextlib.suppress(OSError):
                self._guarded[path] = Path(path).stat()

    def _start(self, assignment: launch.Assignment, fds: list[int]) -> None:
        parent = os.getpid()
        # OpenMP hangs the child of a process that has run a region of two threads, and a
        # parent-death signal follows the thread that forks: hence one thread does everything.
        try:
            pid = os.fork()
        except OSError as error:  # those that run must not end for want of room for another
            self._refuse(assignment, fds, f"no process for it: {error.strerror}")
            return
        if pid == 0:
            try:
                self._become_worker(assignment, fds, parent)
            finally:
                os._exit(EXIT_FAILED)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):  # the child does it too, whoever is first
            if not self._in_sessions:  # who leads a group can begin no session
                os.setpgid(pid, pid)
        self._workers[pid] = assignment
        replica, place = assignment.replica, assignment.place
        self._report(launch.WorkerStarted(replica=replica, place=place, pid=pid))

    def _refuse(self, assignment: launch.Assignment, fds: list[int], why: str) -> None:
        """Say, as its own last word, how one has ended that never had a process."""
        replica, detail = assignment.replica, f"it could not be started: {why}"
        said = Ended(replica=replica, kind=ExitKind.SIGNAL, detail=detail)
        with contextlib.suppress(OSError):
            os.write(fds[0], frame(encode(said, assignment.incarnation)))
        for fd in fds:
            os.close(fd)
        self._report_exit(assignment, pid=0, code=EXIT_FAILED)

    def _report_exit(self, ended: launch.Assignment, *, pid: int, code: int) -> None:
        replica, place = ended.replica, ended.place
        self._report(launch.WorkerExited(replica=replica, place=place, pid=pid, returncode=code))

    def _become_worker(
        self, assignment: launch.Assignment, fds: list[int], parent: int
    ) -> NoReturn:
        """Turn the forked child into a process of its own; never returns."""
        if self._in_sessions:
            os.setsid()
        else:
            os.setpgid(0, 0)
        die_with_parent(parent, code=EXIT_FAILED)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._agent.close()
        os.close(self._child_r)
        os.close(self._child_w)
        control, stdout, stderr = fds
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        _tie_children()
        leave_signals_in_loaders()
        self._run(assignment, socket.socket(fileno=control))

    def _reap(self) -> None:
        """Reap every child that has ended, and report the workers among them.

        A worker's process group is killed before the worker is reaped: until then its number
        cannot belong to anyone else.
        """
        with contextlib.suppress(BlockingIOError):
            os.read(self._child_r, 4096)
        for pid in _ended_children():
            if pid in self._workers:
                _end_group(pid)
            _, status = os.waitpid(pid, 0)
            ended = self._workers.pop(pid, None)
            if ended is not None:
                self._report_exit(ended, pid=pid, code=os.waitstatus_to_exitcode(status))

    def _end_all(self) -> None:
        """Leave nothing: no worker, no process of one, no file of the job's runtime."""
        deadline_s = time.monotonic() + END_ALL_S
        directories = []
        for path, guarded in self._guarded.items():
            with contextlib.suppress(OSError):
                if not os.path.samestat(Path(path).stat(), guarded):
                    continue
                if stat.S_ISDIR(guarded.st_mode):
                    directories.append(path)  # workers that live may still write there
                else:
                    Path(path).unlink()
        while time.monotonic() < deadline_s and (children := _children()):
            for pid in children:
                if not _is_tidying(pid):
                    _kill(pid)
            select.select([self._child_r], [], [], 0.02)
            for pid in _ended_children():
                os.waitpid(pid, 0)
        for pid in _children():
            _kill(pid)
        for path in directories:
            shutil.rmtree(path, ignore_errors=True)


def leave_signals_to_run() -> None:
    """Have this process do nothing on what ends a job; in its main thread.

    Every process of a job gets such a signal at once, as of ``scancel`` or a service manager.  The
    run has it stop the job, with a checkpoint, until which workers and loader processes must live.

    By a handler, as a program that is started from here would inherit that a signal is ignored.
    """
    for number in END_SIGNALS:
        signal.signal(number, _leave)


def leave_signals_in_loaders() -> None:
    """Have loader processes leave these signals, too, and no other process that this one forks."""
    os.register_at_fork(after_in_child=_take_back)
    torch_signals: Any = sys.modules.get("torch.utils.data._utils.signal_handling")
    if torch_signals is None:
        return
    set_torch_handlers = torch_signals._set_worker_signal_handlers  # noqa: SLF001  # no other way in

    @functools.wraps(set_torch_handlers)  # else the script's modules look as if they knew pliant
    def set_handlers(*args: Any) -> None:
        set_torch_handlers(*args)  # of SIGTERM as well
        leave_signals_to_run()

    setattr(torch_signals, set_torch_handlers.__name__, set_handlers)


def _leave(_number: int, _frame: object) -> None:
    """Do nothing."""


def _take_back() -> None:
    for number in END_SIGNALS:
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.SIG_DFL)


def _tie_children() -> None:
    """Make processes that this worker's main thread forks die with it.

    Only those: PR_SET_PDEATHSIG follows the forking thread; a grandchild may be meant as a daemon.
    """
    worker = os.getpid()
    thread = threading.get_native_id()
    forking: list[bool] = [False]

    def before() -> None:
        forking[0] = os.getpid() == worker and threading.get_native_id() == thread

    def in_child() -> None:
        if forking[0]:
            die_with_parent(worker, code=EXIT_FAILED)

    os.register_at_fork(before=before, after_in_child=in_child)


def _end_group(worker: int) -> None:
    """Kill what a dead worker has started, but not who removes its shared memory now."""
    until_s = time.monotonic() + TIDY_S
    while time.monotonic() < until_s:
        group = [pid for pid in _children() if pid != worker and worker in _groups_of(pid)]
        others = [pid for pid in group if not _is_tidying(pid)]
        if len(others) == len(group):
            break
        if not others:
            return
        for pid in others:
            _kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        select.select([], [], [], 0.005)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)


def _is_tidying(pid: int) -> bool:
    """Whether a process is one of Python or torch that removes shared memory, and ends, once those
    that have used it are gone.
    """
    with contextlib.suppress(OSError):
        said = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"multiprocessing.resource_tracker" in said or b"torch_shm_manager" in said
    return False


def _groups_of(pid: int) -> tuple[int, ...]:
    """Return process group and session of a process; none if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid), os.getsid(pid)
    return ()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _ended_children() -> Iterator[int]:
    """Yield children that have ended; each must be waited for before the next is taken."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        yield ended.si_pid


def _children() -> list[int]:
    """List the processes whose parent this one is, adopted ones included."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii")
    return [int(word) for word in text.split()]


def main() -> NoReturn:
    """Import what is slow, then serve the socket whose number is the first argument."""
    leave_signals_to_run()
    agent = socket.socket(fileno=int(sys.argv[1]))
    agent.set_inheritable(False)
    if not sys.flags.safe_path:
        del sys.path[0]  # a worker puts its script's directory there
    try:
        for name in WARM_MODULES:
            importlib.import_module(name)
    except ImportError as error:
        with contextlib.suppress(OSError):
            agent.send(launch.REPORTS.dump_json(launch.ServerFailed(reason=f"{error}")))
        sys.exit(EXIT_FAILED)
    gc.collect()
    gc.freeze()  # pages stay shared with the workers
    ForkServer(agent).serve()


if __name__ == "__main__":
    main()
