"""Files: what the script reads and writes, below its working directory and what its arguments name.

Each replica runs the script, at its own time: one that comes later finds files as the run has left
them, or as somebody has edited them.  Owns what is noted (digests of what is read outside of steps,
paths of what is written), the comparison with the first replica's record, and that who comes later
destroys nothing of the run's.  Must not know what is in the files.

    open, os.rename ... --audit hook--> read:  a word, compared when a call of steps() begins
                                        write: a line in written.jsonl, or refused before it happens

A record lies in the directory of the run, one for each process that runs the job on a host:

    inputs/<host>-<process>/  texts/  reads.0.json  reads.1.json  written.jsonl  trains/<worker>
                                left_open.<worker>

A resume is another process, and begins a record of its own.

What a run was made from goes into a checkpoint, and a resume compares it (``Inputs``): other data
behind the same path are refused, an edited module or file and another hash seed are told.

Not seen: what other threads and other processes do, files that extension modules open by
themselves (torch's are), and what was read by the time that this began.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import shutil
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from pliant.core.errors import ConfigError
from pliant.core.text import in_words
from pliant.engine import script_files
from pliant.engine.guard.base import unlike
from pliant.machine import run_files
from pliant.machine.files import PRIVATE, make_once, make_private_directory, open_private
from pliant.wire.launch import Assignment

MAX_FILES = 1000
"""Files that are compared, and paths that are kept as written, of one process."""

MAX_KEPT = 200
"""Of each kind of input, in a checkpoint."""

ANYWAY = "--from-checkpoint anyway (a script that runs alone: PLIANT_FROM_CHECKPOINT=anyway)"

LARGE_BYTES = 16 << 20
"""From this size on a file is told by its size and time."""

MAX_LOOKS = 20
"""How often a replica looks whether it adds to a file of others."""

MAX_NAMED = 3
"""Files that one sentence names."""

MAX_DIGESTED_BYTES = 256 << 20
"""Of all files together; the others are told by size and time."""

INSTEAD = (
    "let one replica write it: `if session.leader:` in the tail of a step, session.open_log(path) "
    'for rows, session.save(path) for weights, pliant.once("name") for what is prepared, or add to '
    'it, open(path, "a")'
)

TEXTS = "texts"
"""Directory: the script's files, as they were loaded first."""

READS = "reads"
"""Begins the name of a file: what had been read when a call of ``steps()`` began."""

WRITTEN = "written.jsonl"
"""A line for each path that was written."""

TRAINS = "trains"
"""Directory: a file for each worker that has trained, locked while it lives."""

LEFT_OPEN = "left_open"
"""Begins the name of a file: what a worker had open for writing when it had trained a step."""

NOBODY = ""
"""Who has written what nobody of the run may destroy, in place of a worker's name: checkpoints."""

_LED = b" "
"""In the file of a worker that has trained: it has led a step, whose tail is done."""

_EVENTS = frozenset({"open", "os.remove", "os.rename", "os.truncate", "shutil.rmtree"})
_WRITES = os.O_WRONLY | os.O_RDWR
_NO_DATA = (".py", ".pyc", ".so")
_NOT_NOTED = frozenset({"__pycache__", ".git"})

Word = list[Any]
"""Size in bytes, time in ns and digest of a file; without a digest these two tell it."""


