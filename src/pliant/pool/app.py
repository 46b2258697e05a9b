"""The pool's HTTP face: claimants report, people look and wish.

Owns paths, bodies and status codes.  Decides nothing; who may ask, whoever serves it.

    PUT    /v1/claims/{name}                      a claimant's Report -> its Offer
    DELETE /v1/claims/{name}?pid=N                that process of it has ended
    GET    /v1/status  /v1/events?after=N         what is, what happened
    POST   /v1/devices  /v1/devices/{d}/cordon|uncordon|drain
    PUT    /v1/teams/{name}  /v1/classes/{name}   DELETE /v1/teams/{name}
    POST   /v1/stop
    GET    /healthz                               the only one without a token

What cannot be is answered with 409 and a sentence, what may be possible a moment later with 503.
"""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, FastAPI, HTTPException, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from pliant.observe.log import follow
from pliant.observe.prose import kept_by
from pliant.pool.admin import PoolAdmin
from pliant.pool.driver import PoolDriver, RefusedError
from pliant.pool.overview import board_of
from pliant.spec.model import NAME
from pliant.spec.pool import MOST_DEVICES, TeamEntry
from pliant.wire.offers import Offer, Report

MAX_EVENTS = 1000
"""Records in one answer of ``/v1/events``; ask again with the last ``next``."""

T = TypeVar("T")

REFUSED, NOT_NOW = 409, 503

Name = Annotated[str, Path(pattern=rf"^{NAME.pattern}$")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class DevicesBody(_Body):
    """How many devices there are."""

    devices: Annotated[int, Field(ge=0, le=MOST_DEVICES)]


class ClassBody(_Body):
    """How important the claims of a class are."""

    value: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)]


class WishAnswer(BaseModel):
    """What followed from a wish."""

    reason: str


class PoolEvents(BaseModel):
    """Records of the event log."""

    records: list[dict[str, Any]]
    next: int
    """Pass as ``after`` to get what comes later."""


def create_app(driver: PoolDriver, *, events_path: FilePath) -> FastAPI:
    """Return the app of one pool."""
    app = FastAPI(title="pliant pool", version="1", description=__doc__ or "")
    router = APIRouter(prefix="/v1")
    _add_claims(router, driver)
    _add_views(router, driver, events_path)
    _add_wishes(router, driver)
    app.include_router(router)

    @app.get("/healthz", tags=["machines"])
    async def healthz() -> dict[str, str]:
        """Say that the pool answers."""
        return {"status": "ok"}

    return app


def _add_claims(router: APIRouter, driver: PoolDriver) -> None:
    @router.put("/claims/{name}")
    async def report(name: Name, body: Report) -> Offer:
        """Hear where a claimant stands."""
        return await _allowed(driver.report(name, body))

    @router.delete("/claims/{name}")
    async def withdraw(name: Name, pid: Annotated[int | None, Query(ge=1)] = None) -> WishAnswer:
        """Take note that a claimant has ended, if it is still this process."""
        await driver.withdraw(name, pid=pid)
        return WishAnswer(reason=f"{name} has ended")


def _add_views(router: APIRouter, driver: PoolDriver, events_path: FilePath) -> None:
    @router.get("/status")
    async def read_status() -> dict[str, Any]:
        """Return what there is, who has it and who waits; as ``pliant pool status --json``."""
        return board_of(driver)

    @router.get("/events")
    async def events(after: Annotated[int, Query(ge=0)] = 0) -> PoolEvents:
        """Return records of the event log after a position."""
        records: list[dict[str, Any]] = []
        position = after
        for position, record in follow(events_path, after):  # noqa: B007  # used below
            records.append(record)
            if len(records) == MAX_EVENTS:
                break
        return PoolEvents(records=records, next=position)


def _add_wishes(router: APIRouter, driver: PoolDriver) -> None:
    wishes = PoolAdmin(driver)

    @router.post("/devices")
    async def set_devices(body: DevicesBody) -> WishAnswer:
        """Change how many devices there are."""
        return await _done(wishes.set_devices(body.devices))

    @router.post("/devices/{device}/cordon")
    async def cordon(device: int) -> WishAnswer:
        """Hand a device out no more."""
        return await _done(wishes.cordon(device))

    @router.post("/devices/{device}/uncordon")
    async def uncordon(device: int) -> WishAnswer:
        """Hand a device out again."""
        return await _done(wishes.uncordon(device))

    @router.post("/devices/{device}/drain")
    async def drain(device: int) -> WishAnswer:
        """Take a device back, and hand it out no more."""
        return await _done(wishes.drain(device))

    @router.put("/teams/{name}")
    async def set_team(name: Name, body: TeamEntry) -> WishAnswer:
        """Make a team, or change what it may use."""
        if body.name != name:
            raise HTTPException(REFUSED, f"the body is of team {body.name}, not {name}")
        return await _done(wishes.set_team(body))

    @router.delete("/teams/{name}")
    async def remove_team(name: Name) -> WishAnswer:
        """Forget a team that has no claims."""
        return await _done(wishes.remove_team(name))

    @router.put("/classes/{name}")
    async def set_class(name: Name, body: ClassBody) -> WishAnswer:
        """Make a priority class, or change its value."""
        return await _done(wishes.set_class(name, body.value))

    @router.post("/stop", status_code=202)
    async def stop() -> WishAnswer:
        """End the pool; who has devices keeps them."""
        keeping = driver.stop()
        kept = f"; {kept_by(keeping)}" if keeping else ""
        return WishAnswer(reason=f"pool {driver.name} stops{kept}")


async def _done(wish: Awaitable[str]) -> WishAnswer:
    return WishAnswer(reason=await _allowed(wish))


async def _allowed(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except RefusedError as error:
        raise HTTPException(NOT_NOW if error.is_temporary else REFUSED, str(error)) from error
