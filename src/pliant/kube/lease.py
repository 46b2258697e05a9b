"""One operator decides: a Lease says which, and none writes after it may be another's.

Owns when this process may write.  The others wait until they have seen the Lease unchanged for its
whole duration, by their own clocks; they cannot have seen a renewal before it was sent.  So who
holds it may write until that long after it *sent* its last renewal that was answered, less a margin
for clocks that run apart.  Time is monotonic: a clock that is set has no say.

    standby --free, or unchanged for its duration--> leading --not renewed in time--> standby
                                                        +----release: the next need not wait
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

from pliant.core.errors import PliantError
from pliant.kube.client import LEASES, Api, ApiError, Object, create, read, replace
from pliant.machine.event_loop import within

DURATION_S = 15
RENEW_S = 5.0
RETRY_S = 2.0
MARGIN_S = 2.0
"""Of ``DURATION_S``, for clocks that run apart and for a request that is under way."""


class LeaseLostError(PliantError):
    """Another operator may lead by now; nothing more is written by this one."""


class Lease:
    """One Lease, and whether this process holds it."""

    def __init__(
        self,
        api: Api,
        *,
        name: str,
        namespace: str,
        identity: str,
        rng: random.Random,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``identity``: of this process and no other, also not of the one before in this pod."""
        self._api = api
        self._name, self._namespace, self.identity = name, namespace, identity
        self._rng = rng
        self._now_s = monotonic
        self._until_s = -1.0
        self._seen: tuple[str, float] = ("", 0.0)
        """Version that was seen last, and when it was seen first."""
        self._ours: Object | None = None
        """As it was written last: a renewal is one request."""

    @property
    def is_held(self) -> bool:
        """Whether nobody else can hold it now."""
        return self._now_s() < self._until_s

    def left_s(self) -> float:
        """Return for how long it is held yet.

        Raises:
            LeaseLostError: it is not.
        """
        left_s = self._until_s - self._now_s()
        if left_s <= 0:
            raise LeaseLostError(f"the lease {self._name} was not renewed in time")
        return left_s

    async def acquire(self) -> None:
        """Return once it is held."""
        while not await self._try():
            await asyncio.sleep(RETRY_S * self._rng.uniform(0.8, 1.2))

    async def keep(self) -> None:
        """Renew it until cancelled.

        Raises:
            LeaseLostError: that has failed for too long, or another one holds it.
        """
        while True:
            await asyncio.sleep(RENEW_S)
            while not await self._try():
                self.left_s()
                await asyncio.sleep(RETRY_S / 2)

    async def release(self) -> None:
        """Let the next one have it at once; nothing is written afterwards."""
        self._ours = None
        if self.is_held:
            self._until_s = -1.0
            with contextlib.suppress(ApiError):
                lease = await self._api.ask(read(LEASES, self._name, self._namespace))
                if lease["spec"].get("holderIdentity") == self.identity:
                    lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._api.ask(replace(lease))

    async def _try(self) -> bool:
        """Take it or renew it; return whether that was answered."""
        sent_s = self._now_s()
        try:
            taken = await within(self._take_or_renew(), DURATION_S - MARGIN_S)
        except ApiError:
            return False
        if not taken:
            return False
        self._until_s = sent_s + DURATION_S - MARGIN_S
        return True

    async def _take_or_renew(self) -> bool:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": DURATION_S,
            "renewTime": now,
        }
        ask = self._api.ask
        try:
            lease = self._ours or await ask(read(LEASES, self._name, self._namespace))
        except ApiError as error:
            if not error.is_gone:
                raise
            meta = {"name": self._name, "namespace": self._namespace}
            self._ours = await ask(create(_lease(meta, ours | {"acquireTime": now})))
            return True
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") != self.identity:
            self._until_s = -1.0
            if not self._is_free(lease, spec):
                return False
            ours |= {"acquireTime": now, "leaseTransitions": spec.get("leaseTransitions", 0) + 1}
        self._ours = None  # whatever becomes of it; who has changed it meanwhile is read then
        self._ours = await ask(replace(_lease(lease["metadata"], {**spec, **ours})))
        return True

    def _is_free(self, lease: Object, spec: Object) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if self._seen[0] != version:
            self._seen = version, self._now_s()
        waited_s = self._now_s() - self._seen[1]
        return not spec.get("holderIdentity") or waited_s >= (
            spec.get("leaseDurationSeconds") or DURATION_S
        )


def _lease(meta: Object, spec: Object) -> Object:
    return {"apiVersion": LEASES.api, "kind": LEASES.kind, "metadata": meta, "spec": spec}