class FileRecord:
    """Of one worker."""

    def __init__(
        self,
        place: Path,
        worker: str,
        *,
        roots: Sequence[str],
        left_out: Sequence[str],
        noted: Callable[[str], None],
    ) -> None:
        """Of a process of the run.

        Args:
            place: directory that the workers share, as far as they see the same.
            worker: its name, which no other has.
            roots: directories and files that are looked at, with all below.
            left_out: directories among these that are not.
            noted: is told what people should know.
        """
        self._place, self._worker, self._noted = place, worker, noted
        self._roots, self._left_out = tuple(f"{one}/" for one in roots), list(left_out)
        self._thread = threading.get_ident()
        self._reads: dict[str, Word] = {}
        self._wrote: set[tuple[str, bool]] = set()
        self._added_to: dict[str, int] = {}
        self._looks_left, self._leads = MAX_LOOKS, True
        self._digested = self._calls = 0
        self._lock = -1
        self.is_paused = False
        """The session is at work."""
        self.is_outside = True
        """The script runs outside of steps: what it reads is noted."""

    # --- what the session says --------------------------------------------------------------

    def begin_call(self) -> None:
        """A call of ``steps()`` begins: compare what was read until then.

        Raises:
            ConfigError: others train, and have read something else.
        """
        self.is_outside, number = False, self._calls
        self._calls += 1
        path = self._place / f"{READS}.{number}.json"
        with self.paused():
            if not number:
                self._added_to = self._open_to_add()
            try:
                make_once(path, json.dumps(self._reads).encode(), mode=PRIVATE)
                changed = self.unlike(json.loads(path.read_bytes()))
            except (OSError, ValueError):  # nothing can be kept, or the disk was full
                return
            others_train = bool(changed) and self._others_train()
        names = in_words(changed, MAX_NAMED) if changed else ""
        if others_train:
            raise ConfigError(
                f"{names} changed after this run began, and the replicas that train read it before;"
                " put it back, then pliant scale N; or end the run, and resume it with the new one"
            )
        if changed:
            self._noted(f"{names} changed after this run began; it is taken as it is now")

    def unlike(self, theirs: Mapping[str, Word]) -> list[str]:
        """Return which files were read here with other content, but those that the run wrote."""
        return [script_files.shown(path) for path in differing(self.reads(), theirs)]

    def reads(self) -> dict[str, Word]:
        """Return what was read and not written by the run since, by path."""
        own = {path for path, _, is_later in self._written() if is_later} if self._reads else set()
        return {path: word for path, word in self._reads.items() if path not in own}

    def on_head(self, step: int | None) -> None:
        """Note what the script reads where it is outside of steps."""
        self.is_outside = step is None

    def on_commit(self, leads: bool) -> None:
        """A step was committed here: who comes from now on must leave alone what was written."""
        self._leads = leads
        if self._added_to and self._looks_left and not leads:
            self._looks_left -= 1
            now = self._open_to_add()
            self._tell_added(
                [path for path, at in self._added_to.items() if now.get(path, at) > at]
            )
        if self._lock < 0:
            self.tell_left_open()
            with suppress(OSError), self.paused():
                directory = self._place / TRAINS
                make_private_directory(directory)
                self._lock = open_private(directory / self._worker, os.O_RDWR)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                self._note_open()

    def on_lead(self, step: int | None) -> None:
        """Say that the tail of ``step`` is this replica's to lead, and under way; None: done."""
        with suppress(OSError):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, _LED if step is None else str(step).encode(), 0)

    def unfinished_tail(self, replica: str) -> str:
        """Return the step in whose tail a leader on this host has died; empty: it did not."""
        with suppress(OSError), self.paused():
            return (self._place / TRAINS / f"{replica}.0").read_text().strip()
        return ""

    def tell_left_open(self) -> None:
        """Tell, once, what a leader of this host had open for writing that was killed."""
        with suppress(OSError, ValueError), self.paused():
            for left in self._place.glob(f"{LEFT_OPEN}.*"):
                worker = left.name.removeprefix(f"{LEFT_OPEN}.")
                trained = self._place / TRAINS / worker
                if _is_locked(trained) or not trained.stat().st_size:
                    continue
                paths = json.loads(left.read_text())
                left.unlink()  # who removes it tells it
                names = in_words([*map(script_files.shown, paths)], MAX_NAMED)
                self._noted(
                    f"{worker.partition('.')[0]}, which led, was lost: what it had not flushed to "
                    f"{names} is missing; session.open_log(path) keeps every row"
                )

    def _note_open(self) -> None:
        """Keep which of the files that were opened for writing still are."""
        mine = {path for path, _ in self._wrote}
        still = sorted(mine & {path for _, path in _open_files()})
        if still:
            path = self._place / f"{LEFT_OPEN}.{self._worker}"
            make_once(path, json.dumps(still).encode(), mode=PRIVATE)
            atexit.register(path.unlink, missing_ok=True)  # Python flushes them

    def leave_out(self, directory: str) -> None:
        """Note nothing of a directory but that it is the run's: checkpoints."""
        if directory and "://" not in directory:
            self._note_write(path := os.path.abspath(directory), NOBODY)  # noqa: PTH100
            self._left_out.append(path)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing: pliant itself is at work."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def _look_at_added(self, path: str) -> None:
        """See whether another replica adds to a file that this one, which does not lead, opens."""
        if self._calls and not (self._leads or self.is_outside) and self._looks_left:
            self._looks_left -= 1
            others = (one for one, who, _ in self._written() if who != self._worker)
            self._tell_added([one for one in others if one == path])

    def _tell_added(self, paths: Sequence[str]) -> None:
        if paths and self._is_first("added"):
            self._looks_left = 0
            self._noted(
                f"each replica adds its own lines to {script_files.shown(paths[0])}, so that they "
                "are there several times; write rows with session.open_log(path), and other lines "
                "only where session.leader is true (each replica has a rank 0)",
            )

    def _open_to_add(self) -> dict[str, int]:
        """Return how far this process has written to files that it keeps open to add to."""
        found = {}
        for number, path in _open_files():
            with suppress(OSError):
                is_added_to = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND
                if is_added_to and self._noted_path(path):
                    found[path] = os.lseek(number, 0, os.SEEK_CUR)
        return found

    def _is_first(self, what: str) -> bool:
        """Whether none of the run has told this yet."""
        try:
            (self._place / f"told-{what}").touch(exist_ok=False)
        except OSError:
            return False
        return True

    # --- what the interpreter says ----------------------------------------------------------

    def hear_event(self, event: str, args: tuple[Any, ...]) -> None:
        """Take note of an audit event, or refuse what it announces."""
        if self.is_paused or threading.get_ident() != self._thread:
            return
        if event == "open":
            self._hear_open(args[0], args[2] if isinstance(args[2], int) else 0)
        elif event == "os.rename":
            self._change(args[0], "move away")
            if (path := self._change(args[1], "replace")) is not None:
                self._note_write(path)
        elif event == "os.truncate" or args[1] in (-1, None):  # else it is below a descriptor
            self._change(args[0], "cut off" if event == "os.truncate" else "remove")

    def _hear_open(self, given: Any, flags: int) -> None:
        if not flags & _WRITES:
            path = self._noted_path(given) if self.is_outside else None
            if path is not None:
                with self.paused():
                    self._note_read(path)
        elif flags & os.O_TRUNC:
            if (path := self._change(given, "empty")) is not None:
                self._note_write(path)
        elif (path := self._noted_path(given)) is not None:
            self._note_write(path)
            if flags & os.O_APPEND:
                self._look_at_added(path)

    def _change(self, given: Any, what: str) -> str | None:
        """Return the path of what is to be changed, if that is noted and may be."""
        path = self._noted_path(given)
        if path is not None:
            with self.paused():
                self._check(path, what)
        return path

    def _noted_path(self, given: Any) -> str | None:
        """Return the whole path of what is to be noted."""
        if not isinstance(given, str | bytes | os.PathLike):
            return None  # a descriptor
        path = os.path.abspath(os.fsdecode(given))  # noqa: PTH100
        if (
            not f"{path}/".startswith(self._roots)
            or path.endswith(_NO_DATA)
            or not script_files.is_own(path)
        ):
            return None
        if any(path.startswith(f"{one}/") for one in self._left_out):
            return None
        return None if _NOT_NOTED.intersection(path.split("/")) else path

    def _note_read(self, path: str) -> None:
        if len(self._reads) >= MAX_FILES and path not in self._reads:
            return
        with suppress(OSError):
            found = os.stat(path)  # noqa: PTH116
            if not stat.S_ISREG(found.st_mode):
                return
            word: Word = [found.st_size, found.st_mtime_ns, ""]
            is_small = found.st_size < LARGE_BYTES
            if is_small and self._digested + found.st_size <= MAX_DIGESTED_BYTES:
                self._digested += found.st_size
                word[2] = xxhash.xxh3_128(Path(path).read_bytes()).hexdigest()
            self._reads[path] = word

    def _note_write(self, path: str, who: str | None = None) -> None:
        self._reads.pop(path, None)
        said = path, self._calls > 0
        if said in self._wrote or len(self._wrote) >= MAX_FILES:
            return
        self._wrote.add(said)
        line = json.dumps([path, self._worker if who is None else who, said[1]]).encode() + b"\n"
        with suppress(OSError), self.paused():
            fd = open_private(self._place / WRITTEN, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)

    def _written(self) -> list[tuple[str, str, bool]]:
        """Return each path that was written, by whom, and whether after its first ``steps()``."""
        with suppress(OSError, ValueError), self.paused():
            lines = (self._place / WRITTEN).read_bytes().splitlines()
            return [tuple(json.loads(line)) for line in lines]
        return []

    def _check(self, path: str, what: str) -> None:
        """Refuse to destroy what others of the run have written, while one of them trains, or
        where all are lost that have and their newest checkpoint is gone on from.

        Raises:
            ConfigError: it would.
        """
        if self._lock >= 0 or not os.path.lexists(path):
            return
        theirs = [(who, one) for one, who, _ in self._written() if who != self._worker]
        inside = [each for each in theirs if f"{each[1]}/".startswith(f"{path}/")]
        who, hit = min((each for each in inside if os.path.lexists(each[1])), default=("", ""))
        if not hit:
            return
        name = script_files.shown(path)
        of_it = "" if hit == path else f", where {script_files.shown(hit)} is"
        if who == NOBODY or self._others_train() or self._goes_on():
            raise ConfigError(
                f"this replica would {what} {name}{of_it}, which the run has written before it "
                f"came; {INSTEAD}"
            )
        if self._is_first("destroyed"):
            at = script_files.at(script_files.place_of_call(sys._getframe(1)))  # noqa: SLF001
            self._noted(f"each replica would {what} {name}{of_it}, at its own time{at}; {INSTEAD}")

    def _others_train(self) -> bool:
        """Whether a worker lives that has committed a step, but this one."""
        workers = (self._place / TRAINS).glob("*")
        return any(_is_locked(path) for path in workers if path.name != self._worker)

    def _goes_on(self) -> bool:
        """Whether workers have trained, and have left a checkpoint; else all is done again."""
        has_trained = any((self._place / TRAINS).glob("*"))
        kept = (Path(path) for path, who, _ in self._written() if who == NOBODY)
        return has_trained and any(any(path.glob("*/pliant.json")) for path in kept)


