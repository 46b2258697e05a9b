"""``pliant dashboard``: a user's own process, which shows all runs of the user in one page.

Owns its paths.  What a run is like is read from its files, whether it runs or not; what a person
asks of a running job is asked of its coordinator, with the token that the user may read.

    GET  /v1/runs                       all that are known, with how they ended
    *    /v1/runs/{key}/v1/...          of one: view, changes, events, logs, audit, as a coordinator
    POST /v1/runs/{key}/v1/resume       go on with one that has ended; nothing else serves it
    *    /v1/pools/{name}/v1/...        of a pool that this user may use: status, view, verbs
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, status
from starlette.responses import JSONResponse
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from pliant.core.errors import EXIT_OK, ConfigError
from pliant.core.text import last_line
from pliant.dashboard.page import add_page
from pliant.http.app import add_events, new_app, new_router
from pliant.http.client import Caller
from pliant.http.login import Logins, add_login
from pliant.http.run_files import add_run_files
from pliant.http.view import LATEST, add_view
from pliant.machine import run_files
from pliant.machine.event_loop import aside
from pliant.machine.registry import (
    Served,
    StateDirectory,
    running_jobs,
    running_pools,
    shared_pools,
)
from pliant.observe.pool_view import PoolView
from pliant.observe.runs import KnownRun, known_runs, run_in
from pliant.observe.status import Board
from pliant.observe.view import LogView

VERBS = re.compile(r"scale|checkpoint|stop|suspend|policy|replicas/[^/]+/(drain|kill)")
"""What is passed on to the coordinator of a run."""

POOL_VERBS = re.compile(r"stop|release|devices(/\d+/(cordon|uncordon|drain))?|teams/[^/]+")
"""What is passed on to a pool."""

StatusAt = Callable[[float | None], dict[str, Any]]

LOOKS_APART = 10
"""How many times as long as it takes to look through all runs nobody looks again."""


class Runs:
    """The runs that are shown, and what answers for each of them."""

    def __init__(self, state: StateDirectory, only: Sequence[Path] = ()) -> None:
        self.state = state
        self._only = {out.absolute() for out in only}
        self._found: list[KnownRun] = []
        self._known: dict[str, KnownRun] = {}
        """Those whose files are still there, by their keys."""

        self._apps: dict[str, FastAPI] = {}
        self._looks_s = 0.0

    def read(self, out: Path) -> None:
        """Begin to read a run before somebody asks for it: of a long one that takes a second."""
        view = _view_of(out)
        self._apps[key_of(out)] = app_of(out, self.state, view)
        threading.Thread(target=_look_at, args=(view,), daemon=True).start()

    def all(self) -> list[KnownRun]:
        """Return them, the running ones first."""
        began_s = time.monotonic()
        if began_s >= self._looks_s:
            if self._only:
                self._found = [run_in(out) for out in sorted(self._only)]
            else:
                self._found = known_runs(self.state)
            self._known = {key_of(run.out): run for run in self._found if run.has_its_files}
            now_s = time.monotonic()
            self._looks_s = now_s + LOOKS_APART * (now_s - began_s)
        return self._found

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer for the run that a path names."""
        key = scope["path_params"]["key"]
        if key not in self._apps:
            if key not in self._known:
                await aside(self.all)
            run = self._known.get(key)
            if run is None:
                await _not_found("run")(scope, receive, send)
                return
            self._apps[key] = app_of(run.out, self.state)
        await self._apps[key](scope, receive, send)

    def pools(self) -> list[Served]:
        """Return the pools that run, this user's and shared ones."""
        shared = shared_pools(self.state.shared_pools)
        return [] if self._only else [*running_pools(self.state.pools), *shared]

    async def answer_of_pool(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer for the pool that a path names, whichever process serves it now."""
        name = scope["path_params"]["name"]
        found = [one for one in await aside(self.pools) if one.name == name]
        if not found:
            await _not_found("pool")(scope, receive, send)
            return
        key = f"{name} {found[0].out}"
        if key not in self._apps:
            self._apps[key] = app_of_pool(name, found[0].out, self)
        await self._apps[key](scope, receive, send)


def key_of(out: Path) -> str:
    """Return by which name in an address a run is meant."""
    return hashlib.blake2b(str(out.absolute()).encode(), digest_size=8).hexdigest()


def create_app(runs: Runs, logins: Logins) -> FastAPI:
    """Return the app of the process; only browsers that are logged in are answered."""
    token = secrets.token_urlsafe(32)  # nobody is told it
    app = new_app("pliant dashboard", __doc__, token=token, whose="the dashboard", logins=logins)
    people = new_router()

    @people.get("/runs")
    async def list_runs() -> dict[str, Any]:
        """Return every run with how far it came."""
        found, pools = await aside(runs.all), await aside(runs.pools)
        listed = [_listed(run) for run in found]
        return {"now": time.time(), "runs": listed, "pools": [pool.name for pool in pools]}

    add_login(app, people, logins)
    app.include_router(people)
    app.router.routes.append(Mount("/v1/runs/{key}", app=runs.answer))
    app.router.routes.append(Mount("/v1/pools/{name}", app=runs.answer_of_pool))
    add_page(app, "runs", logins)
    return app


def _not_found(what: str) -> JSONResponse:
    sentence = {"detail": f"there is no such {what} here any more"}
    return JSONResponse(sentence, status.HTTP_404_NOT_FOUND)


def _listed(run: KnownRun) -> dict[str, Any]:
    outcome = run.outcome
    return {
        "key": key_of(run.out) if run.has_its_files else None,
        "job": run.job,
        "out": str(run.out),
        "state": outcome.state,
        "step": outcome.step,
        "total_steps": outcome.total_steps,
        "num_replicas": outcome.num_replicas,
        "began_at": run.began_at,
        "ended_at": run.ended_at,
        "reason": outcome.reason,
    }


def concluded(out: Path, board: Board) -> dict[str, Any]:
    """Return what the log of a run cannot say of itself: whether it was killed, or can go on."""
    run = run_in(out, board)
    if run.is_running:
        return {"is_over": False, "is_resumable": False}
    return {
        "is_over": True,
        "is_resumable": run.is_resumable,
        "state": run.outcome.state,
        "reason": run.outcome.reason or board.reason,
        "eta_s": None,
    }


def _view_of(out: Path) -> LogView:
    return LogView(run_files.event_log(out), lambda board: concluded(out, board))


def _look_at(view: LogView) -> None:
    with suppress(OSError):  # whoever asks is told
        view.headline()


def app_of(out: Path, state: StateDirectory, view: LogView | None = None) -> FastAPI:
    """Return what answers for one run, behind the login of the process."""
    app = new_app("pliant run", None, token=None, whose="the run")
    people = new_router()
    add_view(people, view or _view_of(out))
    add_events(people, run_files.event_log(out))
    add_run_files(people, out)

    @people.get("/policy")
    async def read_policy() -> dict[str, Any]:
        """Return the elastic policy of the running job."""
        return await _asked(lambda: _ask(out, state, "GET", "policy", None))

    @people.post("/resume", status_code=202)
    async def resume() -> dict[str, str]:
        """Go on with the run, in the background."""
        return {"reason": await resumed(out)}

    @people.api_route("/{path:path}", methods=["POST", "PATCH"], status_code=202)
    async def pass_on(path: str, request: Request) -> dict[str, Any]:
        """Ask the coordinator of the running job."""
        if not VERBS.fullmatch(path):
            raise HTTPException(status.HTTP_404_NOT_FOUND, f"a job does not know how to {path}")
        body = await _body_of(request)
        return await _asked(lambda: _ask(out, state, request.method, path, body))

    app.include_router(people)
    return app


def app_of_pool(name: str, out: Path, runs: Runs) -> FastAPI:
    """Return what answers for one pool, behind the login of the process."""
    app = new_app("pliant pool", None, token=None, whose="the pool")
    people, log = new_router(), run_files.event_log(out)
    add_view(people, PoolView(log))
    add_events(people, log)

    def ask(method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        pool = next((one for one in runs.pools() if one.name == name), None)
        if pool is None:
            raise ConfigError(f"pool {name} does not run any more")
        with closing(Caller(pool)) as caller:
            return caller.ask(method, f"/v1/{path}", body)

    @people.get("/status")
    async def read_status() -> dict[str, Any]:
        """Return what the pool says of itself."""
        return await _asked(lambda: ask("GET", "status", None))

    @people.api_route("/{path:path}", methods=["POST", "PUT", "DELETE"], status_code=202)
    async def pass_on(path: str, request: Request) -> dict[str, Any]:
        """Ask the pool."""
        if not POOL_VERBS.fullmatch(path):
            raise HTTPException(status.HTTP_404_NOT_FOUND, f"a pool does not know how to {path}")
        body = await _body_of(request)
        return await _asked(lambda: ask(request.method, path, body))

    app.include_router(people)
    return app


def create_day_app(log: Path, status_at: StatusAt, logins: Logins) -> FastAPI:
    """Return the app that shows a pool that is over, from its log and how it stood at a moment."""
    token = secrets.token_urlsafe(32)  # nobody is told it
    app = new_app("pliant demo", __doc__, token=token, whose="the demo", logins=logins)
    people = new_router()
    add_view(people, PoolView(log))
    add_events(people, log)

    @people.get("/status")
    async def read_status(at: Annotated[float | None, Query(ge=0, le=LATEST)] = None) -> Any:
        """Return how the pool stood at a moment, in seconds of the epoch; without one: at last."""
        return status_at(at)

    add_login(app, people, logins)
    app.include_router(people)
    add_page(app, "pool", logins)
    return app


async def _body_of(request: Request) -> Any:
    try:
        return json.loads(await request.body() or b"null")
    except ValueError as error:
        sentence = f"the body is no JSON: {error}"
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, sentence) from None


async def _asked(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return await aside(ask)
    except ConfigError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from None


def _ask(
    out: Path, state: StateDirectory, method: str, path: str, body: dict[str, Any] | None
) -> dict[str, Any]:
    job = next((one for one in running_jobs(state.jobs) if one.out == out), None)
    if job is None:
        raise ConfigError(f"the run in {out} does not run any more")
    with closing(Caller(job)) as caller:
        return caller.ask(method, f"/v1/{path}", body)


async def resumed(out: Path) -> str:
    """Resume a run in the background, as the command does; return what that says.

    Raises:
        HTTPException: it refuses.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pliant", "resume", str(out), "--detach"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, error = await process.communicate()
    if process.returncode != EXIT_OK:
        sentence = last_line(error.decode(errors="replace"))
        raise HTTPException(status.HTTP_409_CONFLICT, sentence)
    return last_line(said.decode(errors="replace"))
