"""A job in a pool: says where it stands, follows what it is offered, waits until it is its turn.

Owns the conversation with the pool over all lives of a job in this process: one that is suspended
for others ends its life, and begins the next by itself when it is offered its minimum again.  What
an offer means for the devices is for ``core.tenancy`` to say, what it means for the replicas for
the core; nothing is decided here.

    present: report --> answer ... report at every change and every so often ... withdraw
    life:       wait for the minimum --> devices to the agent, Offered to the core --> end
    life:       wait ... (again, if it was suspended for others)

The pool may die, and another of its name may follow: the discovery record is read anew for each
report, and until one answers the job keeps what it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import httpx

from pliant.agent.agent import Agent
from pliant.core import tenancy
from pliant.core.errors import ConfigError
from pliant.core.events import NodeJoined, Offered, SuspendRequested
from pliant.core.job.state import Demand, demand_of
from pliant.core.policy.decide import Policy
from pliant.core.tenancy import Admission, PoolPlace, Tenancy
from pliant.core.values import ReplicaId
from pliant.http.client import UnheardError, offer_in
from pliant.machine.pools import DEVICES, find_pool, pool_directory
from pliant.observe.log import Record
from pliant.wire.offers import HEARTBEAT_S, Offer, Report, Wanted

if TYPE_CHECKING:
    from pliant.run.hosting import Host

ANSWER_S = 5.0
"""Longest wait for the answer to a report, in seconds; a pool answers in milliseconds."""

NEWS = frozenset({"decision", "spare", "saved"})
"""Kinds of records after which a job may want something else of its pool."""


@dataclass(slots=True, kw_only=True)
class _Life:
    """One coordinator and its agent, and what they were told last."""

    host: Host
    agent: Agent
    devices: int
    is_open: bool = False
    offered: Offered | None = None
    leaving: frozenset[ReplicaId] = frozenset()
    is_suspending: bool = False
    told: Record | None = None


class Tenant:
    """One job as its pool sees it."""

    def __init__(self, place: PoolPlace, *, job: str, policy: Policy) -> None:
        """Make one that the pool does not know yet."""
        self.locks = pool_directory(place.name) / DEVICES
        self._place = place
        self._job = job
        self._policy = policy
        self._wanted = _first_wish(place, policy)
        self._tenancy = Tenancy(min_replicas=self._wanted.min_replicas)
        self._offer: Offer | None = None
        self._life: _Life | None = None
        self.is_stopped = False
        """A person has asked the job to stop or to suspend; else only the pool does."""
        self._silence = ""
        self._sent: Report | None = None
        self._changed = asyncio.Event()
        self._talking: asyncio.Task[None] | None = None
        self._http = httpx.AsyncClient(timeout=ANSWER_S, trust_env=False)

    @property
    def pool_devices(self) -> int:
        """How many devices the pool has, as far as it has said."""
        offer = self._offer
        return max(
            self._policy.min_replicas,
            0 if offer is None else offer.pool_devices or len(offer.devices),
        )

    # --- from the first report to the withdrawal --------------------------------------

    @contextlib.asynccontextmanager
    async def present(self) -> AsyncIterator[None]:
        """Be known to the pool: from the answer to a first report until the claim is withdrawn.

        Raises:
            ConfigError: the pool does not run, or does not take this job.
        """
        try:
            self.locks.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"{self.locks} cannot be written: {error.strerror}") from error
        async with self._http:
            try:
                await self._report()
            except UnheardError as error:
                raise ConfigError(str(error)) from None
            self._talking = asyncio.create_task(self._talk())
            try:
                yield
            finally:
                self._talking.cancel()
                await asyncio.gather(self._talking, return_exceptions=True)
                await self._withdraw()

    async def talks(self) -> None:
        """Last as long as the conversation, which only a mistake in it ends before the job."""
        if self._talking is not None:
            await asyncio.shield(self._talking)

    async def _talk(self) -> None:
        """Report at every change, and every so often."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._changed.wait()
            self._changed.clear()
            silence = ""
            try:
                await self._report()
            except (UnheardError, ConfigError) as error:
                silence = str(error)
            if bool(silence) != bool(self._silence):
                self._silence = silence
                self._tell()

    async def _report(self) -> None:
        """Say where the job stands, and follow the answer.

        Raises:
            ConfigError: the pool does not take the claim.
            UnheardError: nobody answered, or the pool has no offer now.
        """
        self._sent = report = self._standing()
        self._take(offer_in(await self._ask("PUT", report.model_dump(mode="json"))))

    async def _withdraw(self) -> None:
        """Tell the pool that the job is over; one that does not hear it finds the locks free."""
        with contextlib.suppress(UnheardError):
            await self._ask("DELETE", pid=os.getpid())

    async def _ask(self, method: str, body: object = None, **query: int) -> httpx.Response:
        try:
            pool = find_pool(self._place.name)
            return await self._http.request(
                method,
                f"{pool.url}/v1/claims/{self._job}",
                json=body,
                params=query,
                headers={"Authorization": f"Bearer {pool.token()}"},
            )
        except ConfigError as error:
            raise UnheardError(str(error)) from error
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            raise UnheardError(f"pool {self._place.name} did not answer: {said}") from error

    def _standing(self) -> Report:
        life, now = self._life, self._tenancy
        return Report(
            wanted=self._wanted,
            pool=now.pool,
            revision=now.revision,
            holds=now.holds,
            url=life.host.url if life else "",
            token=life.host.token if life else "",
            pid=os.getpid(),
            is_running=now.admission is not Admission.WAITING,
            is_suspended=now.is_suspended,
        )

    def _look(self) -> None:
        """Report soon if there is something to report, and tell people if there is for them."""
        if self._standing() != self._sent:
            self._changed.set()
        self._tell()

    # --- one life -----------------------------------------------------------------------

    @contextlib.contextmanager
    def life(self, host: Host, agent: Agent) -> Iterator[None]:
        """Lead this coordinator and this agent by the pool's offers; at the end nothing runs.

        The agent must not be open yet, and be closed at the end.
        """
        self._life = _Life(host=host, agent=agent, devices=self.pool_devices)
        host.log.subscribe(self._on_record)
        try:
            self._follow()
            self._look()
            yield
        finally:
            self._life = None
            # A job that is over keeps its devices until it withdraws: offered again, they would
            # only come back to it.
            if self._tenancy.admission is Admission.SUSPENDING and not self.is_stopped:
                self._tenancy = tenancy.vacate(self._tenancy)
                self._changed.set()

    def pushed(self, offer: Offer) -> int:
        """Take an offer that the pool has sent by itself; return which one is followed.

        Another pool than the one that has answered last is asked first whether it is the one.
        """
        if offer.pool == self._tenancy.pool:
            self._take(offer)
        else:
            self._changed.set()
        return self._tenancy.revision

    def on_devices(self) -> None:
        """Take note that a worker of the agent has come or gone."""
        life = self._life
        if life is None:
            return
        before = self._tenancy
        self._tenancy = tenancy.occupy(before, frozenset(life.agent.used))
        if self._tenancy.usable != before.usable:
            life.agent.may_use(self._tenancy.usable)
        self._look()

    def _on_record(self, record: Record) -> None:
        """Learn from the event log what the job wants, and whether a person ends it."""
        kind = record.get("kind")
        if kind == "stop_requested" or (kind == "suspend_requested" and not record.get("reason")):
            self.is_stopped = True
        if kind in NEWS and self._life is not None:
            self._wanted = self._wish(self._life)
            self._tenancy = replace(self._tenancy, min_replicas=self._wanted.min_replicas)
            self._look()

    def _wish(self, life: _Life) -> Wanted:
        """Return what the job wants by what its core knows; in doubt, what it wanted before."""
        now, before = life.host.driver.demand, self._wanted
        is_known = now.num_slots is not None or _is_bounded(life.host.driver.policy)
        if not is_known:
            now = replace(now, ask_replicas=before.ask_replicas, sizes=before.sizes)
        return _wanted(
            self._place,
            replace(
                now,
                num_slots=now.num_slots or before.num_slots,
                can_suspend=now.can_suspend or before.can_suspend,
            ),
        )

    def _take(self, offer: Offer) -> None:
        before = self._tenancy
        self._tenancy = tenancy.take(
            before,
            pool=offer.pool,
            revision=offer.revision,
            devices=frozenset(offer.devices),
            replicas=offer.replicas,
            suspend=offer.suspend,
        )
        if self._tenancy is not before:
            self._offer = offer
            self._follow()
            self._look()
        elif self._offer is not None and _is_same(self._offer, offer):  # it waits for another cause
            self._offer = offer
            self._tell()

    def _follow(self) -> None:
        """Tell agent and core what they may use now, as far as they were not told already."""
        life, now, offer = self._life, self._tenancy, self._offer
        if life is None or offer is None:
            return
        driver = life.host.driver
        if now.admission is not Admission.WAITING:
            if not life.is_open:
                life.is_open = True
                life.agent.open()
            life.agent.may_use(now.usable)
        if now.admission is Admission.SUSPENDING:
            if not life.is_suspending:
                life.is_suspending = True
                reason = offer.reason or "its devices are needed elsewhere"
                driver.put(SuspendRequested(reason=reason))
            return
        if self.pool_devices != life.devices:
            life.devices = self.pool_devices
            driver.put(NodeJoined(node=life.agent.node, devices=life.devices))
        offered = Offered(replicas=now.room, notice_s=offer.notice_s, reason=offer.reason)
        leaving = {name for device, name in life.agent.used.items() if device in now.unwanted}
        fresh = leaving - life.leaving
        if offered != life.offered or fresh:  # one event: else another would leave for the offer
            life.offered = offered
            life.leaving |= fresh
            driver.put(replace(offered, leave=tuple(sorted(fresh))))

    # --- for people ---------------------------------------------------------------------

    def _tell(self) -> None:
        """Write down where the job stands in its pool, if that has changed."""
        life, now, offer = self._life, self._tenancy, self._offer
        if life is None or offer is None:
            return
        told = {
            "pool": self._place.name,
            "team": self._place.team,
            "priority": self._place.priority,
            "admission": now.admission,
            "devices": now.holds,
            "offered": min(offer.replicas, len(offer.devices)),
            "wanted": self._wanted.ask_replicas,
            "reason": offer.reason,
            "is_suspended": now.is_suspended,
            "silence": self._silence,
        }
        if told != life.told:
            life.told = told
            life.host.log.write("pool", **told)


def _is_same(offer: Offer, other: Offer) -> bool:
    """Whether two offers are one, but for its reason."""
    return (offer.pool, offer.revision) == (other.pool, other.revision)


def _is_bounded(policy: Policy) -> bool:
    """Whether someone has said how large the job may get, or is to begin."""
    return policy.max_replicas is not None or policy.start_replicas is not None


def _first_wish(place: PoolPlace, policy: Policy) -> Wanted:
    """Return what a job asks for before its core has decided anything.

    Without bounds its minimum: what its steps can use is known once the first script has said so,
    and until then nobody else must give anything up for it.
    """
    ask = policy.start_replicas or policy.max_replicas or policy.min_replicas
    return _wanted(place, demand_of(policy, ask_replicas=ask + policy.spares))


def _wanted(place: PoolPlace, demand: Demand) -> Wanted:
    return Wanted(
        team=place.team,
        priority=place.priority,
        min_replicas=demand.min_replicas,
        ask_replicas=max(demand.ask_replicas, demand.min_replicas),
        sizes=demand.sizes,
        num_slots=demand.num_slots,
        can_suspend=demand.can_suspend,
        notice_s=demand.notice_s,
    )