class Inputs:
    """Of one replica, in one life."""

    def __init__(
        self, samples: Mapping[int, str], noted: Callable[[str], None], *, goes_on_anyway: bool
    ) -> None:
        """``samples``: a few, in words; ``noted`` is told what differs; other data are that, too,
        if a resume ``goes_on_anyway``.
        """
        self._samples = {str(index): word for index, word in samples.items()}
        self._modules = dict(sorted(script_files.own_modules().items())[:MAX_KEPT])
        self._noted, self._goes_on_anyway = noted, goes_on_anyway

    def pack(self) -> bytes:
        """Return what a resume compares."""
        record = here()
        reads = {} if record is None else dict(sorted(record.reads().items())[:MAX_KEPT])
        hashes = str(hash("pliant"))  # another for another PYTHONHASHSEED
        kept = {"fetched": self._samples, "modules": self._modules, "reads": reads, "hash": hashes}
        return json.dumps(kept).encode()

    def compare(self, packed: bytes) -> None:
        """Tell what has changed since a checkpoint was written.

        Raises:
            ConfigError: the dataset has other samples.
        """
        mine, theirs = json.loads(self.pack()), json.loads(packed)
        if samples := unlike(mine["fetched"], theirs.get("fetched", {})):
            said = f"sample {samples[0]} of the dataset is not what it was when the run was kept"
            if not self._goes_on_anyway:
                raise ConfigError(
                    f"{said}: other data lie behind the same path; put them back, or go on "
                    f"with these: {ANYWAY}"
                )
            self._noted(said)
        changed = unlike(mine["modules"], theirs["modules"])
        changed += [script_files.shown(path) for path in differing(mine["reads"], theirs["reads"])]
        if changed:
            self._noted(
                f"since the checkpoint was written {in_words(changed, MAX_NAMED)} changed; "
                "the run goes on with what is there now"
            )
        if mine["hash"] != theirs["hash"]:
            self._noted(
                "PYTHONHASHSEED is another than when the run was kept: sets are iterated over in "
                "another order"
            )


