"""Drives the core: reports and wishes in, state written, offers out, everything logged.

Owns the order of things: take an event, ask the core, write the state, only then tell anybody.
Decides nothing about who gets what; an ``if`` about that does not belong here.  What it adds to the
core is what can be seen from outside: a device is free only when its lock is (``pool.watch``), a
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
    ClassSet,
    Cordoned,
    DevicesSet,
    Drained,
    Event,
    Opened,
    Overdue,
    PriorityClass,
    Recovered,
    Refuse,
    Released,
    TeamRemoved,
    TeamSet,
    Ticked,
    Uncordoned,
    Withdrawn,
)
from pliant.core.errors import ConfigError
from pliant.observe.log import EventLog
from pliant.pool.claimants import Claimant, is_same, offer_of, team_of
from pliant.pool.push import Pusher
from pliant.pool.recovery import Recovery, Returned
from pliant.pool.state import SavedClaim, SavedPool, StateFile
from pliant.pool.watch import Watch
from pliant.spec.pool import TeamEntry, promised_too_much
from pliant.wire.clock import TICK_S, Clock
from pliant.wire.pool import SILENT_S, Offer, Report
from pliant.wire.processes import process_lives, process_started

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


class Driver:
    """Runs one pool.  ``begin`` once, then ``run``; everything else at any time between."""

    def __init__(
        self,
        saved: SavedPool,
        *,
        state: StateFile,
        watch: Watch,
        log: EventLog,
        pusher: Pusher,
        clock: Clock,
        wall: Callable[[], float] = time.time,
        settings: PoolSettings | None = None,
    ) -> None:
        self.name = saved.name
        self.life = secrets.token_hex(4)
        self.size = saved.size
        self.follows = ""
        """What sets the number of devices, if not people: a file, a trace."""

        self.trace_began_at = saved.trace_began_at
        self.cordoned = set(saved.cordoned)
        self.drained = set(saved.drained)
        self.blocked: set[int] = set()
        """Devices that belong to nobody and are used all the same."""

        self.claimants: dict[str, Claimant] = {}
        self.failure = ""
        """Why the state cannot be written; nothing is handed out meanwhile."""

        self._limit = saved.devices
        self._teams = {team.name: team for team in saved.teams}
        self._classes = dict(saved.classes)
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

        self._has_changed = True
        self._look_at_s = 0.0
        self._stopping = asyncio.Event()
        held = [device for claim in saved.claims for device in claim.devices]
        self._number = max([saved.size, saved.devices, *(device + 1 for device in held)])
        self.core = self._new_core()
        self.recovery: Recovery | None = Recovery(
            saved, life=self.life, now_s=clock.now_s(), silent_s=self._settings.silent_s
        )

    # --- the loop ----------------------------------------------------------------

    async def begin(self) -> None:
        """Recover what can be recovered at once.

        Raises:
            OSError: the state cannot be written.
        """
        async with self._changing():
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
        async with self._changing():
            self._tick()
        await self._watch.end_overdue(now_s=self._clock.now_s())

    def stop(self) -> list[str]:
        """End ``run`` soon; return the claimants that keep what they hold."""
        self._stopping.set()
        return sorted(name for name in allocation.claims(self.core) if self._owned(name))

    # --- what is ------------------------------------------------------------------

    @property
    def classes(self) -> dict[str, int]:
        """Return the priority classes with their values."""
        return {one.name: one.value for one in allocation.CLASSES} | self._classes

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
            RefusedError: it cannot have what it wants, or its name is taken.
        """
        until_s = self._clock.now_s() + ANSWER_S
        while True:
            try:
                async with self._changing():
                    if self.recovery is not None:
                        return self._hear_early(self.recovery, name, report)
                    self._hear(name, report)
                return self._answer(name)
            except RefusedError as error:
                if not error.is_temporary or self._clock.now_s() >= until_s:
                    raise
            await asyncio.sleep(TICK_S)

    async def withdraw(self, name: str) -> None:
        """Take note that a claimant has ended; one that is not known, too."""
        async with self._changing():
            claimant = self.claimants.get(name)
            if claimant is not None and not claimant.is_gone:
                self._lose(claimant, "it has ended")

    # --- wishes of people ------------------------------------------------------------

    async def set_devices(self, count: int, *, by: str = "") -> str:
        """Change how many devices there are; return what follows from it.

        Args:
            count: 0 or more.
            by: what follows a file or a trace says so; people are refused then.

        Raises:
            RefusedError: something else sets the number, or quotas promise more.
        """
        if self.follows and not by:
            raise RefusedError(f"the number of devices follows {self.follows}; change that")
        if not by:
            self._refuse_promises(self._teams.values(), count)
        async with self._changing():
            self._wish(DevicesSet(count=count))
            self._limit = count
            self._number = max(self._number, count)
            self.size = self.size if by else count
        return f"{count} devices"

    async def cordon(self, device: int) -> str:
        """Hand a device out no more; who has it keeps it."""
        async with self._changing():
            self._wish(Cordoned(devices=self._existing(device)))
            self.cordoned.add(device)
        return f"device {device} is handed out no more{self._kept_by(device)}"

    async def drain(self, device: int) -> str:
        """Take a device back, and hand it out no more."""
        async with self._changing():
            self._wish(Drained(devices=self._existing(device)))
            self.drained.add(device)
        return f"device {device} is taken back{self._kept_by(device)}"

    async def uncordon(self, device: int) -> str:
        """Hand a device out again."""
        async with self._changing():
            if device not in self.blocked:
                self._wish(Uncordoned(devices=self._existing(device)))
            self.cordoned.discard(device)
            self.drained.discard(device)
        return f"device {device} is handed out again"

    async def set_team(self, entry: TeamEntry) -> str:
        """Make a team, or change what it may use."""
        self._refuse_promises([*self._others(entry.name), entry], self.size)
        async with self._changing():
            self._wish(TeamSet(team=team_of(entry)))
            self._teams[entry.name] = entry
        quota = "no quota" if entry.quota is None else f"a quota of {entry.quota}"
        return f"team {entry.name} has {quota}"

    async def remove_team(self, name: str) -> str:
        """Forget a team that has no claims."""
        async with self._changing():
            self._wish(TeamRemoved(name=name))
            self._teams.pop(name, None)
        return f"team {name} is forgotten"

    async def set_class(self, name: str, value: int) -> str:
        """Make a priority class, or change its value."""
        async with self._changing():
            self._wish(ClassSet(priority=PriorityClass(name=name, value=value)))
            self._classes[name] = value
        return f"class {name} has the value {value}"

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
        before = claimant.wanted
        claimant.hear(report, now_s=self._clock.now_s())
        if report.wanted != before:
            refused = self._refusal(self._apply(Asked(claim=claimant.claim)))
            if refused is not None:
                claimant.wanted = before
                raise RefusedError(refused)
        back = claimant.given_back(report, self._owned(name), life=self.life) - claimant.leaving
        if back:
            claimant.leaving |= back
            self._touch(name)
        self._release(claimant)

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
        claimant.hear(report, now_s=claimant.heard_s)
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
        claimant = self.claimants[name]
        offer = claimant.offer
        if offer is None:  # the state could not be written
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
            claimant.leaving -= free
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
            self._apply(Ticked())

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
        owners = self._owners()
        used = self._watch.used(range(self._number))
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
        if idle := again - self.cordoned - self.drained:
            self._apply(Uncordoned(devices=tuple(sorted(idle))))

    def _overdue(self, overdue: Overdue) -> None:
        """Choose what is ended of a claimant that has not left: what it was given last."""
        claimant = self.claimants.get(overdue.name)
        standing = allocation.standing(self.core, overdue.name)
        if claimant is None or standing is None:
            return
        drain = [device for device in standing.drain if device not in claimant.leaving]
        newest = sorted(
            set(standing.devices) - claimant.leaving - set(drain),
            key=lambda device: (claimant.offered_at.get(device, 0), device),
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
        return returned.offer(self.life, size=self.size)

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
        unaccounted = self._watch.used(set(range(self._number)) - recovery.accounted)
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
        claimant.offered_at = dict.fromkeys(unheard, returned.revision)
        self.claimants[returned.name] = claimant
        self._apply(
            Recovered(
                claim=claimant.claim,
                devices=returned.devices,
                is_suspended=returned.is_suspended,
            )
        )

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

    def _new_core(self) -> allocation.Pool:
        """Return the core as it is before anybody has said what they hold."""
        core = allocation.new_pool(
            self._number,
            classes=[PriorityClass(name=name, value=value) for name, value in self.classes.items()],
            teams=[team_of(entry) for entry in self._teams.values()],
            is_open=False,
        )
        events: list[Event] = [DevicesSet(count=self._limit)]
        events += [Cordoned(devices=tuple(sorted(self.cordoned)))] if self.cordoned else []
        events += [Drained(devices=tuple(sorted(self.drained)))] if self.drained else []
        for event in events:
            core, _ = allocation.step(core, event, now_s=self._clock.now_s())
        return core

    # --- one turn -------------------------------------------------------------------

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Let one caller at a time change things; then write, and only then tell."""
        async with self._turn:
            try:
                yield
            finally:
                await self._settle()

    def _apply(self, event: Event) -> tuple[Action, ...]:
        """Let the core answer one event; note whom it concerns."""
        self.core, actions = allocation.step(self.core, event, now_s=self._clock.now_s())
        self._has_changed = True
        if not isinstance(event, Ticked):
            self._log.write_value(event)
        for action in actions:
            self._log.write_value(action)
            self._touch(action.name)
            self._reasons.setdefault(action.name, []).append(action.reason)
            if isinstance(action, Overdue):
                self._overdue(action)
        return actions

    def _wish(self, event: Event) -> None:
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
                size=self.size,
                revision=revision + 1,
                notice_s=self._notice_s(standing.leave_by_s, claimant),
            )
            if not is_same(claimant.offer, offer):
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
            size=self.size,
            devices=self._limit,
            revision=revision,
            cordoned=tuple(sorted(self.cordoned)),
            drained=tuple(sorted(self.drained)),
            classes=self._classes,
            teams=tuple(self._teams.values()),
            claims=claims,
            trace_began_at=self.trace_began_at,
        )

    # --- helpers --------------------------------------------------------------------

    def _owned(self, name: str) -> tuple[int, ...]:
        """Return the devices of a claim, with those that it is to give back."""
        standing = allocation.standing(self.core, name)
        return standing.devices if standing is not None else ()

    def _owners(self) -> dict[int, str]:
        return {
            device: name for name in allocation.claims(self.core) for device in self._owned(name)
        }

    def _kept_by(self, device: int) -> str:
        owner = self._owners().get(device)
        return "" if owner is None else f"; {owner} has it"

    def _existing(self, device: int) -> tuple[int]:
        if not 0 <= device < self._number:
            last = self._number - 1
            raise RefusedError(f"there is no device {device}; they are 0 to {last}")
        return (device,)

    def _others(self, name: str) -> list[TeamEntry]:
        return [team for team in self._teams.values() if team.name != name]

    def _refuse_promises(self, teams: Iterable[TeamEntry], devices: int) -> None:
        teams = list(teams)
        if sum(team.quota or 0 for team in teams) > devices:
            raise RefusedError(promised_too_much(teams, devices))

    @staticmethod
    def _refusal(actions: Iterable[Action]) -> str | None:
        """Return why a claim was refused."""
        return next((action.reason for action in actions if isinstance(action, Refuse)), None)
