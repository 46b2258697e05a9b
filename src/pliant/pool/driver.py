"""Drives the core: reports and wishes in, state written, offers out, everything logged.

Owns the order of things: take an event, ask the core, write the state, only then tell anybody.
Decides nothing about who gets what; an ``if`` about that does not belong here.  What it adds to the
core is what can be seen from outside: a device is free only when its lock is (``pool.devices``), a
claimant is gone when its process is dead or silent, and what does not leave in time is ended.

    reports, people, time --> core.allocation.step --> state file (fsync) --> offers: pushed, and
                                     |                                        answers to reports
                                     +--> event log

After a restart nothing is given or taken before everybody who may hold a device has said so, or is
seen to be gone (``pool.recovery``).
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from pliant.core import allocation
from pliant.core.allocation import (
    Action,
    Asked,
    Cordoned,
    Event,
    Opened,
    Overdue,
    Recovered,
    Refuse,
    Released,
    TimePassed,
    Uncordoned,
    Withdrawn,
)
from pliant.core.errors import ConfigError
from pliant.machine.clock import TICK_S, Clock
from pliant.machine.processes import process_lives, process_started
from pliant.observe.log import EventLog
from pliant.pool.claims import Claimant, offer_of
from pliant.pool.configuration import Orders
from pliant.pool.devices import DeviceWatch
from pliant.pool.push import Pusher
from pliant.pool.recovery import Recovery, Returned
from pliant.pool.state import SavedClaim, SavedPool, StateFile
from pliant.wire.offers import SILENT_S, Offer, Report

LOOK_S = 1.0
"""Between two looks at the locks of all devices, in seconds."""

ANSWER_S = 3.0
"""How long a report waits for what is possible in a moment, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Waits of a pool."""

    silent_s: float = SILENT_S
    """After so long without a report a claimant is gone, once its devices' locks are free."""

    grace_s: float = 5.0
    """How long after its notice, or after its death, what still uses a device is ended: the
    claimant's own supervision comes first."""


class RefusedError(Exception):
    """What was asked is impossible, or not possible now; the sentence says why."""

    def __init__(self, sentence: str, *, is_temporary: bool = False) -> None:
        super().__init__(sentence)
        self.is_temporary = is_temporary
        """Whether the same may be granted a moment later."""


