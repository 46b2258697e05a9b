"""Pools and their claimants ask each other over HTTP: reports one way, offers the other.

Owns the requests, when to give up, and which failure means what.  Decides nothing; an offer that
was not heard is also the answer to the claimant's next report.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from pydantic import ValidationError

from pliant.core.errors import ConfigError
from pliant.http.client import FORBIDDEN, GONE, REFUSED, authorization, refusal, said_of
from pliant.machine.event_loop import cancelled
from pliant.machine.files import is_shared_directory
from pliant.machine.registry import SOCKET, find_pool
from pliant.wire.offers import Offer, Report

PUSH_S = 2.0
"""Longest wait for the answer to an offer, in seconds."""

AGAIN_S = (0.1, 0.5)
"""Pauses before another try, in seconds; after that its next report has to do."""

ANSWER_S = 5.0
"""Longest wait for the answer to a report, in seconds; a pool answers in milliseconds."""

_log = logging.getLogger(__name__)


class UnheardError(Exception):
    """A report to a pool has not been answered with an offer yet; the sentence says why."""


class ClaimReleasedError(ConfigError):
    """Who may has ended the claim; the sentence says who."""


class ClaimAtPool:
    """A claim's way to its pool, for one thread at a time, which may wait for seconds.

    The discovery record is read anew for each request.
    """

    def __init__(self, pool: str, claim: str, records: Path) -> None:
        self._pool = pool
        self._records = records
        self._claim = claim
        is_shared = is_shared_directory(records / pool)
        way = httpx.HTTPTransport(uds=str(records / pool / SOCKET)) if is_shared else None
        self._http = httpx.Client(timeout=ANSWER_S, trust_env=False, transport=way)

    def report(self, report: Report) -> Offer:
        """Say where the claimant stands; return what it may use.

        Raises:
            ConfigError: the pool refuses the claim.
            UnheardError: nobody answered, or the pool has no offer now.
        """
        return offer_in(self._ask("PUT", json=report.model_dump(mode="json")))

    def withdraw(self, pid: int) -> None:
        """Say that the claim is over; a pool that does not hear it finds the locks free."""
        with suppress(UnheardError):
            self._ask("DELETE", params={"pid": pid})

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _ask(self, method: str, **values: Any) -> httpx.Response:
        try:
            served = find_pool(self._pool, self._records)
            url, headers = f"{served.url}/v1/claims/{self._claim}", authorization(served)
        except ConfigError as error:
            raise UnheardError(str(error)) from error
        try:
            return self._http.request(method, url, headers=headers, **values)
        except httpx.HTTPError as error:
            raise UnheardError(f"pool {self._pool} did not answer: {said_of(error)}") from error


def offer_in(response: httpx.Response) -> Offer:
    """Return the offer that a pool has answered a report with.

    Raises:
        ConfigError: it refuses the claim.
        UnheardError: it has no offer now.
    """
    if response.is_success:
        try:
            return Offer.model_validate_json(response.content)
        except ValidationError as error:
            said = str(error).partition("\n")[0]
            raise UnheardError(f"the pool answered with what is no offer: {said}") from error
    sentence = refusal(response, "pool")
    if response.status_code == GONE:
        raise ClaimReleasedError(sentence)
    is_final = response.status_code in (REFUSED, FORBIDDEN)
    raise ConfigError(sentence) if is_final else UnheardError(sentence)


class Pusher:
    """Tells claimants that take offers of theirs at once; of two to one only the newer one."""

    def __init__(self, http: httpx.AsyncClient | None = None) -> None:
        """Make one that closes ``http`` at its end; None: its own."""
        self._http = http or httpx.AsyncClient(timeout=PUSH_S, trust_env=False)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def push(self, claim: str, offer: Offer, *, url: str, token: str) -> None:
        """Begin to tell a claimant; what was not yet told is told no more."""
        self.drop(claim)
        task = asyncio.create_task(self._push(claim, offer, url, token))
        self._tasks[claim] = task
        task.add_done_callback(lambda done: self._forget(claim, done))

    def drop(self, claim: str) -> None:
        """Stop telling a claimant."""
        task = self._tasks.pop(claim, None)
        if task is not None:
            task.cancel()

    async def idle(self) -> None:
        """Wait until everybody was told, or given up."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Stop telling anybody."""
        tasks = list(self._tasks.values())
        await cancelled(*tasks)
        await self._http.aclose()

    def _forget(self, claim: str, done: asyncio.Task[None]) -> None:
        if self._tasks.get(claim) is done:
            del self._tasks[claim]

    async def _push(self, claim: str, offer: Offer, url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        body = offer.model_dump(mode="json")
        for wait_s in (*AGAIN_S, None):
            try:
                answer = await self._http.put(f"{url}/v1/offer", json=body, headers=headers)
                if answer.is_success:
                    return
                failure = f"HTTP status {answer.status_code}"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                failure = said_of(error)
            if wait_s is not None:
                await asyncio.sleep(wait_s)
        _log.warning("the offer to %s waits for its next report: %s", claim, failure)
