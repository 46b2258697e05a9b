"""Drives the core: reports and requests in, state written, offers out, everything logged.

Owns the order of things: take an event, ask the core, write the state, only then tell anybody.
Decides nothing about who gets what; an ``if`` about that does not belong here.  What it adds to the
core is what can be seen from outside: a device is free only when its lock is (``pool.devices``), a
claimant is gone when its process is dead or silent (``pool.claims``), and what does not leave in
time is ended.

    reports, people, time --> core.allocation.step --> state file (fsync) --> offers: pushed, and
                                     |                                        answers to reports
                                     +--> event log

After a restart nothing is given or taken before everybody who may hold a device has said so, or is
seen to be gone (``pool.recovery``).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

from pliant.core.allocation import Cordoned, Event, Opened, TimePassed, Uncordoned, kinds
from pliant.core.device_masks import Accelerator
from pliant.core.errors import ConfigError
from pliant.core.tenancy import Demand, is_of
from pliant.machine.clock import TICK_S, Clock
from pliant.machine.device_health import DeviceHealth
from pliant.machine.event_loop import cancelled, within
from pliant.machine.processes import process_lives, process_started
from pliant.observe.log import EventLog
from pliant.pool.allocator import Allocator, RefusedError, beginning_of, numbered
from pliant.pool.claim_client import Pusher
from pliant.pool.claims import Claims, PoolSettings
from pliant.pool.devices import DeviceWatch
from pliant.pool.publishing import fresh_offers, saved_claims
from pliant.pool.recovery import Recovery, Returned
from pliant.pool.state import SavedPool, StateFile, names_of
from pliant.wire.offers import Offer, Report

LOOK_S = 1.0
"""Between two looks at the locks of all devices, in seconds."""

ANSWER_S = 3.0
"""How long a report waits for what is possible in a moment, in seconds."""


class PoolDriver:
    """Runs one pool.  ``begin`` once, then ``run``; everything else at any time between."""

    def __init__(
        self,
        saved: SavedPool,
        *,
        state: StateFile,
        watch: DeviceWatch,
        log: EventLog,
        accelerators: Mapping[str, Accelerator] | None = None,
        pusher: Pusher,
        clock: Clock,
        wall: Callable[[], float] = time.time,
        settings: PoolSettings | None = None,
    ) -> None:
        settings, life = settings or PoolSettings(), secrets.token_hex(4)
        revision = max(saved.revision, int(wall()))  # the file may be lost
        self.saved = numbered(saved).model_copy(update={"life": life, "revision": revision})
        """What is set, and what is written of it; its claims are those of the life before."""

        """What sets the number of devices, if not people: a file, a trace."""

        self.accelerators = accelerators or {}
        """What is known of the devices, by their names."""

        self.blocked: set[int] = set()
        """Devices that belong to nobody and are used all the same."""

        self._health = DeviceHealth(dict(enumerate(saved.names)))
        self.ailing: dict[int, str] = {}
        """Devices that are not healthy, and why; they are not handed out."""

        self.recovery: Recovery | None = Recovery(
            saved, life=life, now_s=clock.now_s(), silent_s=settings.silent_s
        )
        self.allocator = Allocator(
            beginning=beginning_of(self.saved),
            log=log,
            clock=clock,
            on_overdue=lambda overdue: self.claims.expel_overdue(overdue),
        )
        self.claims = Claims(
            allocator=self.allocator,
            watch=watch,
            pusher=pusher,
            life=life,
            wall=wall,
            settings=settings,
        )
        self.failure = ""
        """Why the state cannot be written; nothing is handed out meanwhile."""

        self._state = state
        self.pusher = pusher
        self.watch = watch
        self._log = log
        self.counts: Counter[str] = Counter()
        """Of the records of the log, by kind."""

        log.subscribe(lambda record: self.counts.update([str(record.get("kind"))]))
        self._clock = clock
        self.wall = wall
        self._turn = asyncio.Lock()
        self._look_at_s = 0.0
        self._stopping = asyncio.Event()

    # --- the loop ----------------------------------------------------------------

    async def begin(self) -> None:
        """Recover what can be recovered at once.

        Raises:
            OSError: the state cannot be written.
        """
        await self._health.look_once()
        self.allocator.write_beginning()
        async with self.changing():
            self._recover()
        if self.failure:
            raise OSError(self.failure)

    async def run(self) -> None:
        """Watch over claimants and waits until ``stop``."""
        watching = asyncio.create_task(self._health.watch())
        try:
            while not self._stopping.is_set():
                await self.turn()
                await within(self._stopping.wait(), TICK_S)
        finally:
            await cancelled(watching)

    async def turn(self) -> None:
        """Look once at everybody, and at what time has brought."""
        async with self.changing():
            self._tick()
        leaving, owners = self.claims.leaving, self.allocator.owners()
        self.watch.call_off({one: name for one, name in owners.items() if one not in leaving})
        await self.watch.end_overdue(now_s=self._clock.now_s())

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[PoolDriver]:
        """Let one caller at a time change things; then write, and only then tell."""
        async with self._turn:
            try:
                yield self
            finally:
                await self._publish()

    async def _publish(self) -> None:
        """Write what has changed; then tell those whom it concerns."""
        if not self.allocator.has_changed:
            return
        offers = fresh_offers(self.claims, self.saved)
        revision = self.saved.revision + len(offers)
        if self.recovery is None:
            claims = saved_claims(self.claims, offers)
        else:  # those of the life before, while they are not known better
            claims = tuple(self.recovery.known.values())
        written = self.saved.model_copy(update={"revision": revision, "claims": claims})
        try:
            await asyncio.to_thread(self._write, written, offers)
        except OSError as error:
            if not self.failure:
                self._log.write("not_written", reason=f"{error.strerror}: {error.filename}")
            self.failure = str(error.strerror)
            return
        self.failure = ""
        self.saved = self.saved.model_copy(update={"revision": revision})
        self.allocator.published()
        for name, offer in offers.items():
            claimant = self.claims.by_name[name]
            claimant.tell(offer)
            if claimant.report.url:
                self.pusher.push(name, offer, url=claimant.report.url, token=claimant.report.token)

    def _write(self, written: SavedPool, offers: Mapping[str, Offer]) -> None:
        """Write the state, and let those who are about to be told take what they are offered."""
        self._state.write(written)
        for name, offer in offers.items():
            self.watch.grant(name, offer.devices, uid=self.claims.by_name[name].uid)

    def stop(self) -> list[str]:
        """End ``run`` soon; return the claimants that keep what they hold."""
        self._stopping.set()
        if self.recovery is not None:
            return sorted(self.recovery.holding)
        return sorted(set(self.allocator.owners().values()))

    # --- people ---------------------------------------------------------------------

    def configure(self, event: Event | None, **changes: object) -> None:
        """Let the core answer a person, and keep what is set from now on; inside ``changing``.

        Raises:
            RefusedError: it is impossible.
        """
        if event is not None:
            try:
                self.allocator.apply(event)
            except ConfigError as error:
                raise RefusedError(str(error)) from error
        self.saved = self.saved.model_copy(update=changes)

    def log_complaint(self, sentence: str) -> None:
        """Write down what went wrong, and what the pool does about it."""
        self._log.write("complaint", reason=sentence)

    def awaited(self) -> list[str]:
        """Return the claimants that the pool waits for before it gives or takes anything."""
        return sorted(self.recovery.awaited) if self.recovery is not None else []

    # --- claimants ------------------------------------------------------------------

    def wanted(self, name: str, *, pid: int) -> Demand | None:
        """Return what a process asks for by its claim of this name; None: it has none yet."""
        claimant = self.claims.by_name.get(name)
        if claimant is not None:
            is_its = claimant.report.pid == pid and not claimant.is_gone
            return claimant.report.wanted if is_its else None
        return None if self.recovery is None else self.recovery.wanted(name, pid=pid)

    def claims_of(self, user: str) -> list[str]:
        """Return the claims of a user, in a pool that users share."""
        known = set(self.claims.by_name)
        if self.recovery is not None:
            known |= self.recovery.known.keys() | self.recovery.returned.keys()
        return sorted(name for name in known if is_of(user, name))

    async def report(self, name: str, report: Report, *, uid: int | None = None) -> Offer:
        """Take note of where a claimant stands; return what it may use.

        ``uid`` is whose claim it is, in a pool that users share.

        Raises:
            RefusedError: it cannot have what it wants, its name is taken, or it has ended.
        """
        if process_started(report.pid) is None:
            raise RefusedError(f"process {report.pid} of claim {name} does not live here")
        until_s = self._clock.now_s() + ANSWER_S
        while True:
            if self._stopping.is_set():
                raise RefusedError("the pool is being stopped", is_temporary=True)
            try:
                async with self.changing():
                    self.claims.refuse_released(name, report)
                    if self.recovery is not None:
                        return self._hear_early(self.recovery, name, report, uid)
                    self.claims.hear_report(name, report, uid=uid)
                return self._answer(name)
            except RefusedError as error:
                if not error.is_temporary or self._clock.now_s() >= until_s:
                    raise
            await asyncio.sleep(TICK_S)

    def _answer(self, name: str) -> Offer:
        """Return the newest offer to a claimant, with the reason as it is now.

        Raises:
            RefusedError: it is gone, or the state cannot be written.
        """
        claimant = self.claims.by_name.get(name)
        if claimant is None:  # it was seen dead meanwhile
            raise RefusedError(f"the claim {name} is gone", is_temporary=True)
        offer = claimant.offer
        if offer is None:
            sentence = f"the pool cannot write its state: {self.failure}"
            raise RefusedError(sentence, is_temporary=True)
        if not offer.devices:
            why = kinds.why_of(self.allocator.core, name, names=names_of(self.saved))
            return offer.model_copy(update={"reason": why})
        return offer

    async def release(self, name: str, *, by: str) -> str:
        """End a claim of somebody: it is told so, and after its notice what is left is ended.

        Raises:
            RefusedError: there is none of this name, or it is not known yet.
        """
        async with self.changing():
            if self.recovery is not None:
                awaited = ", ".join(self.awaited()) or "whoever uses its devices"
                raise RefusedError(
                    f"the pool was started anew and waits for {awaited}; release {name} in a"
                    " moment",
                    is_temporary=True,
                )
            claimant = self.claims.by_name.get(name)
            if claimant is None or claimant.is_gone:
                raise RefusedError(f"there is no claim {name} that could be released")
            return self.claims.release_by(claimant, by)

    async def withdraw(self, name: str, *, pid: int | None = None) -> None:
        """Take note that a claimant has ended; one that is not known, too.

        Another process than ``pid`` that has the name by now does not end; None: whoever has it.
        """
        async with self.changing():
            claimant = self.claims.by_name.get(name)
            if claimant is None or claimant.is_gone or pid not in (None, claimant.report.pid):
                return
            self.claims.end(claimant, "it has ended")

    # --- time -----------------------------------------------------------------------

    def known_devices(self) -> set[int]:
        """Return those that there are, and of those that there were the ones not done with."""
        used = self.allocator.owners().keys() | self.claims.leaving | self.blocked
        return {*range(self.saved.size), *used, *self.saved.cordoned, *self.saved.drained}

    def _tick(self) -> None:
        if self.recovery is not None:
            self._recover()
            return
        for claimant in list(self.claims.by_name.values()):
            self.claims.check(claimant)
        now_s = self._clock.now_s()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            self._look_at_locks()
            self._look_at_health()
        if now_s >= kinds.next_deadline_of_kinds_s(self.allocator.core):
            self.allocator.apply(TimePassed())

    def _look_at_locks(self) -> None:
        """Compare the locks with what the core knows: nothing is handed out that is in use."""
        before = self.blocked
        self.blocked = self.watch.find_blocked(
            self.saved.number,
            owners=self.allocator.owners(),
            claims=self.claims.by_name,
            due_s=self.claims.due_s(),
        )
        for device in sorted(self.blocked - before):
            note = f"as {self.watch.user_text(device)} uses it"
            self.allocator.apply(Cordoned(devices=(device,), note=note))
        self._hand_out_again(before)

    def _look_at_health(self) -> None:
        before, self.ailing = self.ailing, self._health.ailing
        for device in sorted(self.ailing.keys() - before):
            self.allocator.apply(Cordoned(devices=(device,), note=self.why_ailing(device)))
        self._hand_out_again(before)

    def why_ailing(self, device: int) -> str:
        """Say why a device is not handed out that is not healthy; empty: it is."""
        return f"as it is not healthy: {self.ailing[device]}" if device in self.ailing else ""

    def kept_back(self) -> frozenset[int]:
        """Return those that are not handed out, whatever people say."""
        return frozenset(self.ailing) | self.blocked

    def _hand_out_again(self, devices: Collection[int]) -> None:
        """Hand out those that nothing keeps back any more."""
        saved = self.saved
        if idle := set(devices).difference(self.kept_back(), saved.cordoned, saved.drained):
            self.allocator.apply(Uncordoned(devices=tuple(sorted(idle))))

    # --- recovery ------------------------------------------------------------------

    def _hear_early(self, recovery: Recovery, name: str, report: Report, uid: int | None) -> Offer:
        started = process_started(report.pid) or ""
        returned = recovery.hear_early(name, report, started=started, since=self.wall(), uid=uid)
        self._recover()
        if self.recovery is None and name in self.claims.by_name:
            self.allocator.touch(name)
        return returned.offer(self.saved.life, size=self.saved.size, names=self.saved.names)

    def _recover(self) -> None:
        """See who is still awaited; open the pool if nobody is."""
        recovery = self.recovery
        if recovery is None:
            return
        now_s = self._clock.now_s()
        remains = recovery.settle(
            now_s=now_s,
            is_alive=lambda claim: process_lives(claim.pid, claim.started),
            used=self.watch.used,
        )
        for name, devices in remains.items():
            self.watch.evict(name, devices, due_s=self.claims.due_s(), reason="its job is dead")
        unaccounted = self.watch.used(set(range(self.saved.number)) - recovery.accounted)
        if recovery.is_over(now_s=now_s, unaccounted=unaccounted):
            self._open(recovery)

    def _open(self, recovery: Recovery) -> None:
        for returned in recovery.returned.values():
            if returned.claim.devices or returned.claim.name in recovery.known:
                self.claims.take_up(returned)
        for claim in recovery.known.values():  # who has nothing and lives keeps its place
            is_new = claim.name not in self.claims.by_name and not claim.devices
            if is_new and process_lives(claim.pid, claim.started):
                self.claims.take_up(Returned.unheard(claim))
        self.recovery = None
        self._look_at_locks()
        self._look_at_health()
        self.allocator.apply(Opened())
        for claimant in list(self.claims.by_name.values()):
            self.allocator.touch(claimant.name)
            self.claims.release(claimant)
