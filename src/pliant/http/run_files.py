"""What lies in the directory of a run, over HTTP: what its workers printed, and its audit.

Owns the routes; whoever serves a run has the same ones.  Knows nothing of whether it runs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, status
from fastapi.responses import Response
from pydantic import BaseModel

from pliant.core.errors import EXIT_FAILED, EXIT_OK
from pliant.http.client import NEXT
from pliant.machine.event_loop import aside
from pliant.observe.printed import PrintedUntil, printed_after, printers

AUDIT_S = 600.0
"""Longest time of an audit, in seconds."""


class Printers(BaseModel):
    """Workers that have printed something."""

    workers: list[str]


def add_run_files(people: APIRouter, out: Path) -> None:
    """Serve what lies in the directory of a run."""
    auditing = asyncio.Lock()

    @people.get("/logs")
    async def read_printers() -> Printers:
        """Name the workers whose output is there."""
        return Printers(workers=await aside(printers, out))

    @people.get("/logs/{worker}", response_class=Response)
    async def read_printed(
        worker: str, after: Annotated[str, Query(max_length=60)] = ""
    ) -> Response:
        """Return what a worker printed after a place: bytes as they are, a megabyte at most."""
        if worker not in await aside(printers, out):
            raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no output of {worker}")
        try:
            data, place = await aside(printed_after, out, worker, PrintedUntil.of(after))
        except OSError as error:
            sentence = f"the output of {worker} cannot be read: {error.strerror}"
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, sentence) from error
        headers = {NEXT: str(place), "X-Content-Type-Options": "nosniff"}
        return Response(data, headers=headers, media_type="application/octet-stream")

    @people.get("/audit")
    async def read_audit() -> dict[str, Any]:
        """Audit the run, in a process of its own; one at a time."""
        if auditing.locked():
            sentence = "the job is being audited for somebody else; ask again"
            raise HTTPException(status.HTTP_409_CONFLICT, sentence)
        async with auditing:
            return await audit_aside(out)


async def audit_aside(out: Path) -> dict[str, Any]:
    """Return what an audit prints.  Here it would take the interpreter from the event loop."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pliant", "audit", "--out", str(out), "--json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as why:
        sentence = f"it cannot be audited here ({why}); run pliant audit on the job's host"
        raise HTTPException(status.HTTP_409_CONFLICT, sentence) from None
    try:
        async with asyncio.timeout(AUDIT_S):
            said, error = await process.communicate()
    except TimeoutError:
        sentence = f"the audit took more than {AUDIT_S:g} s; run pliant audit on the job's host"
        raise HTTPException(status.HTTP_409_CONFLICT, sentence) from None
    except asyncio.CancelledError:
        sentence = "the job has ended; run pliant audit on its host"
        raise HTTPException(status.HTTP_409_CONFLICT, sentence) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode in (EXIT_OK, EXIT_FAILED) and said:
        found: dict[str, Any] = json.loads(said)
        return found
    sentence = error.decode(errors="replace").strip().removeprefix("pliant: ")
    raise HTTPException(status.HTTP_409_CONFLICT, f"it cannot be audited: {sentence}")
