"""Refusals alone: how what pliant refuses is told where ``python`` runs the script.

Owns the last words of such a process: the sentence and the script's line, and exit code 2, as under
``pliant run``; and exit code 1 where a script catches another failure.  Must not know what is
refused.  Tracebacks of everything else stay as they are.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType

from pliant.core.errors import EXIT_FAILED, EXIT_USAGE, ConfigError, UsageError
from pliant.engine import script_files
from pliant.engine.worker import script_errors
from pliant.engine.worker.bootstrap import WorkerContext, flush_files, worker_context

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
    atexit.unregister(_end_as_failed)  # the script has not caught it
    is_refusal = isinstance(error, ConfigError | UsageError)
    sentence = error if is_refusal else script_errors.nondeterministic(error)
    if sentence is None:
        others(kind, error, trace)
        return
    where = script_files.at(script_files.place_of_error(trace))
    sys.stderr.write(f"pliant: {sentence}{where}\n")
    raise SystemExit(EXIT_USAGE)


def note_failure(said: str) -> None:
    """Have a script (no test runner) whose session failed not end as 0; empty: it has not."""
    atexit.unregister(_end_as_failed)
    main = str(getattr(sys.modules.get("__main__"), "__file__", ""))
    if said and main.endswith(".py") and script_files.is_own(main):
        atexit.register(_end_as_failed, said)  # it runs first, being the last


def _end_as_failed(said: str) -> None:
    sys.stderr.write(
        f"pliant: exit code {EXIT_FAILED}: the script went on after its session failed: {said}\n"
    )
    atexit.unregister(_end_as_failed)
    atexit._run_exitfuncs()  # noqa: SLF001  # no public name; the same since Python 3.0
    flush_files()
    os._exit(EXIT_FAILED)  # nothing else changes the code of a script that has ended
