"""``pliant dashboard``: the page, for the user who typed it.

Owns argv, and the link that lets one browser in.  Knows nothing of what the page shows.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pliant.cli.arguments import state_directory
from pliant.cli.help import argument, job_names, option
from pliant.cli.terminal import say
from pliant.cli.which_job import JobPlace, from_any_host
from pliant.core.errors import EXIT_OK, ConfigError
from pliant.http.client import Caller
from pliant.machine import run_files
from pliant.machine.event_loop import END_SIGNALS, on_signals
from pliant.machine.interfaces import loopback
from pliant.machine.registry import Handle
from pliant.observe.runs import find_run

if TYPE_CHECKING:
    from pliant.http.login import Logins


@from_any_host
def dashboard(
    runs: Annotated[
        list[str] | None,
        argument("RUN", "A directory or a name; without one, all.", autocompletion=job_names),
    ] = None,
    port: Annotated[
        int | None, option("--port N", "Of this host.  [default: any that is free]")
    ] = None,
    export: Annotated[
        Path | None,
        option("--export FILE", "Write the page of one run into a file that needs no server."),
    ] = None,
    job: Annotated[
        str | None, option("--job NAME", "The same as RUN.", autocompletion=job_names)
    ] = None,
) -> int:
    """Watch your runs in a browser: size over time, why, what each event cost.

    With --join the page is the coordinator's own, and this prints the link to it.
    """
    place = cast(JobPlace, job)
    if isinstance(place, Handle):
        return _link_to(place)
    only = [_run_of(name) for name in [*(runs or ()), *([place] if place else ())]]
    if export is not None:
        return _write_report(only, export)
    return _show_runs(only, port or 0)


def _run_of(name: str) -> Path:
    path = Path(name)
    if run_files.holds_run(path):
        return path.absolute()
    return find_run(name, None, state_directory())


def _write_report(only: list[Path], file: Path) -> int:
    from pliant.dashboard.report import report_of

    if len(only) > 1:
        raise ConfigError(f"--export {file} is of one run; leave out {only[1]}")
    out = only[0] if only else find_run(None, None, state_directory())
    file.write_text(report_of(out), encoding="utf-8")
    return say(f"{file} shows {out}, without a server")


def _link_to(job: Handle) -> int:
    """Ask a coordinator elsewhere for a link to its own page."""
    if job.headers():
        raise ConfigError(
            f"the page of {job.name} is reached by no address of this host; forward its port "
            "(kubectl port-forward), and give --join 127.0.0.1:PORT"
        )
    code = Caller(job).ask("POST", "/v1/login")["code"]
    return say(f"{job.url}/#code={code}  ({_how_good()})")


def _how_good() -> str:
    from pliant.http.login import CODE_S

    return f"good once, for {CODE_S / 60:g} min"


def show_day(port: int) -> int:
    """Show a simulated day of a shared pool until somebody ends it."""
    from pliant.dashboard.app import create_day_app
    from pliant.run.pool_day import PoolDay, yesterday

    with tempfile.TemporaryDirectory(prefix="pliant-demo-") as directory:
        day = PoolDay(run_files.event_log(Path(directory)), yesterday())
        app_for = partial(create_day_app, day.log, day.status)
        return asyncio.run(_serve(app_for, port, ends="Ctrl-C ends it"))


def _show_runs(only: list[Path], port: int) -> int:
    from pliant.dashboard.app import Runs, create_app, key_of

    runs, run = Runs(state_directory(), only), ""
    if len(only) == 1:
        run = f"&run={key_of(only[0])}"
        runs.read(only[0])
    app_for = partial(create_app, runs)
    return asyncio.run(_serve(app_for, port, run, ends="Ctrl-C ends it, and no run"))


async def _serve(app_for: Callable[[Logins], Any], port: int, run: str = "", *, ends: str) -> int:
    from pliant.http.login import Logins
    from pliant.http.server import answering, open_socket, url_of

    logins, ended = Logins({socket.gethostname()}), asyncio.Event()
    sock = open_socket(loopback(), port)
    with on_signals(dict.fromkeys((signal.SIGINT, *END_SIGNALS), ended.set)):
        async with answering(app_for(logins), sock):
            say(f"{url_of(sock)}/#code={logins.new_code()}{run}")
            say(f"({_how_good()}; {ends})")
            sys.stdout.flush()
            await ended.wait()
    return EXIT_OK
