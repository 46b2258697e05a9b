"""Tells a claimant of its offer at once, where it takes offers.

Owns the requests and when to give up.  Decides nothing, and need not succeed: an offer is also the
answer to the claimant's next report.
"""

from __future__ import annotations

import asyncio
import logging

import httpx

from pliant.wire.offers import Offer

TIMEOUT_S = 2.0
"""Longest wait for an answer, in seconds."""

AGAIN_S = (0.1, 0.5)
"""Pauses before another try, in seconds; after that its next report has to do."""

_log = logging.getLogger(__name__)


def client() -> httpx.AsyncClient:
    """Return what offers are pushed with."""
    return httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)


class Pusher:
    """Pushes offers; of two to one claimant only the newer one."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        """Make one that closes ``http`` at its end."""
        self._http = http
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
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
                failure = str(error) or type(error).__name__
            if wait_s is not None:
                await asyncio.sleep(wait_s)
        _log.warning("the offer to %s waits for its next report: %s", claim, failure)
