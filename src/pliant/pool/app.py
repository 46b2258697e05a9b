"""The pool's HTTP face: claimants report, people look and ask.

Owns paths, bodies and status codes.  Decides nothing.

    PUT    /v1/claims/{name}                      a claimant's Report -> its Offer
    DELETE /v1/claims/{name}?pid=N                that process of it has ended
    GET    /v1/status  /v1/events?after=N         what is, what happened
    GET    /v1/view  /v1/changes                  what the page shows of it
    POST   /v1/login, then /login                 a browser with a code, by ``http.login``
    POST   /v1/devices  /v1/devices/{d}/cordon|uncordon|drain
    PUT    /v1/teams/{name}  /v1/classes/{name}   DELETE /v1/teams/{name}
    POST   /v1/release                            a claim of somebody
    POST   /v1/stop
    GET    /healthz  /metrics                     machines; the only ones without a token

In a pool that users share there is no token: each claim is of the user who asks, and all but the
first four and reading are for the pool's owner.

What cannot be is answered with 409 and a sentence, what may be possible a moment later with 503.
"""

from __future__ import annotations

import os
import time
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from pliant.core.text import printable_values
from pliant.http.app import RequestBody, TextRoute, add_events, add_metrics, new_app, new_router
from pliant.http.login import Logins, add_login
from pliant.http.view import add_view
from pliant.machine.interfaces import user_name
from pliant.observe.pool_view import PoolView
from pliant.observe.prose import kept_by
from pliant.pool.admin import PoolAdmin
from pliant.pool.allocator import RefusedError, ReleasedError
from pliant.pool.auth import ForbiddenError, Gate, SharedGate
from pliant.pool.driver import PoolDriver
from pliant.pool.pool_metrics import PoolCollector
from pliant.pool.pool_status import board_of
from pliant.spec.model import NAME
from pliant.spec.pool import MOST_DEVICES, ClassEntry, TeamEntry, User
from pliant.wire.offers import Offer, Report

REFUSED, GONE, NOT_NOW = 409, 410, 503

Name = Annotated[str, Path(pattern=rf"^{NAME.pattern}$")]


class DevicesBody(RequestBody):
    """How many devices there are."""

    devices: Annotated[int, Field(ge=0, le=MOST_DEVICES)]


class ClassBody(RequestBody):
    """How important the claims of a class are."""

    value: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)]
    users: list[User] | None = None
    """Who may use it; None: everybody; not said: as before."""


class ReasonBody(RequestBody):
    """Why a device is taken out of use."""

    reason: Annotated[str, Field(max_length=200)] = ""


class ReleaseBody(RequestBody):
    """Which claim is ended, as the pool calls it."""

    claim: Annotated[str, Field(min_length=1, max_length=400)]


class RequestAnswer(BaseModel):
    """What followed from a request."""

    reason: str


def create_app(
    driver: PoolDriver,
    *,
    token: str | None,
    events_path: FilePath,
    owner_uid: int | None = None,
    logins: Logins | None = None,
) -> FastAPI:
    """Return the app of one pool: of who knows the token, or of those whom the kernel lets in;
    and of browsers that ``logins`` let in.

    Without a token it is served on a Unix socket, and its owner is a user of the machine.
    """
    app = new_app("pliant pool", __doc__, token=token, whose="the pool", logins=logins)
    router = new_router()
    gate = Gate() if owner_uid is None else SharedGate(driver, owner_uid=owner_uid)
    _add_claims(router, driver, gate)
    _add_admin(router, driver, gate)
    add_events(router, events_path)
    add_view(router, PoolView(events_path))
    if logins is not None:
        add_login(app, router, logins)

    @router.get("/status")
    async def read_status() -> dict[str, Any]:
        """Return what there is, who has it and who waits; as ``pliant pool status --json``."""
        return board_of(driver)

    app.include_router(router)
    add_metrics(app, PoolCollector(lambda: board_of(driver), driver.counts, time.time))

    @app.exception_handler(ForbiddenError)
    async def forbid(_: Request, error: ForbiddenError) -> JSONResponse:
        return JSONResponse({"detail": printable_values(str(error))}, error.status)

    @app.exception_handler(RefusedError)
    async def refuse(_: Request, error: RefusedError) -> JSONResponse:
        is_gone = isinstance(error, ReleasedError)
        code = GONE if is_gone else NOT_NOW if error.is_temporary else REFUSED
        return JSONResponse({"detail": printable_values(str(error))}, code)

    return app


