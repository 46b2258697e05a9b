"""The directory of a run: which one it is, who may serve it, and what becomes of it.

Owns the choice of the directory, the lock on it, the files that outlive a process (who may talk to
its coordinators, and who the job is to its checkpoints), what is left of a refused run, and the
last sentence of a run whose directory was removed or moved under it (``watched``).  Knows nothing
of what runs there, and decides nothing: the driver stops such a job, and whether its last state may
be published the lease of its place says (decision 20).

    runs/gpt/  events.jsonl  running.lock  token  holder  init.pt
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pliant.core.commands import EndJob
from pliant.core.errors import EXIT_FAILED, EXIT_STOPPED, ConfigError
from pliant.core.text import counted, last_line
from pliant.machine import locks, run_files
from pliant.machine.files import (
    PRIVATE,
    make_once,
    make_private_directory,
    replace_file,
)
from pliant.machine.registry import running_jobs
from pliant.machine.run_files import holds_run
from pliant.observe.status import Board

RUNS = Path("runs")
"""Where runs lie that were given no directory."""

ENDING_S = 5.0
"""What a run or a pool that was stopped just now may take to leave its directory, in seconds."""

TOKEN_S = 30.0
"""How long a host waits for the token that the one that coordinates makes, in seconds: a shared
file system may take a moment to show it."""

INITIAL_S = 3600.0
"""Longest that a checkpoint to begin with may take to read, in seconds."""


_log = logging.getLogger(__name__)


def new_directory(asked: Path | None, name: str) -> Path:
    """Make the directory of a new run: the one asked for, or the first of its name without a run.

    Raises:
        ConfigError: the directory that was asked for holds a run, or cannot be written.
    """
    if asked is not None and holds_run(asked):
        raise ConfigError(f"{asked} already holds a run; choose another --out or remove it")
    out, number = asked or RUNS / name, 1
    while holds_run(out):
        number += 1
        out = RUNS / f"{name}-{number}"
    return writable(out)


def resumed_directory(asked: Path | None, name: str) -> Path:
    """Return the directory of a run to go on with: the one asked for, or the newest of its name.

    Raises:
        ConfigError: there is none, or it cannot be written.
    """
    if asked is not None:
        if not holds_run(asked):
            raise ConfigError(f"{asked} holds no run to resume; leave out --resume to start one")
        return writable(asked)
    pattern = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    runs = [
        (int(found[1] or 1), out)
        for out in run_files.runs_in(RUNS)
        if (found := pattern.fullmatch(out.name))
    ]
    if not runs:
        raise ConfigError(
            f"runs/{name} holds no run to resume; leave out --resume to start one, or say where "
            "it is with --out"
        )
    return writable(max(runs)[1])


def vacated(out: Path, jobs: Path) -> Path:
    """Return the directory of a run that is to go on, once the process that ends it has left.

    Only a run that goes on waits: a new one would go on with what whoever is there has begun.

    Args:
        out: as ``writable`` returns it.
        jobs: where the records of running jobs lie.

    Raises:
        ConfigError: it runs, or has not ended in time.
    """
    if any(job.out == out for job in running_jobs(jobs)):
        raise ConfigError(_running_already(out))
    with locked(out, alone=True, within_s=ENDING_S):
        return out


def writable(out: Path) -> Path:
    """Make a directory if it is not there; return its whole path."""
    try:
        make_private_directory(out)
        probe = out / f".writable-{secrets.token_hex(4)}"  # other hosts may try at this moment
        try:
            probe.touch(exist_ok=False)
            mine, found = probe.stat().st_uid, out.stat()
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from None
    # A shared file system may map all users to one: then the new file is the directory's owner's.
    if found.st_uid not in (mine, 0):
        raise ConfigError(
            f"{out} belongs to another user (id {found.st_uid}), who could replace what the run "
            f"writes there; choose another, such as {out / 'run'}, which is made for you"
        )
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"everybody may write to {out}, and could replace what the run writes there; choose "
            f"{out / 'run'}, which is made for you alone, or run chmod o-w {out}"
        )
    _refuse_what_is_no_file(out)
    return out.resolve()


def _refuse_what_is_no_file(out: Path) -> None:
    """Refuse a pipe or a device under the name of a file of the run: reading it may never end."""
    for path in out.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another coordinator has just replaced it
            kind = stat.S_IFMT(path.lstat().st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                raise ConfigError(f"{path} is no file; remove it, or choose another --out")


def make_private(directory: Path) -> None:
    """Make a directory that only this user may enter, if it is not there."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}") from error


def remove(out: Path, *, parent: bool) -> None:
    """Leave nothing of a run that was refused before its first step.

    The ``parent`` of all runs goes too, if it was made for this one.
    """
    try:
        with locked(out, alone=True):  # of two that were started at the same moment one lives
            shutil.rmtree(out, ignore_errors=True)
    except (ConfigError, OSError):
        return
    if parent:
        with contextlib.suppress(OSError):
            out.parent.rmdir()


