"""Places of the record in the directory of a run: one for each process that runs the job on a host.

    inputs/<host>-<process>/  texts/  reads.0.json  reads.1.json  written.jsonl  trains/<worker>

A resume is another process, and begins a record of its own.
"""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from pliant.machine import run_files
from pliant.machine.files import make_private_directory
from pliant.wire.launch import Assignment

TEXTS = "texts"
"""Directory: the script's files, as they were loaded first."""

READS = "reads"
"""Begins the name of a file: what had been read when a call of ``steps()`` began."""

WRITTEN = "written.jsonl"
"""A line for each path that was written."""

TRAINS = "trains"
"""Directory: a file for each worker that has trained, locked while it lives."""


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
