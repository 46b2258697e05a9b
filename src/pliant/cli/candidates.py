"""``pliant run --join A:PORT,B:PORT``: one command on every host, of which several may coordinate.

Owns what such a host is made of, and how the job is shown where it is coordinated.  Knows nothing
of when that is here (``core.takeover``, ``run.candidate``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from pliant.cli import start
from pliant.cli.job_file import WhatToRun
from pliant.cli.resolved import Settings
from pliant.cli.several_hosts import Joining, exit_code_of
from pliant.cli.terminal import PlainConsole, say_aside
from pliant.cli.view import ShownView
from pliant.core.errors import ConfigError
from pliant.machine import run_files
from pliant.run.candidate import Candidate, run_candidate


def run(
    here: Joining, what: WhatToRun, settings: Settings, environ: Mapping[str, str], *, as_json: bool
) -> int:
    """Take part, and coordinate whenever that is this host's turn; return the exit code."""
    if (out := settings["out"].value) is None:
        raise ConfigError(
            f"--join {here.place} names several hosts that may coordinate: say with --out DIR "
            "where the run's files go, a directory that all of them see"
        )
    register = settings["register"].value or str(out / run_files.SHARED_REGISTER)
    found = {"resume": run_files.holds_run(out), "port": here.port, "register": register}
    fixed = {name: replace(settings[name], value=value) for name, value in found.items()}
    settings = {**settings, **fixed}
    planned = start.planned(
        what.words, settings, environ, is_apart=True, address=here.address, host=here.host
    )
    planned = start.working_in(planned, what.directory)
    candidate = Candidate(
        config=start.with_weights(planned),
        agent=here.agent(what, environ),
        join=here.place,
        turn=here.turn or 0,
        token_file=here.token_file,
        observed=partial(_viewed, planned, as_json=as_json),
        say=say_aside,
    )
    return exit_code_of(lambda: run_candidate(candidate), is_job=True)


@contextmanager
def _viewed(planned: start.Start, *, as_json: bool) -> Iterator[ShownView]:
    with start.view_of(planned, PlainConsole(), as_json=as_json) as view:
        yield view