@contextlib.contextmanager
def locked(
    out: Path, *, alone: bool, taken: str | None = None, within_s: float = 0
) -> Iterator[None]:
    """Keep others away from a directory; ends with this process.

    One that is ``alone`` runs the workers, too, and tolerates nobody.  Of several coordinators
    with agents elsewhere the register decides which counts, so they tolerate each other.  Whoever
    is there and may be about to end is waited for ``within_s``.

    Raises:
        ConfigError: another runs the job that does not go with this one; ``taken`` says so.
    """
    with locks.locked(out / run_files.RUNNING_LOCK, shared=not alone, within_s=within_s) as is_ours:
        if not is_ours:
            raise ConfigError(taken or _running_already(out))
        yield


def _running_already(out: Path) -> str:
    return f"the job of {out} is running already; see pliant status"


def lasting_token(path: Path) -> str:
    """Return the token of all coordinators of a run; the first of them makes the file, once."""
    try:
        if not path.exists():
            make_once(path, secrets.token_urlsafe(32).encode(), mode=PRIVATE)
    except OSError as error:
        raise ConfigError(f"{path} cannot be used: {error.strerror}") from error
    return read_token(path)


def missing_token(path: Path, place: str) -> ConfigError:
    """Return what is said where a host that takes part has not got the token in time."""
    return ConfigError(
        f"--token-file {path} is not there; copy it from the host that coordinates ({place})"
    )


def read_token(path: Path) -> str:
    """Return the token in a file; warn where others can read it, too.

    Raises:
        ConfigError: there is none.
    """
    try:
        token = path.read_text("ascii").strip()
        is_exposed = bool(path.stat().st_mode & stat.S_IROTH)
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be read: {error.strerror}") from None
    except ValueError:
        token, is_exposed = "", False
    if not re.fullmatch(r"[\x21-\x7e]{16,4096}", token):
        raise ConfigError(
            f"{path} holds no token: one line of 16 or more letters and digits is one"
        )
    if is_exposed:
        _log.warning("every user of this machine can read the token %s; chmod 600 it", path)
    return token


def holder_of(out: Path, job: str) -> str:
    """Return who a job is to its checkpoints: the same in every life of its directory.

    Of several hosts that begin there at one moment one says so.
    """
    path, mine = out / run_files.HOLDER, f"{job}-{secrets.token_hex(4)}"
    if not path.exists():
        make_once(path, f"{mine}\n".encode(), mode=PRIVATE)
    if found := path.read_text().strip():
        return found
    replace_file(path, f"{mine}\n".encode(), mode=PRIVATE)  # the disk was full
    return mine


def require_own(holder: str, job: str, place: str) -> None:
    """Refuse a place where another job has put its name: each would end the other's coordinators.

    Raises:
        ConfigError: it is another job's.
    """
    whose = holder.rpartition("-")[0]
    if whose != job:
        raise ConfigError(
            f"--register {place} is that of job {whose}; give job {job} a place of its own"
        )


def initial_weights(source: str, out: Path) -> Path:
    """Return the file to start from; others are made into one, by a process with torch."""
    if "://" not in source and Path(source).is_file() and Path(source).suffix != ".safetensors":
        return Path(source)
    target = out / "init.pt"
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "pliant.checkpoint.starting_weights", source, str(target)],
            check=False,
            capture_output=True,
            text=True,
            timeout=INITIAL_S,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--init {source} was not read within {INITIAL_S:g} s") from None
    if done.returncode != 0:
        raise ConfigError(f"--init {source}: {last_line(done.stderr)}")
    return target


_DELETED = " (deleted)"
"""What the kernel adds to the name of an open directory that has none any more."""


@dataclass(frozen=True, slots=True)
class WatchedDirectory:
    """The directory of a run, held open so that it is found wherever it is moved."""

    out: Path
    fd: int

    def end_without_it(self, end: EndJob, board: Board) -> EndJob:
        """Return how a job ended that was stopped because its directory, or register, was gone."""
        if end.exit_code not in (EXIT_STOPPED, EXIT_FAILED):
            return end
        now = Path(f"/proc/self/fd/{self.fd}").readlink()
        is_moved = now != self.out and not now.name.endswith(_DELETED)
        gone = f"was moved to {now}" if is_moved else "was removed"
        if now == self.out:
            gone = f"lost its {run_files.REGISTER}"
        said = f"{self.out}, the directory of the run, {gone} while it ran; it stopped after"
        said += f" {counted(board.committed, 'step')}"
        kept, failure = board.checkpoint, board.checkpoint_failure
        if kept is None:
            why = "it keeps no checkpoints" if failure is None else failure["reason"]
            said += f", and what it has trained is lost: {why}"
        else:
            lost = board.committed - int(kept["committed"])
            again = f"pliant resume {now}" if is_moved else "the same command, in another --out,"
            said += f", {lost} of which are lost" if lost else ""
            said += f"; {again} goes on from its checkpoint of step {kept['committed']}"
        return EndJob(exit_code=EXIT_FAILED, reason=said)


@contextmanager
def watched(out: Path) -> Iterator[WatchedDirectory]:
    """Hold a directory open meanwhile."""
    fd = os.open(out, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield WatchedDirectory(out.resolve(), fd)
    finally:
        os.close(fd)
