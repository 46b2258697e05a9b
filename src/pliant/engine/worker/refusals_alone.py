"""Refusals alone: how what pliant refuses is told where ``python`` runs the script.

Owns the last words of such a process: the sentence and the script's line, and exit code 2, as under
``pliant run``.  Must not know what is refused.  Tracebacks of everything else stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType

from pliant.core.errors import ConfigError, UsageError
from pliant.core.exits import EXIT_USAGE
from pliant.engine.worker import script_files
from pliant.engine.worker.bootstrap import WorkerContext, worker_context

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def meet_session(context: WorkerContext | None) -> None:
    """Take note that the script makes a session; ``context`` is None where it runs alone."""
    if context is not None:
        context.meet_session()
    tell_in_a_sentence()


def tell_in_a_sentence() -> None:
    """From now on, tell what pliant refuses as ``pliant run`` would, if the script runs alone."""
    if worker_context() is None and not isinstance(sys.excepthook, partial):
        sys.excepthook = partial(_tell, sys.excepthook)


def _tell(
    others: Hook, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not isinstance(error, ConfigError | UsageError):
        others(kind, error, trace)
        return
    place = script_files.place_of_error(trace)
    where = "" if place is None else f" ({place})"
    sys.stderr.write(f"pliant: {error}{where}\n")
    raise SystemExit(EXIT_USAGE)
