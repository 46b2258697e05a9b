"""A job in a pool: says where it stands, follows what it is offered, waits until it is its turn.

Owns the conversation with the pool over all lives of a job in this process: one that is suspended
for others ends its life, and begins the next by itself when it is offered its minimum again.  What
is asked for, and what an offer means for the devices, is for ``core.tenancy`` to say, what it means
for the replicas for the core; nothing is decided here.

    present: report --> answer ... report at every change and every so often ... withdraw
    life:       wait for the minimum --> devices to the agent, Offered to the core --> end
    life:       wait ... (again, if it was suspended for others)

The pool may die, and another of its name may follow: until one answers the job keeps what it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pliant.agent.agent import Agent
from pliant.core import tenancy
from pliant.core.errors import ConfigError
from pliant.core.events import NodeJoined, Offered, StopRequested, SuspendRequested
from pliant.core.policy.decide import Policy
from pliant.core.tenancy import (
    Admission,
    Demand,
    PoolPlace,
    Tenancy,
    first_demand,
    in_devices,
    next_demand,
)
from pliant.core.values import ReplicaId
from pliant.machine.event_loop import aside, cancelled, within
from pliant.machine.files import is_shared_directory
from pliant.machine.registry import DEVICES
from pliant.observe.log import Record
from pliant.pool.claim_client import ClaimAtPool, ClaimReleasedError, UnheardError
from pliant.run.run_directory import make_private
from pliant.wire.offers import HEARTBEAT_S, Offer, Report

if TYPE_CHECKING:
    from pliant.run.hosting import Host

ASKS_S = 0.5
"""Between two reports to a pool of several users, in seconds: it cannot tell the job by itself, as
who has the job's token could do with the job what it likes."""

NEWS = frozenset({"decision", "spare", "saved"})
"""Kinds of records after which a job may want something else of its pool."""


class PoolLife:
    """One coordinator and its agent, and what they were told already: each is told once."""

    def __init__(self, host: Host, agent: Agent, *, devices: int, workers_per_replica: int) -> None:
        self.host = host
        self.agent = agent
        self._devices = devices
        self._workers_per_replica = workers_per_replica
        self._is_open = False
        self._is_suspending = False
        self._offered: Offered | None = None
        self._leaving: frozenset[ReplicaId] = frozenset()
        self._standing: Record | None = None

    def follow_offer(self, now: Tenancy, offer: Offer, *, devices: int) -> None:
        """Tell agent and core what they may use now, as far as they were not told already."""
        if now.admission is not Admission.WAITING:
            if not self._is_open:
                self._is_open = True
                self.agent.open()
            self.agent.may_use(now.usable)
        if now.admission is not Admission.SUSPENDING:
            self._offer_replicas(now, offer, devices)
        elif not self._is_suspending:
            self._is_suspending = True
            reason = offer.reason or "its devices are needed elsewhere"
            self.host.driver.put(SuspendRequested(reason=reason))

    def log_standing(self, standing: Record) -> None:
        """Write down where the job stands in its pool, if that has changed."""
        if standing != self._standing:
            self._standing = standing
            self.host.log.write("pool", **standing)

    def _offer_replicas(self, now: Tenancy, offer: Offer, devices: int) -> None:
        driver = self.host.driver
        if devices != self._devices:
            self._devices = devices
            running = tuple(
                dict.fromkeys(self.agent.used.values())
            )  # else it looks like one that began anew
            room = devices // self._workers_per_replica
            driver.put(NodeJoined(node=self.agent.node, devices=room, replicas=running))
        room = now.room // self._workers_per_replica
        offered = Offered(replicas=room, notice_s=offer.notice_s, reason=offer.reason)
        leaving = {name for device, name in self.agent.used.items() if device in now.unwanted}
        fresh = leaving - self._leaving
        if offered != self._offered or fresh:  # one event: else another would leave for the offer
            self._offered = offered
            self._leaving |= fresh
            driver.put(replace(offered, leave=tuple(sorted(fresh))))


