"""Run places: directories that are one for a whole job, whatever each replica names.

A directory named by time or process is another on every replica.  Owns what the first one named,
and the directory that a script may write to.  Must not know what lies there.

    places/NAME   {"life": incarnation, "place": "/home/ann/outputs/12-03-44/ckpt"}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pliant.core.values import Incarnation
from pliant.engine.worker.bootstrap import check_orders, worker_context
from pliant.machine import run_files
from pliant.machine.files import make_private_directory, replace_file
from pliant.machine.locks import held

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
