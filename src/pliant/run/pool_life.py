"""One life of a job in a pool: what its agent and its core are told of an offer.

Owns what they were told already, so that each is told once.  Decides nothing: which devices may be
used, and how many replicas there is room for, is read from the ``Tenancy``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pliant.agent.agent import Agent
from pliant.core.events import NodeJoined, Offered, SuspendRequested
from pliant.core.tenancy import Admission, Tenancy
from pliant.core.values import ReplicaId
from pliant.observe.log import Record
from pliant.wire.offers import Offer

if TYPE_CHECKING:
    from pliant.run.hosting import Host


class PoolLife:
    """One coordinator and its agent, and what they were told last."""

    def __init__(self, host: Host, agent: Agent, *, devices: int) -> None:
        """Make one whose core knows of so many devices of the pool."""
        self.host = host
        self.agent = agent
        self._devices = devices
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
        if now.admission is Admission.SUSPENDING:
            self._suspend(offer)
        else:
            self._offer_replicas(now, offer, devices)

    def log_standing(self, standing: Record) -> None:
        """Write down where the job stands in its pool, if that has changed."""
        if standing != self._standing:
            self._standing = standing
            self.host.log.write("pool", **standing)

    def _suspend(self, offer: Offer) -> None:
        if not self._is_suspending:
            self._is_suspending = True
            reason = offer.reason or "its devices are needed elsewhere"
            self.host.driver.put(SuspendRequested(reason=reason))

    def _offer_replicas(self, now: Tenancy, offer: Offer, devices: int) -> None:
        driver = self.host.driver
        if devices != self._devices:
            self._devices = devices
            driver.put(NodeJoined(node=self.agent.node, devices=devices))
        offered = Offered(replicas=now.room, notice_s=offer.notice_s, reason=offer.reason)
        leaving = {name for device, name in self.agent.used.items() if device in now.unwanted}
        fresh = leaving - self._leaving
        if offered != self._offered or fresh:  # one event: else another would leave for the offer
            self._offered = offered
            self._leaving |= fresh
            driver.put(replace(offered, leave=tuple(sorted(fresh))))
