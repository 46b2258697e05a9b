"""The first and last code of a worker: makes the process what the script expects, runs the script.

Owns the worker's context (who am I, how do I reach my agent), the stage that the script finds
(working directory, environment, and by ``main_module`` the rest), and its end: what is said
to the agent, what is flushed, which exit code.  Knows nothing of training: a session registers
itself in the context and is only closed from here.

The one module of the engine that reads ``os.environ``.

    fork server --fork--> run_worker: stage -> script -> report -> flush -> os._exit
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import os
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from pliant.core.checked import CHECK_VARIABLE, CheckOrders
from pliant.core.device_names import (
    CPU,
    DEVICE_NAMES,
    INTERFACE,
    confinement,
    kind_of,
)
from pliant.core.errors import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    ConfigError,
    Refusal,
    StateCorruptError,
)
from pliant.core.events import ExitKind
from pliant.core.values import FromCheckpoint
from pliant.engine import script_files
from pliant.engine.guard import environment_reads, files
from pliant.engine.worker import device_errors, script_errors
from pliant.engine.worker.link import Link
from pliant.engine.worker.main_module import staged_main
from pliant.engine.worker.other_scripts import NO_SESSION, ScriptWatch
from pliant.machine import device_locks
from pliant.machine.descriptors import shortage
from pliant.machine.interfaces import interface_of
from pliant.machine.tls import TlsContexts
from pliant.wire.launch import Assignment
from pliant.wire.messages import Ended, Noted, Traceback, Usage

GOODBYE_S = 2.0
"""Longest wait for the agent to take the last messages, in seconds."""

CLEANUP_S = 10.0
"""Longest time for the script's own threads and ``atexit`` handlers, in seconds."""

LOCK_S = 3.0
"""Longest wait for the device of a pool, in seconds: what a killed worker has forked may take a
moment to die, and the pool looks at a lock by taking it."""

MALLOC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
"""Set by the agent before the fork server starts; glibc has read them, the script need not."""

_LAUNCHERS = {
    "torchrun": "WORLD_SIZE",
    "srun": "SLURM_STEP_NUM_TASKS",
    "mpirun": "OMPI_COMM_WORLD_SIZE",
    "mpiexec": "PMI_SIZE",
}
_TORCHRUN_MARKS = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR")
_MAX_TRACEBACK_CHARACTERS = 100_000
_MAX_WORDS_CHARACTERS = 1000
"""Of a script's own words in a sentence: what is too long for a message ends the worker's link."""


