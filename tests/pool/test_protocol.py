"""Pool and jobs between which messages are lost, late, repeated and out of order.

Both sides are the real ones: the pool's ``Driver`` with its state file and its locks, and for each
job the ``Tenancy`` that a job follows.  Whatever happens between them, no device is used by two
(its lock would be taken), and once messages arrive again everybody has what the pool says.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.pool.test_driver import World

from pliant.core import tenancy
from pliant.core.allocation import Cordoned, DevicesSet, Drained, Uncordoned, kinds
from pliant.core.tenancy import Admission, Demand, Tenancy
from pliant.machine.device_locks import DeviceLock
from pliant.pool import driver
from pliant.pool.allocator import RefusedError
from pliant.wire.offers import Offer, Report

pytestmark = pytest.mark.timeout(90)

DEVICES = 4
PRIORITIES = ("low", "normal", "high")
ROUNDS = 60
"""Of undisturbed talk, after which nothing may change any more."""

QUIET = 4
"""Rounds without a change, after which none is expected: one that recovers says nothing for one."""


@dataclass
class Job:
    """One job, as its process sees the pool."""

    name: str
    priority: str
    low: int
    ask: int
    tenancy: Tenancy = field(init=False)
    locks: dict[int, DeviceLock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tenancy = Tenancy(min_replicas=self.low)

    def report(self) -> Report:
        now = self.tenancy
        return Report(
            wanted=Demand(
                priority=self.priority,
                min_replicas=self.low,
                ask_replicas=self.ask,
                can_suspend=True,
                notice_s=1e6,
            ),
            pool=now.pool,
            revision=now.revision,
            holds=now.holds,
            url="http://somewhere",
            pid=os.getpid(),
            is_running=now.admission is not Admission.WAITING,
            is_suspended=now.is_suspended,
        )

    def want(self, low: int, ask: int) -> None:
        """Want something else; only what runs learns of another minimum."""
        if self.tenancy.admission is Admission.RUNNING:
            self.low = low
            self.tenancy = replace(self.tenancy, min_replicas=low)
        self.ask = max(self.low, ask)

    def take(self, offer: Offer) -> None:
        self.tenancy = tenancy.follow_offer(
            self.tenancy,
            pool=offer.pool,
            revision=offer.revision,
            devices=frozenset(offer.devices),
            replicas=offer.replicas,
            suspend=offer.suspend,
        )

    def start_one(self, world: World) -> None:
        """Start a process on the first device that it may use, if it may have one more."""
        now = self.tenancy
        free = sorted(now.usable - now.used)
        if now.admission is Admission.RUNNING and free and len(now.used) < now.room:
            self.locks[free[0]] = world.take(free[0], self.name)  # fails if somebody uses it
            self._occupy()

    def end_one(self) -> None:
        """End a process that is too many; after the last one a suspended job begins to wait."""
        now = self.tenancy
        surplus = len(now.used) > now.room or now.admission is Admission.SUSPENDING
        leaving = sorted(now.unwanted) or (sorted(now.used, reverse=True) if surplus else [])
        if leaving:
            self.locks.pop(leaving[0]).release()
            self._occupy()
        elif now.admission is Admission.SUSPENDING:
            self.tenancy = tenancy.vacate(now)

    def close(self) -> None:
        while self.locks:
            self.locks.popitem()[1].release()

    def _occupy(self) -> None:
        self.tenancy = tenancy.occupy(self.tenancy, frozenset(self.locks))


@dataclass
class Play:
    """One pool of four devices, three jobs, and the messages between them."""

    world: World
    jobs: list[Job]
    late: list[tuple[Job, Offer]] = field(default_factory=list)
    """Answers that have not arrived yet."""

    old: list[tuple[Job, Report]] = field(default_factory=list)
    """Reports that arrive once more."""

    async def happen(self, what: str, which: int, number: int) -> None:
        """Let one of ``EVENTS`` happen."""
        job, device = self.jobs[which % len(self.jobs)], number % DEVICES
        match what:
            case "a job reports":
                await self.talk(job, job.report())
            case "a process starts":
                job.start_one(self.world)
            case "a process ends":
                job.end_one()
            case "a job wants something else":
                job.want(1 + number % 2, 1 + device)
            case "there are fewer or more devices":
                await self.wish(DevicesSet(count=number % (DEVICES + 1)))
            case "a device goes out of use":
                await self.wish(Cordoned(devices=(device,)))
            case "a device is drained":
                await self.wish(Drained(devices=(device,)))
            case "a device comes back":
                await self.wish(Uncordoned(devices=(device,)))
            case "a job ends":
                await self.end(job)
            case "the pool looks":
                await self.world.tick()
            case "the pool begins anew":
                self.old.clear()  # what was under way to its process ended with it
                await self.world.reborn()
            case _:
                await self.go_wrong(what, job, number)

    async def go_wrong(self, what: str, job: Job, number: int) -> None:
        """Let a message be late, or come twice, or in another order."""
        match what:
            case "an answer is under way":
                self.old.append((job, job.report()))
                offer = await self.answer(job, job.report())
                self.late += [] if offer is None else [(job, offer)]
            case "an answer comes late" if self.late:
                late, offer = self.late[number % len(self.late)]
                late.take(offer)
            case "an old report comes again" if self.old:
                await self.answer(*self.old[number % len(self.old)])
            case "an offer is pushed":
                self.push(number)
            case "an answer comes late" | "an old report comes again":
                pass  # nothing is under way
            case _:
                raise AssertionError(f"nobody knows how {what!r} happens")

    async def end(self, job: Job) -> None:
        """Let a job end, and another of its name begin with its next report."""
        job.close()
        job.tenancy = Tenancy(min_replicas=job.low)
        self.late = [each for each in self.late if each[0] is not job]
        self.old = [each for each in self.old if each[0] is not job]
        await self.world.driver.withdraw(job.name)

    async def wish(self, event: DevicesSet | Cordoned | Drained | Uncordoned) -> None:
        pool = self.world.driver
        if pool.recovery is None:
            async with pool.changing():
                pool.configure(event)

    async def answer(self, job: Job, report: Report) -> Offer | None:
        try:
            return await self.world.driver.report(job.name, report)
        except RefusedError:  # of one that recovers, until it has heard everybody
            return None

    async def talk(self, job: Job, report: Report) -> None:
        offer = await self.answer(job, report)
        if offer is not None:
            job.take(offer)

    def push(self, number: int) -> None:
        pushed = self.world.pushes.pushed
        if pushed:
            name, offer = pushed[number % len(pushed)]
            for job in self.jobs:
                if job.name == name and offer.pool == job.tenancy.pool:
                    job.take(offer)

    async def settle(self) -> None:
        """Let them talk undisturbed until nothing changes any more."""
        quiet = 0
        for _ in range(ROUNDS):
            before = [job.tenancy for job in self.jobs]
            for job in self.jobs:
                await self.talk(job, job.report())
                job.end_one()
                job.start_one(self.world)
            await self.world.tick()
            quiet = quiet + 1 if [job.tenancy for job in self.jobs] == before else 0
            if quiet == QUIET:
                return
        raise AssertionError(f"they still talk after {ROUNDS} rounds")


EVENTS = (
    "a job reports",
    "a job reports",
    "a job reports",
    "a process starts",
    "a process starts",
    "a process ends",
    "a process ends",
    "a job ends",
    "a job wants something else",
    "there are fewer or more devices",
    "a device goes out of use",
    "a device is drained",
    "a device comes back",
    "the pool looks",
    "the pool begins anew",
    "an answer is under way",
    "an answer is under way",
    "an answer comes late",
    "an old report comes again",
    "an old report comes again",
    "an offer is pushed",
)
NUM_EVENTS = 50


@pytest.mark.parametrize("first", [0, 50, 100])
def test_everybody_ends_with_what_the_pool_says(first: int) -> None:
    for seed in range(first, first + 50):
        perform(seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_everybody_ends_with_what_the_pool_says_in_many_scenes() -> None:
    first = int(os.environ.get("SEED", "1000"))
    for seed in range(first, first + 3000):
        perform(seed)


def perform(seed: int) -> None:
    """Let events happen to a pool and three jobs; then let them talk undisturbed, and look."""
    dice = random.Random(seed)
    events = [
        (dice.choice(EVENTS), dice.randrange(3), dice.randrange(12)) for _ in range(NUM_EVENTS)
    ]
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "ANSWER_S", 0.0)
        try:
            asyncio.run(_performed(Path(directory), events))
        except AssertionError as error:
            raise AssertionError(f"scene {seed}: {error}; {events}") from error


async def _performed(directory: Path, events: list[tuple[str, int, int]]) -> None:
    world = World(directory, devices=DEVICES)
    jobs = [Job(f"job-{name}", name, 1 + index % 2, 3) for index, name in enumerate(PRIORITIES)]
    play = Play(world, jobs)
    try:
        await world.driver.begin()
        for event in events:
            await play.happen(*event)
        await play.settle()
        for job in jobs:
            check(world, job)
    finally:
        for job in jobs:
            job.close()
        await world.pushes.close()
        world.log.close()


def check(world: World, job: Job) -> None:
    """The job has what the pool says, uses it, and waits only where it has to."""
    pool, now = world.driver, job.tenancy
    offer = pool.claims.by_name[job.name].offer
    assert offer is not None
    assert (now.pool, now.revision) == (offer.pool, offer.revision)
    assert now.holds == offer.devices
    if now.admission is Admission.RUNNING:
        assert len(now.used) == now.room == offer.replicas
    else:
        assert now.admission is Admission.WAITING
        assert now.holds == ()
        told = kinds.summary_of_kinds(pool.allocator.core)
        idle = min(len(told.free), told.usable - told.share)
        assert idle < job.low, f"{job.name} waits while {idle} devices are idle"
