"""Run facts: what does not change during one life of a session, for whoever keeps its state.

Owns how these are found out, under an agent and alone.  Must not know what is done with them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pliant.engine.state.durable import Facts
from pliant.engine.worker.bootstrap import WorkerContext, from_checkpoint
from pliant.machine.named_modules import module_of

Named = tuple[tuple[str, str], ...]


def facts_of(context: WorkerContext, identity: Named, settings: Named) -> Facts:
    """Return those of a worker."""
    assignment, work = context.assignment, context.assignment.work
    return Facts(
        job=work.job,
        holder=work.holder,
        pid=assignment.pid,
        identity=identity,
        command=_as_script(work.command),
        settings=settings,
        from_checkpoint=work.from_checkpoint,
        out=work.out,
        life=assignment.incarnation,
        is_follower=assignment.place > 0,
    )


def facts_alone(identity: Named, settings: Named) -> Facts:
    """Return those of a script that runs alone."""
    return Facts(
        job=Path(sys.argv[0]).stem or "alone",
        holder="",
        pid=os.getpid(),
        identity=identity,
        command=_command(),
        settings=settings,
        from_checkpoint=from_checkpoint(),
    )


def _command() -> tuple[str, ...]:
    """Return the script that runs alone, with its arguments; nothing in a notebook or a prompt."""
    is_script = hasattr(sys.modules["__main__"], "__file__")
    return tuple(sys.argv) if is_script else ()


def _as_script(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a worker runs with the file of a module in place of its name."""
    if module_of(command) is None:
        return command
    return (str(sys.modules["__main__"].__file__), *command[2:])