def _add_claims(router: APIRouter, driver: PoolDriver, gate: Gate) -> None:
    @router.put("/claims/{name}")
    async def report(request: Request, name: Name, body: Report) -> Offer:
        """Take note of where a claimant stands."""
        claim = gate.claim_of(request, name)
        sure, uid = gate.report_of(request, claim, body)
        return await driver.report(claim, sure, uid=uid)

    @router.delete("/claims/{name}")
    async def withdraw(
        request: Request, name: Name, pid: Annotated[int | None, Query(ge=1)] = None
    ) -> RequestAnswer:
        """Take note that a claimant has ended, if it is still this process."""
        pid = gate.process_of(request, pid)
        await driver.withdraw(gate.claim_of(request, name), pid=pid)
        return RequestAnswer(reason=f"{name} has ended")


def _add_admin(routes: APIRouter, driver: PoolDriver, gate: Gate) -> None:
    admin = PoolAdmin(driver)
    router = APIRouter(route_class=TextRoute, dependencies=[Depends(gate.administration)])

    @router.post("/devices")
    async def set_devices(body: DevicesBody) -> RequestAnswer:
        """Change how many devices there are."""
        return RequestAnswer(reason=await admin.set_devices(body.devices))

    @router.post("/devices/{device}/cordon")
    async def cordon(
        request: Request, device: int, body: ReasonBody | None = None
    ) -> RequestAnswer:
        """Hand a device out no more."""
        by, reason = gate.administration(request), body.reason if body else ""
        return RequestAnswer(reason=await admin.cordon(device, by=by, reason=reason))

    @router.post("/devices/{device}/uncordon")
    async def uncordon(device: int) -> RequestAnswer:
        """Hand a device out again."""
        return RequestAnswer(reason=await admin.uncordon(device))

    @router.post("/devices/{device}/drain")
    async def drain(request: Request, device: int, body: ReasonBody | None = None) -> RequestAnswer:
        """Take a device back, and hand it out no more."""
        by, reason = gate.administration(request), body.reason if body else ""
        return RequestAnswer(reason=await admin.drain(device, by=by, reason=reason))

    @router.post("/release")
    async def release(request: Request, body: ReleaseBody) -> RequestAnswer:
        """End a claim, whosever it is."""
        by = gate.administration(request) or user_name(os.geteuid())
        return RequestAnswer(reason=await driver.release(body.claim, by=by))

    @router.put("/teams/{name}")
    async def set_team(name: Name, body: TeamEntry) -> RequestAnswer:
        """Make a team, or change what is said of it; all else stays."""
        if body.name != name:
            raise HTTPException(REFUSED, f"the body is of team {body.name}, not {name}")
        return RequestAnswer(reason=await admin.set_team(body))

    @router.delete("/teams/{name}")
    async def remove_team(name: Name) -> RequestAnswer:
        """Forget a team that has no claims."""
        return RequestAnswer(reason=await admin.remove_team(name))

    @router.put("/classes/{name}")
    async def set_class(name: Name, body: ClassBody) -> RequestAnswer:
        """Make a priority class, or change its value."""
        said = body.model_dump(exclude_unset=True)
        return RequestAnswer(reason=await admin.set_class(ClassEntry(name=name, **said)))

    @router.post("/stop", status_code=202)
    async def stop() -> RequestAnswer:
        """End the pool; who has devices keeps them."""
        return RequestAnswer(reason=f"pool {driver.saved.name} stops{kept_by(driver.stop())}")

    routes.include_router(router)