class NotRunError(Exception):
    """The script was not run, and that is no fault of the script."""

    def __init__(self, kind: ExitKind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class Closable(Protocol):
    """What the bootstrap knows of a session."""

    def close(self) -> None:
        """End the session as leaving its ``with`` block does; a second call does nothing."""


class WorkerContext:
    """What a worker of a job knows besides its script.  One per process."""

    def __init__(self, assignment: Assignment, link: Link) -> None:
        self.assignment = assignment
        self.replica, self.worker = assignment.replica, assignment.worker
        self.link = link
        self.session: Closable | None = None
        """What the script has opened; closed here if the script forgot to."""
        self.failure: Exception | None = None
        """What ended the session, if the script catches it."""
        self.ending: ExitKind | None = None
        """How the session says that this replica ends; None if it does not say."""
        self.watch: ScriptWatch | None = None
        """Recognises a script that was not written for a session, until it makes one."""
        self.tls: TlsContexts | None = None
        """For connections to other replicas; None: these are not encrypted."""
        self.refusal: tuple[str, str] | None = None
        """The last that the script met, if it hides it: kind of error, sentence and line."""
        self.device: device_locks.DeviceLock | None = None
        """Of a pool; its lock is never released but by this process's death."""
        self.is_device_over = False
        """Nothing may be asked any more of the device that it computes on."""

    def note(self, text: str, *, lasting: bool = False) -> None:
        """Pass on one sentence for people; ``lasting``: again at the end, results may be wrong."""
        note = Noted(replica=self.replica, text=text, worker=self.worker, lasting=lasting)
        self.link.send(note, urgent=False)

    def hear_refusal(self, kind: str, sentence: str) -> None:
        """Take note of a refusal, unless no line of the script has led to it."""
        place = script_files.place_of_call(sys._getframe())  # noqa: SLF001  # by whom else?
        if place is not None:
            self.refusal = (kind, f"{_shortened(sentence)}{script_files.at(place)}")

    def meet_session(self) -> None:
        """Take note that the script makes a session: it was written for one, whatever it tried."""
        self.refusal = None
        if self.watch is not None:
            self.watch.close()

    def open_session(self, session: Closable) -> None:
        """Take note of the script's session."""
        self.session, self.refusal = session, None

    def end_as(self, kind: ExitKind) -> None:
        """Say how this replica ends: FINISHED once it was released, LEFT before it exits."""
        self.ending = kind


_context: WorkerContext | None = None


def worker_context() -> WorkerContext | None:
    """Return this worker's context; ``None`` if the script runs alone."""
    return _context


def set_context(context: WorkerContext | None) -> None:
    """Make this process a worker, or none again; for ``run_worker`` and for tests."""
    global _context
    _context = context


def launched_together() -> tuple[str, int]:
    """Return what has started this process, and how many like it; 1 if nothing says so."""
    for launcher, variable in _LAUNCHERS.items():
        if launcher == "torchrun" and not any(mark in os.environ for mark in _TORCHRUN_MARKS):
            continue
        with contextlib.suppress(ValueError):
            if (number := int(os.environ.get(variable, "1"))) > 1:
                return launcher, number
    return "", 1


def local_rank() -> int:
    """Return which of the processes of this host it is, that train one replica or that torchrun
    has started, from 0."""
    if _context is not None:
        return _context.assignment.local_rank
    said = os.environ.get("LOCAL_RANK", "")
    return int(said) if said.isdecimal() else 0


def trains_on_cores() -> bool:
    """Whether this process was given cores, whatever else it sees."""
    return kind_of(os.environ.get(DEVICE_NAMES, "")) == CPU


def from_checkpoint() -> FromCheckpoint:
    """Return what a script that runs alone does with checkpoints that it finds.

    Raises:
        ConfigError: the environment asks for something else.
    """
    said = os.environ.get("PLIANT_FROM_CHECKPOINT") or FromCheckpoint.AUTO
    try:
        return FromCheckpoint(said)
    except ValueError:
        known = ", ".join(FromCheckpoint)
        raise ConfigError(f"PLIANT_FROM_CHECKPOINT={said} must be one of {known}") from None


def check_orders() -> CheckOrders | None:
    """Return what ``pliant check`` asks of this script; None if nobody checks it."""
    said = os.environ.get(CHECK_VARIABLE)
    return CheckOrders(**json.loads(said)) if said else None


def kernel_limit_s() -> float:
    """Return how long a kernel may take that nobody has announced, in seconds.

    Raises:
        ConfigError: the environment says something else than seconds.
    """
    said = os.environ.get("PLIANT_KERNEL_SECONDS") or "60"
    try:
        if (limit_s := float(said)) > 0:
            return limit_s
    except ValueError:
        pass
    raise ConfigError(f"PLIANT_KERNEL_SECONDS={said} must be a number of seconds, more than 0")


def run_worker(assignment: Assignment, control: socket.socket) -> NoReturn:
    """Run the script as a worker of a job and end the process; never returns.

    Called in the main thread of a fresh process whose stdout and stderr are in place.
    """
    link = Link(control, assignment.replica, incarnation=assignment.incarnation)
    context = WorkerContext(assignment, link)
    set_context(context)
    link.start()
    Refusal.tell(context.hear_refusal)
    code = EXIT_FAILED
    try:
        code, kind, detail = _play(context, assignment)
        context.link.send(Ended(replica=context.replica, kind=kind, detail=detail))
        _clean_up(code, has_device=not context.is_device_over)
        context.link.close(GOODBYE_S)
    finally:
        os._exit(code)  # an abandoned process group would hold a normal exit for its time-out


def end_for_device(context: WorkerContext, sentence: str) -> NoReturn:
    """End the process, as its device does not answer any more; from any thread."""
    _end_with(context, EXIT_FAILED, lambda: (EXIT_FAILED, ExitKind.DEVICE, sentence))


def end_if_device_is_over(context: WorkerContext | None, error: object) -> bool:
    """End a worker if this error means that every call to the device fails from now on.

    Else what else is done at the end hides the error, or waits for ever.  Return whether it does,
    where no job is to hear of it.
    """
    if not isinstance(error, BaseException):
        return False
    name = "" if context is None else context.assignment.device_name
    found = device_errors.found_in(error, name)
    is_over = found is not None and found.is_over
    if is_over and context is not None:
        _end_with(context, EXIT_FAILED, partial(_failed, context, error))
    return is_over


def _play(context: WorkerContext, assignment: Assignment) -> tuple[int, ExitKind, str]:
    """Run the script; return exit code, kind and detail of its end."""
    is_help, words = False, ""
    try:
        try:
            context.device = lock_device(assignment, assignment.device)
            confine(assignment, own=assignment.device_name)
            watch = context.watch = _watch(context, assignment)
            if assignment.work.tls is not None:
                try:
                    context.tls = TlsContexts.of(assignment.work.tls)
                except ConfigError as error:  # the fault of this host
                    raise NotRunError(ExitKind.SHORT, str(error)) from error
            module, compiled = _stage(context, assignment)
            watch.open()
            exec(compiled, module.__dict__)  # noqa: S102  # what a worker is for
        except SystemExit as stop:
            words = script_errors.last_words(stop)
            if _exit_code(stop) != 0:
                raise
            is_help = script_errors.is_help(stop)
        if context.session is not None:
            context.session.close()
    except SystemExit as stop:
        status = _exit_code(stop)
        if status == 0:
            return _ended_well(context)
        if context.refusal is not None and context.ending is None:
            return _refused(context, *context.refusal)
        kind = ExitKind.USAGE if status == EXIT_USAGE else ExitKind.SCRIPT
        said = f": {_shortened(words)}" if words else ""
        return status, kind, f"the script exited with code {status}{said}"
    except BaseException as error:  # a process boundary: becomes a report
        return _failed(context, error)
    return _ended_well(context, is_help=is_help)


def _failed(context: WorkerContext, error: BaseException) -> tuple[int, ExitKind, str]:
    """Tell what went wrong; return exit code, kind and detail of the end."""
    of_device = device_errors.found_in(error, context.assignment.device_name)
    if of_device is not None:
        context.is_device_over = of_device.is_over
        _tell_traceback(context, error)
        return EXIT_FAILED, of_device.kind, _shortened(of_device.sentence)
    short = shortage(error)
    if isinstance(error, Refusal) and short is None:
        return _refused(context, type(error).__name__, f"{_shortened(str(error))}{_where(error)}")
    if isinstance(error, StateCorruptError | NotRunError):
        _show(f"{error}\n")
        kind = error.kind if isinstance(error, NotRunError) else ExitKind.CORRUPT
        return EXIT_FAILED, kind, _shortened(str(error))
    sentence = script_errors.explained(error, os.environ)
    if sentence is not None:
        sentence = f"{_shortened(sentence)}{_where(error)}"
        return _refused(context, ConfigError.__name__, sentence)  # screens know it as such
    _tell_traceback(context, error)
    if short is not None:  # whoever is started next may find what was missing
        return EXIT_FAILED, ExitKind.SHORT, short
    if context.refusal is not None and context.ending is None:
        return _refused(context, *context.refusal)  # which the script has caught, and went on
    return EXIT_FAILED, ExitKind.SCRIPT, _shortened(script_errors.in_one_line(error))


def _tell_traceback(context: WorkerContext, error: BaseException) -> None:
    text = "".join(traceback.format_exception(_without_bootstrap(error)))
    _show(text)
    text = text[-_MAX_TRACEBACK_CHARACTERS:]
    context.link.send(Traceback(replica=context.replica, text=text, worker=context.worker))


def _refused(context: WorkerContext, kind: str, sentence: str) -> tuple[int, ExitKind, str]:
    """Tell what is wrong with a script, which nobody need start again as it is."""
    context.link.send(Usage(replica=context.replica, sentence=sentence, worker=context.worker))
    _show(f"{kind}: {sentence}\n")
    return EXIT_USAGE, ExitKind.USAGE, sentence


def _watch(context: WorkerContext, assignment: Assignment) -> ScriptWatch:
    """Return what looks whether the script comes to a session."""

    def end(sentence: str) -> None:  # on a thread of its own: the link's is to carry the words
        tell = partial(_refused, context, ConfigError.__name__, sentence)
        how = (context, EXIT_USAGE, tell)
        ending = threading.Thread(target=_end_with, args=how, name="ending")
        ending.start()
        if threading.current_thread() is threading.main_thread():
            ending.join()

    watch = ScriptWatch(limit_s=assignment.work.session_s, end=end)
    if context.worker is None:
        environment_reads.tell_rank(partial(context.note, lasting=True))
    context.link.while_idle(watch.end_if_late)
    return watch


def _end_with(
    context: WorkerContext, code: int, tell: Callable[[], tuple[int, ExitKind, str]]
) -> NoReturn:
    """End the process, wherever its script is; ``tell`` says how, in time."""
    _end_by(CLEANUP_S, code)
    try:
        code, kind, detail = tell()
        context.link.send(Ended(replica=context.replica, kind=kind, detail=detail))
        flush_files()
        context.link.close(GOODBYE_S)
    finally:
        os._exit(code)


def _ended_well(context: WorkerContext, *, is_help: bool = False) -> tuple[int, ExitKind, str]:
    """Name an exit with code 0: only a session knows whether the work is done."""
    if context.ending is not None:
        return 0, context.ending, ""
    if context.refusal is not None:
        return _refused(context, *context.refusal)
    if context.failure is not None:  # which the script has caught
        of_device = device_errors.found_in(context.failure, context.assignment.device_name)
        if of_device is not None:
            return EXIT_FAILED, of_device.kind, _shortened(of_device.sentence)
        return EXIT_FAILED, ExitKind.SCRIPT, _shortened(script_errors.in_one_line(context.failure))
    if context.session is None and is_help:
        script = " ".join(context.assignment.work.command)
        return 0, ExitKind.EARLY, f"the script showed its help and ended: python {script}"
    if context.session is None:
        return 0, ExitKind.EARLY, NO_SESSION
    return 0, ExitKind.EARLY, "the script ended before its session had finished"


def _exit_code(stop: SystemExit) -> int:
    """Translate ``sys.exit(...)`` as the interpreter does."""
    if stop.code is None:
        return EXIT_OK
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    _show(f"{stop.code}\n")
    stop.code = EXIT_FAILED
    return EXIT_FAILED


def _show(text: str) -> None:
    """Write what people are to read; a script may have closed stderr, or put anything there."""
    with contextlib.suppress(Exception):  # the script's own object, whose fault is one of its own
        sys.stderr.write(text)


def _without_bootstrap(error: BaseException) -> BaseException:
    """Cut this module's frames off the start of a traceback."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return error.with_traceback(frames)


def _shortened(words: str) -> str:
    is_long = len(words) > _MAX_WORDS_CHARACTERS
    return f"{words[:_MAX_WORDS_CHARACTERS]} ..." if is_long else words


def _where(error: BaseException) -> str:
    """Say which line of the user's an error came from, as far as it did."""
    return script_files.at(script_files.place_of_error(error.__traceback__))


# --- the stage ---------------------------------------------------------------


def lock_device(assignment: Assignment, device: int | None) -> device_locks.DeviceLock | None:
    """Take a device of the worker for as long as this process lives.

    Raises:
        NotRunError: another has it.
    """
    if device is None:
        return None
    where, claim = Path(assignment.locks), assignment.work.job
    path = device_locks.path_of(where, device)
    try:
        lock = device_locks.take_device(where, device, claim=claim, within_s=LOCK_S)
    except OSError as error:
        sentence = f"the script was not run: {path}: {error.strerror}"
        raise NotRunError(ExitKind.SCRIPT, sentence) from error
    if lock is None:
        who = device_locks.holder_text(where, device)
        sentence = f"the script was not run: {who} has device {device} ({path})"
        raise NotRunError(ExitKind.TAKEN, sentence)
    return lock


def confine(assignment: Assignment, *, own: str | None) -> None:
    """Keep this process, and what it starts, to its device; before anything has looked for one.

    ``own``: its name; None: all devices of the replica are its own.
    """
    name = assignment.device_name
    around = confinement(assignment.device_names or ("",), own=own, environ=os.environ)
    os.environ.update(around.variables)
    if kind_of(name) not in ("", CPU):
        with contextlib.suppress(ConfigError):  # an address that others translate is of none
            os.environ.setdefault(INTERFACE, f"={interface_of(assignment.address)}")
    if around.cores is None:
        return
    try:
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208  # those that run already, too
            os.sched_setaffinity(int(thread), around.cores)
    except OSError as error:
        sentence = f"the script was not run: it cannot have {name}: {error.strerror}"
        raise NotRunError(ExitKind.SCRIPT, sentence) from error
    torch: Any = sys.modules.get("torch")
    if torch is not None and around.variables.get("OMP_NUM_THREADS"):
        torch.set_num_threads(len(around.cores))  # it has read its variables when it was loaded


def _stage(
    context: WorkerContext, assignment: Assignment
) -> tuple[types.ModuleType, types.CodeType]:
    """Make this process look as if python had started it."""
    for name in MALLOC_VARIABLES:
        os.environ.pop(name, None)
    if assignment.worker is not None:
        place, here = assignment.place, assignment.workers_per_host
        os.environ.update(RANK=str(place), WORLD_SIZE=str(assignment.workers_per_replica))
        os.environ.update(LOCAL_RANK=str(assignment.local_rank), LOCAL_WORLD_SIZE=str(here))
    if assignment.device is not None:
        os.environ[device_locks.DEVICES_VARIABLE] = str(assignment.device)
    environment_reads.watch(os.environ)
    os.chdir(assignment.work.cwd)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # as random does by itself; siblings must not share a stream
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # a pipe, but people follow it
    if not assignment.pid:
        return staged_main(assignment.work.command)
    work, kept = assignment.work, files.of_life(assignment)
    files.begin(
        files.FileRecord(
            kept,
            f"{assignment.replica}.{assignment.place}",
            roots=files.roots_of(work.cwd, work.command[1:]),
            left_out=(work.out,),
            noted=partial(context.note, lasting=True),
        )
    )
    return staged_main(work.command, kept / files.TEXTS)


# --- the end -----------------------------------------------------------------


def _clean_up(code: int, *, has_device: bool) -> None:
    """Do what the interpreter does at its end, but not for longer than ``CLEANUP_S``.

    Without a device to ask, only write out what is open: handlers may ask it.
    """
    _end_by(CLEANUP_S, code)
    flush_files()
    if not has_device:
        return
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # waits for the script's threads
    atexit._run_exitfuncs()  # noqa: SLF001  # no public name; the same since Python 3.0
    flush_files()


def _end_by(limit_s: float, code: int) -> None:
    """Let the process end in this time, whatever a script's thread holds (a file's lock, say)."""
    watchdog = threading.Timer(limit_s, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()


def flush_files() -> None:
    """Write out every open file, those of the script that it forgot to close included."""
    frozen = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)  # by the fork server
    for thing in (*frozen, *gc.get_objects()):
        kind = type(thing)  # isinstance asks objects for their class, and some import for that
        if issubclass(kind, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):
                thing.flush()