_record: FileRecord | None = None
_is_hooked = False


def begin(record: FileRecord) -> None:
    """Note from now on what this process reads and writes; not what processes it forks do."""
    global _record, _is_hooked  # an audit hook is one for the process, for ever
    _record = record
    if not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_hook)
        os.register_at_fork(after_in_child=end)
        _audit_torch()


def end() -> None:
    """Note nothing any more."""
    global _record  # see begin
    _record = None


def here() -> FileRecord | None:
    """Return the record of this process; None if it runs alone."""
    return _record


@contextmanager
def paused() -> Iterator[None]:
    """Note nothing of what the session does."""
    if _record is None:
        yield
        return
    with _record.paused():
        yield


def roots_of(cwd: str, arguments: Sequence[str]) -> list[str]:
    """Return what is looked at: the working directory, and what the script's arguments name."""
    words = (word.rpartition("=")[2] for word in arguments)
    named = (os.path.abspath(os.path.join(cwd, word)) for word in words if word)  # noqa: PTH100, PTH118
    return [cwd, *(path for path in named if path != "/")]


def of_life(assignment: Assignment) -> Path:
    """Return the directory of this life of the run, once what lives before it kept is gone."""
    inputs, host = Path(assignment.work.out) / run_files.INPUTS, socket.gethostname()
    mine = inputs / f"{host}-{assignment.pid}"
    if not mine.exists():
        for old in inputs.glob(f"{host}-*"):
            if not Path("/proc", old.name.rpartition("-")[2]).exists():
                shutil.rmtree(old, ignore_errors=True)
        make_private_directory(mine)
    return mine


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event in _EVENTS and _record is not None:
        _record.hear_event(event, args)


def _audit_torch() -> None:
    """Have torch say, as others do, which file it is about to write: it opens it in C++."""
    serialization: Any = sys.modules.get("torch.serialization")
    if serialization is None:  # a script that has yet to import torch
        return
    writer = serialization._open_zipfile_writer_file  # noqa: SLF001
    make = writer.__init__

    def opened(self: Any, name: Any) -> None:
        sys.audit("open", name, "wb", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        make(self, name)

    writer.__init__ = opened


def differing(mine: Mapping[str, Word], theirs: Mapping[str, Word]) -> list[str]:
    """Return the files of both that have other content."""
    return [path for path, word in mine.items() if path in theirs and _differ(word, theirs[path])]


def _open_files() -> Iterator[tuple[int, str]]:
    """Yield each descriptor of this process with its path, but those closed meanwhile."""
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        with suppress(OSError):
            yield number, os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115


def _is_locked(path: Path) -> bool:
    """Whether a process that lives holds the lock of a file."""
    with suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _differ(mine: Word, theirs: Word) -> bool:
    """Whether two words are of other content, as far as both can tell."""
    is_digested = bool(mine[2] and theirs[2])
    return mine[0] != theirs[0] or (mine[2:] != theirs[2:] if is_digested else mine != theirs)