class Tenant:
    """One job as its pool sees it."""

    def __init__(
        self,
        place: PoolPlace,
        *,
        job: str,
        policy: Policy,
        records: Path,
        workers_per_replica: int = 1,
    ) -> None:
        self.locks = records / place.name / DEVICES
        self._place = place
        self._demand = replace(
            first_demand(policy),
            team=place.team,
            priority=place.priority,
            device_kind=place.device_kind,
        )
        self._workers_per_replica = workers_per_replica
        self._tenancy = Tenancy(min_replicas=self._wanted.min_replicas)
        self._offer: Offer | None = None
        self._life: PoolLife | None = None
        self._names: dict[int, str] = {}
        self._silence = ""
        self._sent: Report | None = None
        self._changed = asyncio.Event()
        self._talking: asyncio.Task[None] | None = None
        self._pool = ClaimAtPool(place.name, job, records)
        self._is_shared = is_shared_directory(records / place.name)

    @property
    def pool_devices(self) -> int:
        """How many devices the pool has, as far as it has said."""
        offer = self._offer
        said = 0 if offer is None else offer.pool_devices or len(offer.devices)
        return max(self._wanted.min_replicas, said)

    @property
    def _wanted(self) -> Demand:
        """What the job asks for, as the pool counts."""
        return in_devices(self._demand, self._workers_per_replica)

    def device_name(self, device: int) -> str:
        """Return what a device is called; empty: it is a number only."""
        return self._names.get(device, "")

    def is_over(self, exit_code: int) -> bool:
        """Whether a life that has ended like this was the last."""
        return tenancy.is_over(self._tenancy, exit_code=exit_code)

    # --- from the first report to the withdrawal --------------------------------------

    @contextlib.asynccontextmanager
    async def present(self) -> AsyncIterator[None]:
        """Be known to the pool: from the answer to a first report until the claim is withdrawn.

        Raises:
            ConfigError: the pool does not run, or does not take this job.
        """
        if not self._is_shared:
            make_private(self.locks)
        with contextlib.closing(self._pool):
            try:
                await self._report()
            except UnheardError as error:
                raise ConfigError(str(error)) from None
            self._talking = asyncio.create_task(self._talk())
            try:
                yield
            finally:
                await cancelled(self._talking)
                await aside(self._pool.withdraw, os.getpid())

    async def talks(self) -> None:
        """Last as long as the conversation, which only a mistake in it ends before the job."""
        if self._talking is not None:
            await asyncio.shield(self._talking)

    async def _talk(self) -> None:
        while True:
            await within(self._changed.wait(), ASKS_S if self._is_shared else HEARTBEAT_S)
            self._changed.clear()
            silence = ""
            try:
                await self._report()
            except ClaimReleasedError as error:
                silence = str(error)
                self._end_released()
            except (UnheardError, ConfigError) as error:
                silence = str(error)
            if bool(silence) != bool(self._silence):
                self._silence = silence
                self._log_standing()

    def _end_released(self) -> None:
        """Save and end the job, as if its user had asked for that; said once."""
        if self._life is not None and not self._tenancy.is_stopped:
            self._tenancy = tenancy.end_asked(self._tenancy)
            self._life.host.driver.put(StopRequested())

    async def _report(self) -> None:
        """Say where the job stands, and follow the answer."""
        self._sent = self._standing()
        self._take_offer(await aside(self._pool.report, self._sent))

    def _standing(self) -> Report:
        life, now = self._life, self._tenancy
        return Report(
            wanted=self._wanted,
            pool=now.pool,
            revision=now.revision,
            holds=now.holds,
            url=life.host.url if life and not self._is_shared else "",
            token=life.host.token if life and not self._is_shared else "",
            pid=os.getpid(),
            is_running=now.admission is not Admission.WAITING,
            is_suspended=now.is_suspended,
        )

    # --- one life -----------------------------------------------------------------------

    @contextlib.contextmanager
    def life(self, host: Host, agent: Agent) -> Iterator[None]:
        """Lead this coordinator and this agent by the pool's offers; at the end nothing runs.

        The agent must not be open yet, and be closed at the end.
        """
        self._life = PoolLife(
            host,
            agent,
            devices=self.pool_devices,
            workers_per_replica=self._workers_per_replica,
        )
        host.log.subscribe(self._on_record)
        try:
            self._follow_offer()
            self._report_changes()
            yield
        finally:
            self._life = None
            before, self._tenancy = self._tenancy, tenancy.end_life(self._tenancy)
            if self._tenancy != before:
                self._changed.set()

    def pushed(self, offer: Offer) -> int:
        """Take an offer that the pool has sent by itself; return which one is followed.

        Another pool than the one that has answered last is asked first whether it is the one.
        """
        if offer.pool == self._tenancy.pool:
            self._take_offer(offer)
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
        self._report_changes()

    def _on_record(self, record: Record) -> None:
        """Learn from the event log what the job wants, and whether a person ends it."""
        kind = record.get("kind")
        if kind in ("stop_requested", "suspend_requested"):
            self._tenancy = tenancy.end_asked(self._tenancy, reason=record.get("reason") or "")
        if kind in NEWS and self._life is not None:
            driver = self._life.host.driver
            self._demand = next_demand(driver.core.demand, self._demand, driver.core.policy)
            self._tenancy = replace(self._tenancy, min_replicas=self._wanted.min_replicas)
            self._report_changes()

    def _take_offer(self, offer: Offer) -> None:
        before, known = self._tenancy, self._offer
        self._names |= zip(offer.devices, offer.names, strict=False)
        self._tenancy = tenancy.follow_offer(
            before,
            pool=offer.pool,
            revision=offer.revision,
            devices=frozenset(offer.devices),
            replicas=offer.replicas,
            suspend=offer.suspend,
        )
        if self._tenancy is not before:
            self._offer = offer
            self._follow_offer()
            self._report_changes()
        elif known and (known.pool, known.revision) == (offer.pool, offer.revision):
            self._offer = offer  # the same, but it waits for another cause
            self._log_standing()

    def _follow_offer(self) -> None:
        if self._life is not None and self._offer is not None:
            self._life.follow_offer(self._tenancy, self._offer, devices=self.pool_devices)

    def _report_changes(self) -> None:
        """Report soon if there is something to report, and tell people if there is for them."""
        if self._standing() != self._sent:
            self._changed.set()
        self._log_standing()

    def _log_standing(self) -> None:
        life, now, offer = self._life, self._tenancy, self._offer
        if life is None or offer is None:
            return
        life.log_standing(
            {
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
        )
