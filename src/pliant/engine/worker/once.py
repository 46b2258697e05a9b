"""Once: what one process of a job does at the top of the script, and what they all may write to.

Owns the marks of it in the directory of the run.  Must not know what a script prepares.

    once/NAME        locked by the process that runs the block; has its name
    once/NAME.done   the block has ended
    once/NAME.failed why it failed: {"life": incarnation, "said": ...}

A lock goes with its process, so that another takes over from one that was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from pliant.core.errors import ConfigError, UsageError
from pliant.core.values import Incarnation
from pliant.engine.worker.bootstrap import WorkerContext, check_orders, worker_context
from pliant.machine import run_files
from pliant.machine.files import make_private_directory, open_private, replace_file
from pliant.machine.locks import held, lock

MAX_SAID = 500
"""Characters of an error that others are told."""

_ended: set[str] = set()
"""Blocks of a script that runs alone, which has no directory of a run."""

_running: set[str] = set()


@contextmanager
def once(name: str) -> Iterator[bool]:
    """Let one process of the job run a block, and the others enter when it has ended.

    ``with pliant.once("data") as first:`` and in it ``if first:``.  True in one process of the
    job, on each host that does not see the directory of the run; False in all others, in those
    that join later and when the run is gone on with.  A process that is killed in its block is
    followed by the next, which finds what that left.  A script that runs alone runs the block each
    time it is started.

    Args:
        name: of the block; another one for each.

    Raises:
        ConfigError: the block has failed in another process; says how.
        UsageError: it stands within itself.
    """
    if name in _running:
        raise UsageError(
            f"pliant.once({name!r}) stands within itself; give each block its own name"
        )
    context = worker_context()
    _running.add(name)
    try:
        if context is None:
            yield name not in _ended
            _ended.add(name)
        else:
            yield from _among_replicas(name, context)
    finally:
        _running.discard(name)


def _among_replicas(name: str, context: WorkerContext) -> Iterator[bool]:
    path = Path(context.assignment.work.out) / run_files.ONCE / quote(name, safe="")
    done, failed = path.with_name(f"{path.name}.done"), path.with_name(f"{path.name}.failed")
    make_private_directory(path.parent)
    fd = None if done.exists() else open_private(path, os.O_RDWR)
    try:
        if fd is not None:
            _hold(fd, name, context)
        is_first = not done.exists()
        if is_first:
            _refuse_if_failed(failed, name, context)
        try:
            yield is_first
        except BaseException as error:
            if is_first:
                said = f"on {_me(context)}: {type(error).__name__}: {error}"[:MAX_SAID]
                life = context.assignment.incarnation
                replace_file(failed, json.dumps({"life": life, "said": said}).encode())
            raise
        if is_first:
            replace_file(done, b"")
    finally:
        if fd is not None:
            fcntl.flock(fd, fcntl.LOCK_UN)  # also for what the block has forked
            os.close(fd)


def _hold(fd: int, name: str, context: WorkerContext) -> None:
    """Wait until nobody else runs the block; the watch of the script ends who waits too long."""
    if not lock(fd, within_s=0):
        if context.watch is not None:
            who = os.pread(fd, 100, 0).decode("utf-8", "replace") or "another"
            context.watch.waits_for = f"pliant.once({name!r}), which {who} runs"
        lock(fd)
        if context.watch is not None:
            context.watch.waits_for = ""
    os.ftruncate(fd, 0)
    os.pwrite(fd, _me(context).encode(), 0)


def _refuse_if_failed(failed: Path, name: str, context: WorkerContext) -> None:
    """Let what has failed in this life of the job be everybody's failure."""
    found = json.loads(failed.read_bytes()) if failed.exists() else {}
    if found.get("life") == context.assignment.incarnation:
        raise ConfigError(
            f"pliant.once({name!r}) failed {found['said']}; nothing was prepared, so no replica "
            "goes on"
        )


def _me(context: WorkerContext) -> str:
    worker = "" if context.worker is None else f", worker {context.worker}"
    return f"{context.replica}{worker}"


ALONE = "-alone"
"""Ends the name of the directory of a script that runs alone: no run of a job has it."""

_moved: dict[Path, Path] = {}
"""Where the first replica has what is named otherwise here."""


def run_dir() -> Path:
    """Return a directory for outputs: the same for every replica, replacement and resume.

    It is made if it is not there: ``outputs`` in the directory of the run, or, of a script that
    runs alone, ``runs/SCRIPT-alone`` where it was started.  A host that does not see the directory
    of the run has one of its own.

    Raises:
        OSError: it cannot be made.
    """
    context = worker_context()
    if context is not None and check_orders() is None:  # a check compares what lies where it works
        path = Path(context.assignment.work.out) / run_files.OUTPUTS
    else:
        path = Path("runs", f"{Path(sys.argv[0]).stem or 'python'}{ALONE}").absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def place_of_job(
    out: Path, name: str, mine: str, life: Incarnation, *, holds: Callable[[str], bool]
) -> str:
    """Return what the first replica of a job named for something; that is this one if none has.

    ``holds``: whether something lies there.  The first replica of a later life may name another
    place that holds something, as where a run was copied or its files were moved.
    """
    path = out / run_files.PLACES / name
    make_private_directory(path.parent)
    with held(path.with_name(f"{name}.lock")):
        said = json.loads(path.read_bytes()) if path.exists() else {"life": life, "place": mine}
        if said["life"] != life and said["place"] != mine and holds(mine):
            said["place"] = mine
        replace_file(path, json.dumps({**said, "life": life}).encode())
    place = str(said["place"])
    if place != mine and "://" not in place + mine:
        here, there = Path(mine), Path(place)
        while here.name == there.name and here.name:
            here, there = here.parent, there.parent
        _moved[here] = there
    return place


def path_of_job(path: Path) -> Path:
    """Return where the first replica would write a file, as far as its places tell."""
    whole = path.absolute()
    for here, there in _moved.items():
        if whole.is_relative_to(here):
            return there / whole.relative_to(here)
    return path