class PoolDriver:
    """Runs one pool.  ``begin`` once, then ``run``; everything else at any time between."""

    def __init__(
        self,
        saved: SavedPool,
        *,
        orders: Orders,
        state: StateFile,
        watch: DeviceWatch,
        log: EventLog,
        pusher: Pusher,
        clock: Clock,
        wall: Callable[[], float] = time.time,
        settings: PoolSettings | None = None,
    ) -> None:
        self.name = saved.name
        self.life = secrets.token_hex(4)
        self.orders = orders
        self.blocked: set[int] = set()
        """Devices that belong to nobody and are used all the same."""

        self.claimants: dict[str, Claimant] = {}
        self.failure = ""
        """Why the state cannot be written; nothing is handed out meanwhile."""

        self._settings = settings or PoolSettings()
        self._state = state
        self._watch = watch
        self._log = log
        self._pusher = pusher
        self._clock = clock
        self._wall = wall
        self._revision = max(saved.revision, int(wall()))  # the file may be lost
        self._turn = asyncio.Lock()
        self._touched: set[str] = set()
        self._reasons: dict[str, list[str]] = {}
        """Why, of the actions that were not told yet."""

        self._refused: dict[str, str] = {}
        """Why, of who asked for the impossible last; who asks on and on is not logged again."""

        self._has_changed = True
        self._look_at_s = 0.0
        self._stopping = asyncio.Event()
        self.core = orders.core(now_s=clock.now_s())
        self.recovery: Recovery | None = Recovery(
            saved, life=self.life, now_s=clock.now_s(), silent_s=self._settings.silent_s
        )

    # --- the loop ----------------------------------------------------------------

    async def begin(self) -> None:
        """Recover what can be recovered at once.

        Raises:
            OSError: the state cannot be written.
        """
        async with self.changing():
            self._recover()
        if self.failure:
            raise OSError(self.failure)

    async def run(self) -> None:
        """Watch over claimants and waits until ``stop``."""
        while not self._stopping.is_set():
            await self.turn()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._stopping.wait()

    async def turn(self) -> None:
        """Look once at everybody, and at what time has brought."""
        async with self.changing():
            self._tick()
        self._watch.spare(self._rightful())
        await self._watch.end_overdue(now_s=self._clock.now_s())

    def stop(self) -> list[str]:
        """End ``run`` soon; return the claimants that keep what they hold."""
        self._stopping.set()
        if self.recovery is not None:
            return sorted(self.recovery.holding)
        return sorted(name for name in allocation.claims(self.core) if self._owned(name))

    async def close(self) -> None:
        """Stop telling anybody anything."""
        await self._pusher.close()

    # --- what is ------------------------------------------------------------------

    def awaited(self) -> list[str]:
        """Return the claimants that the pool waits for before it gives or takes anything."""
        return sorted(self.recovery.awaited) if self.recovery is not None else []

    def now_s(self) -> float:
        """Return the time that the core goes by."""
        return self._clock.now_s()

    def complain(self, sentence: str) -> None:
        """Write down what is wrong with what the pool follows."""
        self._log.write("complaint", reason=sentence)

    # --- claimants ----------------------------------------------------------------

    async def report(self, name: str, report: Report) -> Offer:
        """Hear where a claimant stands; return what it may use.

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
                    if self.recovery is not None:
                        return self._hear_early(self.recovery, name, report)
                    self._hear(name, report)
                return self._answer(name)
            except RefusedError as error:
                if not error.is_temporary or self._clock.now_s() >= until_s:
                    raise
            await asyncio.sleep(TICK_S)

    async def withdraw(self, name: str, *, pid: int | None = None) -> None:
        """Take note that a claimant has ended; one that is not known, too.

        Args:
            name: of the claimant.
            pid: its process.  Another one that has the name by now does not end; None: whoever.
        """
        async with self.changing():
            claimant = self.claimants.get(name)
            if claimant is None or claimant.is_gone or pid not in (None, claimant.pid):
                return
            self._lose(claimant, "it has ended")

    # --- reports --------------------------------------------------------------------

    def _hear(self, name: str, report: Report) -> None:
        claimant = self.claimants.get(name)
        if claimant is not None and claimant.pid != report.pid:
            claimant = self._replaced(claimant)
        if claimant is not None and claimant.is_gone:
            raise RefusedError(
                f"an earlier claim named {name} is being ended; try again in a moment",
                is_temporary=True,
            )
        if claimant is None:
            self._meet(name, report)
            return
        if claimant.has_overtaken(report, life=self.life):
            return
        before, refused = claimant.wanted, None
        claimant.hear(report, now_s=self._clock.now_s(), life=self.life)
        if report.wanted != before:
            refused = self._refusal(self._apply(Asked(claim=claimant.claim)))
        if refused is not None:
            claimant.wanted = before
        back = claimant.given_back(report, self._owned(name), life=self.life) - claimant.leaving
        if back:
            claimant.leaving |= back
            self._touch(name)
        self._release(claimant)
        if refused is not None:
            raise RefusedError(refused)

    def _meet(self, name: str, report: Report) -> None:
        """Take up a claimant that is new."""
        claimant = Claimant(
            name=name,
            wanted=report.wanted,
            pid=report.pid,
            started=process_started(report.pid) or "",
            since=self._wall(),
            heard_s=self._clock.now_s(),
        )
        claimant.hear(report, now_s=claimant.heard_s, life=self.life)
        refused = self._refusal(self._apply(Asked(claim=claimant.claim)))
        if refused is not None:
            raise RefusedError(refused)
        self.claimants[name] = claimant
        self._touch(name)

    def _replaced(self, claimant: Claimant) -> Claimant | None:
        """Return the claimant of a name that another process uses now, if it is still there.

        Raises:
            RefusedError: its process lives.
        """
        if not claimant.is_gone:
            if process_lives(claimant.pid, claimant.started):
                raise RefusedError(
                    f"process {claimant.pid} has a claim named {claimant.name} already; choose"
                    " another name"
                )
            self._lose(claimant, f"its process {claimant.pid} is dead")
        self._release(claimant)
        return self.claimants.get(claimant.name)

    def _answer(self, name: str) -> Offer:
        """Return the newest offer, with the reason as it is now."""
        claimant = self.claimants.get(name)
        if claimant is None:  # it was seen dead meanwhile
            raise RefusedError(f"the claim {name} is gone", is_temporary=True)
        offer = claimant.offer
        if offer is None:
            sentence = f"the pool cannot write its state: {self.failure}"
            raise RefusedError(sentence, is_temporary=True)
        if not offer.devices:
            return offer.model_copy(update={"reason": allocation.why(self.core, name)})
        return offer

    def _lose(self, claimant: Claimant, reason: str) -> None:
        """Take note that a claimant is gone; what it used is free once the locks are."""
        self._log.write("gone", name=claimant.name, reason=reason)
        self._apply(Withdrawn(name=claimant.name))
        self._pusher.drop(claimant.name)
        claimant.is_gone = True
        owned = self._owned(claimant.name)
        claimant.leaving = set(owned)
        due_s = self._clock.now_s() + self._settings.grace_s
        self._watch.evict(claimant.name, owned, due_s=due_s, reason=reason)
        self._release(claimant)

    def _release(self, claimant: Claimant) -> None:
        """Tell the core what a claimant has left, as far as nothing runs there any more."""
        free = self._watch.free(claimant.leaving)
        if free:
            claimant.left(free)
            self._apply(Released(name=claimant.name, devices=tuple(sorted(free))))
            self._touch(claimant.name)
        if claimant.is_gone and not claimant.leaving:
            self.claimants.pop(claimant.name, None)
            self._has_changed = True

    # --- time -----------------------------------------------------------------------

    def _tick(self) -> None:
        if self.recovery is not None:
            self._recover()
            return
        now_s = self._clock.now_s()
        for claimant in list(self.claimants.values()):
            if not claimant.is_gone:
                self._check(claimant, now_s)
            if claimant.leaving:
                self._release(claimant)
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            self._look()
        if now_s >= allocation.next_deadline_s(self.core):
            self._apply(TimePassed())

    def _check(self, claimant: Claimant, now_s: float) -> None:
        """See whether a claimant is still there."""
        if not process_lives(claimant.pid, claimant.started):
            self._lose(claimant, f"its process {claimant.pid} is dead")
        elif now_s - claimant.heard_s > self._settings.silent_s:
            owned = self._owned(claimant.name)
            if len(self._watch.free(owned)) == len(owned):
                self._lose(claimant, f"silent for {self._settings.silent_s:g} s, and runs nothing")

    def _look(self) -> None:
        """Compare the locks with what the core knows: nothing is handed out that is in use."""
        owners = self.owners()
        used = self._watch.used(range(self.orders.number))
        due_s = self._clock.now_s() + self._settings.grace_s
        for device in used:
            by = self._watch.claim_on(device)
            if by in self.claimants and by != owners.get(device):
                reason = f"device {device} is not its own any more"
                self._watch.evict(by, [device], due_s=due_s, reason=reason)
        blocked = used - owners.keys()
        if fresh := blocked - self.blocked:
            self._apply(Cordoned(devices=tuple(sorted(fresh))))
        again = self.blocked - blocked
        self.blocked = blocked
        if idle := again - self.orders.cordoned - self.orders.drained:
            self._apply(Uncordoned(devices=tuple(sorted(idle))))

    def _overdue(self, overdue: Overdue) -> None:
        """Choose what is ended of a claimant that has not left.

        What nobody runs on, and then what it was given last.
        """
        claimant = self.claimants.get(overdue.name)
        standing = allocation.standing(self.core, overdue.name)
        if claimant is None or standing is None:
            return
        drain = [device for device in standing.drain if device not in claimant.leaving]
        others = set(standing.devices) - claimant.leaving - set(drain)
        free = self._watch.free(others)
        newest = sorted(
            others,
            key=lambda device: (device in free, claimant.offered_at.get(device, 0), device),
            reverse=True,
        )
        missing = max(len(drain), overdue.excess - len(claimant.leaving))
        claimant.leaving.update([*drain, *newest][:missing])
        self._touch(overdue.name)
        due_s = self._clock.now_s() + self._settings.grace_s
        self._watch.evict(overdue.name, claimant.leaving, due_s=due_s, reason="its notice is over")

    # --- recovery ------------------------------------------------------------------

    def _hear_early(self, recovery: Recovery, name: str, report: Report) -> Offer:
        started = process_started(report.pid) or ""
        returned = recovery.hear(name, report, started=started, since=self._wall())
        self._recover()
        if self.recovery is None and name in self.claimants:
            self._touch(name)
        return returned.offer(self.life, size=self.orders.size)

    def _recover(self) -> None:
        """See who is still awaited; open the pool if nobody is."""
        recovery = self.recovery
        if recovery is None:
            return
        now_s = self._clock.now_s()
        remains = recovery.settle(
            now_s=now_s,
            is_alive=lambda claim: process_lives(claim.pid, claim.started),
            used=self._watch.used,
        )
        for name, devices in remains.items():
            due_s = now_s + self._settings.grace_s
            self._watch.evict(name, devices, due_s=due_s, reason="its job is dead")
        unaccounted = self._watch.used(set(range(self.orders.number)) - recovery.accounted)
        if recovery.is_over(now_s=now_s, unaccounted=unaccounted):
            self._open(recovery)

    def _open(self, recovery: Recovery) -> None:
        for returned in recovery.returned.values():
            if returned.devices or returned.name in recovery.known:
                self._take_up(returned)
        for claim in recovery.known.values():
            if claim.name not in self.claimants and not claim.devices:
                self._take_up_waiting(claim)
        self.recovery = None
        self._look()
        self._apply(Opened())
        for claimant in list(self.claimants.values()):
            self._touch(claimant.name)
            self._release(claimant)

    def _take_up(self, returned: Returned) -> None:
        claimant = Claimant(
            name=returned.name,
            wanted=returned.wanted,
            pid=returned.pid,
            started=returned.started,
            since=returned.since,
            heard_s=self._clock.now_s(),
            url=returned.url,
            token=returned.token,
            leaving=set(returned.leaving),
        )
        unheard = set(returned.devices) - set(returned.holds) - claimant.leaving
        claimant.offered_at = dict.fromkeys(returned.devices, 0)
        claimant.offered_at |= dict.fromkeys(unheard, returned.revision)
        recovered = Recovered(
            claim=claimant.claim,
            devices=returned.devices,
            is_suspended=returned.is_suspended,
        )
        if self._refusal(self._apply(recovered)) is None:
            self.claimants[returned.name] = claimant
        # else: the rules have changed; what it uses is kept from others by its locks

    def _take_up_waiting(self, claim: SavedClaim) -> None:
        """Keep the place of one that has nothing and lives; it will report."""
        if process_lives(claim.pid, claim.started):
            self._take_up(
                Returned(
                    name=claim.name,
                    wanted=claim.wanted,
                    pid=claim.pid,
                    started=claim.started,
                    since=claim.since,
                    revision=claim.revision,
                    devices=(),
                    replicas=0,
                    is_suspended=claim.suspend,
                )
            )

    # --- one turn -------------------------------------------------------------------

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Let one caller at a time change things; then write, and only then tell."""
        async with self._turn:
            try:
                yield
            finally:
                await self._settle()

    def _apply(self, event: Event) -> tuple[Action, ...]:
        """Let the core answer one event; note whom it concerns."""
        self.core, actions = allocation.step(self.core, event, now_s=self._clock.now_s())
        if isinstance(event, Asked) and self._is_refused_again(event.claim.name, actions):
            return actions
        self._has_changed = True
        if not isinstance(event, TimePassed):
            self._log.write_value(event)
        for action in actions:
            self._log.write_value(action)
            self._touch(action.name)
            self._reasons.setdefault(action.name, []).append(action.reason)
            if isinstance(action, Overdue):
                self._overdue(action)
        return actions

    def _is_refused_again(self, name: str, actions: tuple[Action, ...]) -> bool:
        """Whether all that follows is a refusal in the same words as the last."""
        before, refused = self._refused.pop(name, None), self._refusal(actions)
        if refused is not None:
            self._refused[name] = refused
        return refused is not None and refused == before and len(actions) == 1

    def wish(self, event: Event) -> None:
        """Let the core answer a person.

        Raises:
            RefusedError: it is impossible.
        """
        try:
            self._apply(event)
        except ConfigError as error:
            raise RefusedError(str(error)) from error

    def _touch(self, name: str) -> None:
        self._touched.add(name)
        self._has_changed = True

    async def _settle(self) -> None:
        """Write what has changed; then tell those whom it concerns."""
        if not self._has_changed:
            return
        revision, offers = self._revision, {}
        for name in sorted(self._touched):
            claimant, standing = self.claimants.get(name), allocation.standing(self.core, name)
            if claimant is None or claimant.is_gone or standing is None:
                continue
            offer = offer_of(
                standing,
                claimant.leaving,
                pool=self.life,
                size=self.orders.size,
                revision=revision + 1,
                notice_s=self._notice_s(standing.leave_by_s, claimant),
            )
            if not claimant.knows(offer):
                revision += 1
                reason = "; ".join(self._reasons.get(name, [])) or standing.reason
                offers[name] = offer.model_copy(update={"reason": reason})
        try:
            await asyncio.to_thread(self._state.write, self._snapshot(revision, offers))
        except OSError as error:
            if not self.failure:
                self._log.write("not_written", reason=f"{error.strerror}: {error.filename}")
            self.failure = str(error.strerror)
            return
        self.failure, self._revision, self._has_changed = "", revision, False
        self._touched.clear()
        self._reasons.clear()
        for name, offer in offers.items():
            self._tell(self.claimants[name], offer)

    def _tell(self, claimant: Claimant, offer: Offer) -> None:
        claimant.told(offer)
        if claimant.url:
            self._pusher.push(claimant.name, offer, url=claimant.url, token=claimant.token)

    def _notice_s(self, leave_by_s: float, claimant: Claimant) -> float:
        if math.isinf(leave_by_s):
            return claimant.wanted.notice_s
        return max(0.0, leave_by_s - self._clock.now_s())

    def _snapshot(self, revision: int, offers: dict[str, Offer]) -> SavedPool:
        if self.recovery is not None:  # what the last life knew, until it is known better
            claims = tuple(self.recovery.known.values())
        else:
            claims = tuple(
                claimant.saved(self._owned(name), offers.get(name))
                for name, claimant in sorted(self.claimants.items())
            )
        return SavedPool(
            name=self.name,
            life=self.life,
            given=self.orders.given,
            size=self.orders.size,
            devices=self.orders.limit,
            number=self.orders.number,
            revision=revision,
            cordoned=tuple(sorted(self.orders.cordoned)),
            drained=tuple(sorted(self.orders.drained)),
            classes=self.orders.classes,
            teams=tuple(self.orders.teams.values()),
            claims=claims,
            trace_began_at=self.orders.trace_began_at,
        )

    # --- helpers --------------------------------------------------------------------

    def _owned(self, name: str) -> tuple[int, ...]:
        """Return the devices of a claim, with those that it is to give back."""
        standing = allocation.standing(self.core, name)
        return standing.devices if standing is not None else ()

    def owners(self) -> dict[int, str]:
        """Return who has which device, with those that are to be given back."""
        return {
            device: name for name in allocation.claims(self.core) for device in self._owned(name)
        }

    def _rightful(self) -> dict[int, str]:
        """Return who has which device and need not leave it."""
        leaving = {device for one in self.claimants.values() for device in one.leaving}
        return {device: name for device, name in self.owners().items() if device not in leaving}

    @staticmethod
    def _refusal(actions: Iterable[Action]) -> str | None:
        """Return why a claim was refused."""
        return next((action.reason for action in actions if isinstance(action, Refuse)), None)
