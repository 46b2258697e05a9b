"""Keeps a store as the API server has it: list, then watch from there, and list again if it must.

Owns when to list, when to watch and how long to wait after a failure.  Nothing is asked for twice
that a watch has told.  Must not know what objects mean.

    LIST --pages--> store --WATCH from its version--> added, modified, deleted --> store
     ^                            |
     +---- 410: too old ----------+---- ended, cut off: watch again from the last version

A kind that is not served (Kueue is not installed) counts as known, and empty; it is asked for
again every 20 s.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial

from pliant.kube.client import WATCH_S, Api, ApiError, Object, Resource, listing, watching
from pliant.kube.store import Store

FIRST_PAUSE_S = 0.2
MOST_PAUSE_S = 10.0
"""After failures in a row; an API server that comes back is found within that."""

STEADY_S = 5.0
"""A watch that held for so long was no failure."""

ABSENT_S = 20.0
"""Until a kind that is not served is asked for again."""

LATEST = str((1 << 63) - 1)
"""A version after all others."""


class BackOff:
    """Pauses that double, and differ between those who wait for the same."""

    def __init__(self, first_s: float, most_s: float, rng: random.Random) -> None:
        self._first_s, self._most_s, self._rng = first_s, most_s, rng
        self.failures = 0

    def next_s(self) -> float:
        """Return the pause after one more failure."""
        pause_s = min(self._most_s, self._first_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return pause_s * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin anew: it went well."""
        self.failures = 0


class Reflector:
    """One kind, in one namespace or in all."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        store: Store,
        *,
        namespace: str | None = None,
        labels: str = "",
        only_metadata: bool = False,
        rng: random.Random,
        failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """``failed``: told of each failure by its reason."""
        self.resource = resource
        self.store = store
        self.synced = asyncio.Event()
        self.is_absent = False
        self.problem: str | None = "not listed yet"
        """Why what is known may be old, in a clause; None: a watch holds."""
        self._api = api
        self._namespace = namespace
        self._list = partial(
            listing, resource, namespace, labels=labels, only_metadata=only_metadata
        )
        self._watch = partial(
            watching, resource, namespace, labels=labels, only_metadata=only_metadata
        )
        self._rng = rng
        self._failed = failed
        self._version: str | None = None
        self._pause = BackOff(FIRST_PAUSE_S, MOST_PAUSE_S, rng)

    async def run(self) -> None:
        """Keep the store until cancelled."""
        while True:
            began_s, heard = time.monotonic(), False
            try:
                version = self._version or await self._relist()
                limit_s = self._rng.uniform(0.7, 1.0) * WATCH_S
                watch = self._watch(version=version, timeout_s=int(limit_s))
                async with aclosing(self._api.events(watch)) as events:
                    async for event in events:
                        heard |= self._note(event)
                wait_s = 0.0 if heard or time.monotonic() - began_s > STEADY_S else None
            except ApiError as error:
                wait_s = self._after(error)
            if heard or time.monotonic() - began_s > STEADY_S:
                self._pause.reset()
            await asyncio.sleep(self._pause.next_s() if wait_s is None else wait_s)

    async def _relist(self) -> str:
        bodies, version = await self._api.list(self._list())
        self.is_absent = False
        self.store.listed(bodies, version=version, namespace=self._namespace)
        self._version, self.problem = version, None
        self.synced.set()
        return version

    def _note(self, event: Object) -> bool:
        """Note one event; return whether it was of an object."""
        body, kind = event["object"], event["type"]
        self._version, self.problem = body["metadata"]["resourceVersion"], None
        if kind == "DELETED":
            self.store.removed(body)
        elif kind != "BOOKMARK":
            self.store.changed(body)
        return bool(kind != "BOOKMARK")

    def _after(self, error: ApiError) -> float | None:
        """Return how long to wait after a failure; None: as after others."""
        self._failed(error.reason or str(error.code))
        if error.is_expired:
            self._version = None
        elif error.is_gone:
            self._version, self.is_absent = None, True
            self.store.listed((), version=LATEST, namespace=self._namespace)
            self.synced.set()
            return ABSENT_S * self._rng.uniform(0.8, 1.0)
        self.problem = error.message
        return None if error.retry_after_s is None else error.retry_after_s + self._pause.next_s()
