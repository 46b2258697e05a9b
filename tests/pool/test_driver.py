"""The driver of a pool, in one process: what it tells whom, and in which order it does things."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.scene import scene
from tools.replay_log import entries
from tools.replay_turns import Break, replayed

from pliant.core.tenancy import Demand
from pliant.machine import device_locks as locks
from pliant.machine.clock import Clock
from pliant.observe.log import Journal, Record
from pliant.observe.reading import read
from pliant.pool import allocator
from pliant.pool.admin import PoolAdmin
from pliant.pool.allocator import RefusedError
from pliant.pool.claim_client import Pusher
from pliant.pool.claims import PoolSettings
from pliant.pool.devices import DeviceWatch
from pliant.pool.driver import PoolDriver
from pliant.pool.pool_status import board_of
from pliant.pool.state import SavedPool, StateFile
from pliant.spec.pool import ClassEntry, ReclaimEntry, TeamEntry
from pliant.wire.offers import Offer, Report


@dataclass
class Time:
    """Monotonic time that tests move."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_(self, seconds: float) -> None:
        self.now_s += seconds


class Pushes(Pusher):
    """Remembers what would have been pushed."""

    def __init__(self) -> None:
        super().__init__(httpx.AsyncClient(verify=False))  # which reads no certificates
        self.pushed: list[tuple[str, Offer]] = []

    def push(self, claim: str, offer: Offer, *, url: str, token: str) -> None:
        self.pushed.append((claim, offer))


@dataclass
class World:
    """One pool of four devices, and what is needed to look at it."""

    directory: Path
    time: Time = field(default_factory=Time)
    devices: int = 4

    def __post_init__(self) -> None:
        self.walls = itertools.count(1000)
        self.state = StateFile(self.directory / "state.json")
        self.log = Journal(self.directory / "events.jsonl", job="default")
        self.pushes = Pushes()
        self.driver = self.born()

    def born(self) -> PoolDriver:
        found = self.state.read()
        size = self.devices
        found = found or SavedPool(name="default", size=size, devices=size)
        return PoolDriver(
            found,
            state=self.state,
            watch=DeviceWatch(self.directory / "devices", self.log),
            log=self.log,
            pusher=self.pushes,
            clock=Clock(self.time),
            wall=lambda: float(next(self.walls)),
            settings=PoolSettings(silent_s=10.0, grace_s=1.0),
        )

    async def reborn(self) -> None:
        self.driver = self.born()
        await self.driver.begin()

    async def report(self, name: str, *, holds: tuple[int, ...] = (), **values: Any) -> Offer:
        """Report as this process would, after the newest offer unless said otherwise."""
        wanted = {"min_replicas": 1, "ask_replicas": 1, **values.pop("wanted", {})}
        followed = values.pop("follows", None)
        if followed is not None:
            values |= {"pool": followed.pool, "revision": followed.revision}
        body = {"wanted": Demand(**wanted), "holds": holds, "pid": os.getpid(), **values}
        return await self.driver.report(name, Report(**body))

    async def tick(self, seconds: float = 0.0) -> None:
        """Let time pass, in steps that do not look like sleep, and look after each."""
        for _ in range(max(1, round(seconds / 0.5))):
            self.time.pass_(0.5 if seconds else 0.0)
            await self.driver.turn()

    def take(self, device: int, claim: str) -> locks.DeviceLock:
        lock = locks.take_device(self.directory / "devices", device, claim=claim)
        assert lock is not None
        return lock

    def records(self, kind: str) -> list[Record]:
        records = read(self.directory / "events.jsonl")
        return [record for record in records if record["kind"] == kind]

    def claims(self) -> dict[str, Any]:
        return {claim["name"]: claim for claim in board_of(self.driver)["claims"]}


Scene = Callable[[World], Awaitable[None]]
Play = Callable[[Scene], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    async def playing(scene: Scene) -> None:
        world = World(tmp_path)
        try:
            await world.driver.begin()
            await scene(world)
        finally:
            await world.pushes.close()
            world.log.close()
        for step in replayed(entries(tmp_path / "events.jsonl")):  # whatever the story
            assert isinstance(step, Break) or step.difference is None

    return lambda scene: asyncio.run(playing(scene))


def some(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "fixed", "min_replicas": number, "ask_replicas": number, **more}


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(RefusedError) as caught:
        await asked
    return str(caught.value)


@scene()
async def test_an_offer_is_told_only_once_it_is_written(world: World) -> None:
    await world.report("gpt", url="http://job")
    [(_, offer)] = world.pushes.pushed
    saved = world.state.read()

    assert offer.devices == (0,)
    assert saved is not None
    assert [(one.name, one.devices, one.revision) for one in saved.claims] == [
        ("gpt", (0,), offer.revision)
    ]


def test_nothing_is_handed_out_while_the_state_cannot_be_written(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(saved: SavedPool) -> bool:
        raise OSError(28, "No space left on device", "state.json")

    async def scene(world: World) -> None:
        write = world.state.write
        monkeypatch.setattr(world.state, "write", full)
        monkeypatch.setattr("pliant.pool.driver.ANSWER_S", 0.0)
        said = await refused(world.report("gpt", url="http://job"))
        assert said == "the pool cannot write its state: No space left on device"
        assert world.pushes.pushed == []
        assert board_of(world.driver)["failure"] == "No space left on device"

        monkeypatch.setattr(world.state, "write", write)
        await world.tick()

        assert [offer.devices for _, offer in world.pushes.pushed] == [(0,)]
        assert board_of(world.driver)["failure"] is None
        assert len(world.records("not_written")) == 1

    play(scene)


@scene()
async def test_a_log_that_cannot_be_written_costs_records_and_not_the_pool(world: World) -> None:
    await world.report("gpt")
    file, full = os.dup(world.log._fd), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, world.log._fd)

    assert (await world.report("other", wanted={"ask_replicas": 2})).devices == (1, 2)
    await world.tick()
    os.dup2(file, world.log._fd)
    await world.driver.withdraw("other")

    kinds = [one["kind"] for one in read(world.directory / "events.jsonl")]
    assert kinds == [
        "pool_began",
        "opened",
        "asked",
        "grant",
        "records_lost",
        "gone",
        "withdrawn",
        "released",
    ]
    [lost] = world.records("records_lost")
    assert lost["number"] == 2
    for fd in (file, full):
        os.close(fd)


@scene()
async def test_a_device_that_was_given_back_is_free_only_when_its_lock_is(world: World) -> None:
    both = {"min_replicas": 1, "ask_replicas": 4}
    offer = await world.report("gpt", wanted=both)
    assert offer.devices == (0, 1, 2, 3)
    lock = world.take(3, "gpt")

    asks_less = {"min_replicas": 1, "ask_replicas": 3}
    offer = await world.report("gpt", wanted=asks_less, holds=offer.devices, follows=offer)
    assert (offer.devices, offer.replicas) == ((0, 1, 2, 3), 3)
    offer = await world.report("gpt", wanted=asks_less, holds=(0, 1, 2), follows=offer)
    assert offer.devices == (0, 1, 2)
    other = await world.report("other")
    assert other.devices == ()

    lock.release()
    await world.tick()
    other = await world.report("other")
    assert other.devices == (3,)


@scene()
async def test_what_was_given_back_and_is_offered_again_at_once_is_a_new_offer(
    world: World,
) -> None:
    """It comes back with the devices that it has just left; an offer it knows would say nothing."""
    job = {"min_replicas": 2, "ask_replicas": 2}
    first = await world.report("gpt", wanted=job)
    await world.report("gpt", wanted=job, holds=first.devices, follows=first)

    again = await world.report("gpt", wanted=job, follows=first)

    assert again.devices == first.devices == (0, 1)
    assert again.revision > first.revision


@scene()
async def test_who_has_not_heard_of_a_device_has_not_given_it_back(world: World) -> None:
    """The offer is still under way when the claimant reports for another reason."""
    first = await world.report("gpt")
    second = await world.report("gpt", wanted={"ask_replicas": 2}, holds=(0,), follows=first)
    assert second.devices == (0, 1)

    third = await world.report("gpt", wanted={"ask_replicas": 2}, holds=(0,), follows=first)
    assert third == second
    assert world.records("released") == []
    fourth = await world.report("gpt", holds=(0,), follows=second)
    assert fourth.devices == (0,)


@scene()
async def test_a_drained_device_is_left_out_of_the_offer_and_free_once_it_is_left(
    world: World,
) -> None:
    two = {"ask_replicas": 2}
    first = await world.report("gpt", wanted=two)
    await PoolAdmin(world.driver).drain(0)

    second = await world.report("gpt", wanted=two, holds=(0, 1), follows=first)
    assert (second.devices, second.replicas) == ((1, 2), 2)
    assert world.records("released") == []
    third = await world.report("gpt", wanted=two, holds=(1, 2), follows=second)
    assert third.devices == (1, 2)
    assert [record["devices"] for record in world.records("released")] == [[0]]


@scene()
async def test_a_report_of_an_earlier_life_gives_nothing_of_this_one_back(world: World) -> None:
    first = await world.report("gpt")
    stale = Offer(pool="another life", revision=first.revision + 5)

    offer = await world.report("gpt", follows=stale)

    assert offer == first
    assert world.records("released") == []


@scene()
async def test_a_name_is_one_process(world: World) -> None:
    await world.report("gpt")

    said = await refused(world.report("gpt", pid=os.getppid()))

    assert said == f"process {os.getpid()} has a claim named gpt already; choose another name"


@scene()
async def test_a_name_is_free_once_its_process_is_dead(world: World) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    await world.report("gpt", pid=process.pid)
    process.communicate(b"\n")

    offer = await world.report("gpt")

    assert offer.devices == (0,)
    [gone] = world.records("gone")
    assert gone["reason"] == f"its process {process.pid} is dead"


@scene()
async def test_silence_ends_a_claim_that_runs_nothing_and_no_other(world: World) -> None:
    await world.report("idle")
    await world.report("busy")
    lock = world.take(1, "busy")

    await world.tick(12)

    assert {name: one["state"] for name, one in world.claims().items()} == {"busy": "starting"}
    lock.release()
    await world.tick(1)
    assert set(world.claims()) == set()


@scene()
async def test_the_pools_own_sleep_is_nobodys_silence(world: World) -> None:
    await world.report("gpt")

    world.time.pass_(3600)
    await world.driver.turn()

    assert set(world.claims()) == {"gpt"}


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (some(5), "claim gpt is refused: it needs at least 5 devices, and the pool has 4"),
        (some(1, team="x"), "claim gpt is refused: there is no team 'x'; there are default"),
        (
            some(1, priority="x"),
            "claim gpt is refused: there is no priority class 'x'; there are high, low, normal,"
            " urgent",
        ),
    ],
)
@scene()
async def test_a_claim_that_cannot_ever_be_met_is_refused(
    world: World, *, wanted: dict[str, Any], sentence: str
) -> None:
    assert await refused(world.report("gpt", wanted=wanted)) == sentence
    assert world.claims() == {}


@scene()
async def test_a_known_claim_goes_on_as_it_was_before_it_asked_for_the_impossible(
    world: World,
) -> None:
    offer = await world.report("gpt")
    await refused(world.report("gpt", wanted=some(9), holds=(0,), follows=offer))

    saved = world.state.read()
    assert saved is not None
    assert [one.wanted.min_replicas for one in saved.claims] == [1]
    assert (await world.report("gpt", holds=(0,), follows=offer)).devices == (0,)


@scene()
async def test_who_asks_for_the_impossible_again_and_again_is_logged_once(world: World) -> None:
    for _ in range(3):
        await refused(world.report("gpt", wanted=some(9)))
    assert len(world.records("refuse")) == len(world.records("asked")) == 1

    await world.report("gpt")
    await refused(world.report("gpt", wanted=some(9)))

    assert len(world.records("refuse")) == 2


@scene()
async def test_what_is_left_of_a_released_claim_is_ended_after_its_notice(world: World) -> None:
    await world.report("gpt", wanted={"notice_s": 5.0})
    assert await refused(world.driver.release("no", by="cy")) == (
        "there is no claim no that could be released"
    )
    await world.driver.release("gpt", by="cy")

    assert await refused(world.report("gpt")) == "cy has released gpt"
    await world.tick(4.0)
    assert "gpt" in world.claims()
    await world.tick(2.0)
    assert "gpt" not in world.claims()
    assert (await world.report("gpt")).devices == (0,)


@scene()
async def test_a_claim_is_not_released_before_the_pool_knows_of_it_again(world: World) -> None:
    offer = await world.report("gpt")
    await world.reborn()

    with pytest.raises(RefusedError) as caught:
        await world.driver.release("gpt", by="cy")

    assert caught.value.is_temporary
    assert str(caught.value) == (
        "the pool was started anew and waits for gpt; release gpt in a moment"
    )
    await world.report("gpt", holds=(0,), follows=offer)
    assert "is told to give everything back" in await world.driver.release("gpt", by="cy")


@scene()
async def test_a_release_that_waits_for_whoever_uses_a_device_says_so(world: World) -> None:
    lock = world.take(0, "gpt")  # the file that tells of it was lost
    await world.reborn()

    said = await refused(world.driver.release("gpt", by="cy"))

    assert said == (
        "the pool was started anew and waits for whoever uses its devices; release gpt in a moment"
    )
    lock.release()


@scene()
async def test_whose_a_team_or_class_is_stays_unless_that_is_said(world: World) -> None:
    wishes = PoolAdmin(world.driver)
    await wishes.set_team(TeamEntry(name="a", users=["ada"]))
    await wishes.set_class(ClassEntry(name="urgent", value=1000, users=["ada"]))

    await wishes.set_team(TeamEntry(name="a", quota=2))
    await wishes.set_class(ClassEntry(name="urgent", value=900))

    saved = world.driver.saved
    assert [(team.quota, team.users) for team in saved.teams] == [(2, ["ada"])]
    assert saved.class_users == {"urgent": ("ada",)}
    await wishes.set_team(TeamEntry(name="a", users=None))
    await wishes.set_class(ClassEntry(name="urgent", value=900, users=None))
    assert world.driver.saved.teams[0].users is None
    assert world.driver.saved.class_users == {}


@scene()
async def test_of_a_team_stays_what_is_not_said(world: World) -> None:
    wishes = PoolAdmin(world.driver)

    async def after(**said: object) -> tuple[object, ...]:
        await wishes.set_team(TeamEntry.model_validate({"name": "a", **said}))
        [team] = world.driver.saved.teams
        rule = team.reclaim
        return team.quota, team.borrow_limit, rule.from_, rule.by, team.users

    rule = {"from": "SameTeam", "by": ["high"]}
    begun = await after(quota=2, borrowLimit=1, reclaim=rule, users=["ada"])
    assert begun == (2, 1, "SameTeam", ["high"], ["ada"])
    assert await after() == begun
    assert await after(quota=3) == (3, 1, "SameTeam", ["high"], ["ada"])
    assert await after(users=["cy"]) == (3, 1, "SameTeam", ["high"], ["cy"])
    assert await after(reclaim={"by": None}) == (3, 1, "SameTeam", None, ["cy"])
    assert await after(reclaim={"from": "Never"}) == (3, 1, "Never", None, ["cy"])
    assert await after(borrowLimit=None) == (3, None, "Never", None, ["cy"])
    await after(quota=3, borrowLimit=1)
    assert await after(quota=None) == (None, None, "Never", None, ["cy"])


def test_names_that_are_refused_fill_no_memory(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "MOST_REFUSED", 3)

    async def scene(world: World) -> None:
        for number in range(9):
            await refused(world.report(f"c{number}", wanted=some(5)))
        await refused(world.report("c8", wanted=some(5)))

        assert len(world.driver.allocator._refused) == 3
        assert len(world.records("refuse")) == 9

    play(scene)


@scene()
async def test_a_process_that_does_not_live_here_has_no_claim(world: World) -> None:
    said = await refused(world.report("gpt", pid=10**30))

    assert said == f"process {10**30} of claim gpt does not live here"
    await world.tick()


@scene()
async def test_what_people_wish_is_possible_or_refused_in_a_sentence(world: World) -> None:
    wishes = PoolAdmin(world.driver)
    assert await wishes.set_team(TeamEntry(name="a", quota=3)) == "team a has a quota of 3"
    await world.report("gpt", wanted=some(3, team="a"))

    said = await refused(
        wishes.set_team(TeamEntry.model_validate({"name": "a", "quota": 2, "borrowLimit": 0}))
    )
    assert "is below the minimum of 3 of its claim gpt" in said
    assert await refused(wishes.set_team(TeamEntry(name="b", quota=2))) == (
        "the quotas 3 (a) + 2 (b) are more than the pool's 4 devices; lower one or give the"
        " pool more"
    )
    assert "3 (a) are more than the pool's 2" in await refused(wishes.set_devices(2))
    assert await refused(wishes.cordon(4)) == "there is no device 4; they are 0 to 3"
    await wishes.set_devices(6)
    await wishes.cordon(5)
    await wishes.set_devices(4)
    for wish in (wishes.cordon, wishes.drain, wishes.uncordon):
        assert await refused(wish(4)) == "there is no device 4; they are 0 to 3"
    await wishes.uncordon(5)  # it was out of use before it was gone
    assert await refused(wishes.uncordon(5)) == "there is no device 5; they are 0 to 3"
    unknown = TeamEntry(name="c", reclaim=ReclaimEntry(by=["nobody"]))
    assert "nobody" in await refused(wishes.set_team(unknown))
    assert "gpt" in await refused(wishes.remove_team("a"))
    saved = world.state.read()
    assert saved is not None
    assert [team.name for team in saved.teams] == ["a"]


@scene()
async def test_of_two_wishes_at_once_that_promise_too_much_together_one_is_refused(
    world: World,
) -> None:
    wishes = PoolAdmin(world.driver)
    async with world.driver.changing():
        both = [
            asyncio.create_task(wishes.set_team(TeamEntry(name=name, quota=3))) for name in "ab"
        ]
        await asyncio.sleep(0)

    said = await asyncio.gather(*both, return_exceptions=True)

    assert [type(one) for one in said] == [str, RefusedError]


@scene()
async def test_the_rules_that_were_set_outlive_the_pool(world: World) -> None:
    wishes = PoolAdmin(world.driver)
    await wishes.set_team(TeamEntry(name="a", quota=3))
    await wishes.set_class(ClassEntry(name="nightly", value=-500))
    await wishes.cordon(0)
    await wishes.set_devices(6)

    await world.reborn()

    board = board_of(world.driver)
    assert {team["team"]: team["quota"] for team in board["teams"]} == {"default": None, "a": 3}
    assert board["classes"]["nightly"] == -500
    assert board["devices"][0]["is_cordoned"]
    assert board["usable"] == 5
    offer = await world.report("gpt", wanted=some(1, priority="nightly", team="a"))
    assert offer.devices == (1,)


@scene()
async def test_a_device_that_is_out_of_use_stays_known_when_there_are_fewer(world: World) -> None:
    wishes = PoolAdmin(world.driver)
    await wishes.set_devices(6)
    await wishes.cordon(5)
    await wishes.set_devices(4)

    await world.reborn()

    board = board_of(world.driver)
    cordoned = {one["device"]: one["is_cordoned"] for one in board["devices"]}
    assert cordoned == {0: False, 1: False, 2: False, 3: False, 5: True}
    assert (board["limit"], board["usable"]) == (4, 4)


@scene()
async def test_a_new_life_waits_for_who_had_devices_and_gives_nothing_before(world: World) -> None:
    offer = await world.report("gpt", wanted={"ask_replicas": 2})
    lock = world.take(0, "gpt")
    await world.reborn()

    early = await world.report("other")
    assert early.devices == ()
    assert world.driver.awaited() == ["gpt"]
    again = await world.report("gpt", wanted={"ask_replicas": 2}, holds=(0, 1), follows=offer)
    assert (again.devices, again.replicas) == ((0, 1), 2)
    assert world.driver.awaited() == []
    assert (await world.report("other", follows=early)).devices == (2,)
    lock.release()


@scene()
async def test_whether_a_job_runs_is_known_once_it_reports_to_the_pool_that_was_restarted(
    world: World,
) -> None:
    first = await world.report("gpt")
    await world.report("gpt", holds=(0,), follows=first, is_running=True)
    assert world.claims()["gpt"]["state"] == "running"

    await world.reborn()
    offer = await world.report("gpt", holds=(0,), follows=first, is_running=True)
    assert world.claims()["gpt"]["state"] == "starting"

    await world.report("gpt", holds=(0,), follows=offer, is_running=True)
    assert world.claims()["gpt"]["state"] == "running"


@scene()
async def test_a_claim_that_the_rules_of_a_new_life_refuse_keeps_what_it_uses(world: World) -> None:
    await PoolAdmin(world.driver).set_class(ClassEntry(name="nightly", value=-500))
    wanted = some(1, priority="nightly")
    offer = await world.report("gpt", wanted=wanted)
    lock = world.take(0, "gpt")
    saved = world.state.read()
    assert saved is not None
    world.state.write(saved.model_copy(update={"classes": {}}))
    await world.reborn()

    await world.report("gpt", wanted=wanted, holds=(0,), follows=offer)
    await world.tick()

    assert world.claims() == {}
    assert board_of(world.driver)["devices"][0]["is_blocked"]
    said = await refused(world.report("gpt", wanted=wanted, holds=(0,), follows=offer))
    assert "no priority class 'nightly'" in said
    assert (await world.report("other")).devices == (1,)
    lock.release()


def test_a_device_that_is_not_healthy_is_not_handed_out(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    ailing = {"cuda:0": "it is too hot"}
    monkeypatch.setattr("pliant.machine.accelerators.ailments", lambda names: dict(ailing))
    monkeypatch.setattr("pliant.machine.device_health.LOOK_S", 0.02)
    note = "as it is not healthy: it is too hot"

    async def scene(world: World) -> None:
        saved = SavedPool(name="default", size=2, devices=2, names=("cuda:0", "cuda:1"))
        world.state.write(saved)
        await world.reborn()
        running = asyncio.create_task(world.driver.run())

        assert (await world.report("gpt")).devices == (1,)
        waiting = await world.report("other")
        assert waiting.devices == ()
        assert "cuda:0 is cordoned " + note in waiting.reason
        device = board_of(world.driver)["devices"][0]
        assert (device["is_cordoned"], device["note"]) == (True, note)
        said = await PoolAdmin(world.driver).uncordon(0)
        assert said == "cuda:0 is handed out again, once it is healthy and nobody uses it"
        assert (await world.report("other")).devices == ()

        ailing["cuda:0"] = ""
        while world.driver.ailing:
            world.time.pass_(0.5)
            await asyncio.sleep(0.02)
        assert (await world.report("other")).devices == (0,)
        world.driver.stop()
        await running

    play(scene)


@scene()
async def test_a_pool_that_is_being_stopped_makes_no_offers(world: World) -> None:
    world.driver.stop()

    assert await refused(world.report("gpt")) == "the pool is being stopped"
    assert world.pushes.pushed == []


@scene()
async def test_what_was_given_back_between_two_lives_is_free(world: World) -> None:
    wanted = {"ask_replicas": 4}
    offer = await world.report("gpt", wanted=wanted)
    await world.reborn()

    await world.report("gpt", wanted={"ask_replicas": 2}, holds=(0, 2), follows=offer)

    assert world.claims()["gpt"]["devices"] == [0, 2]
    assert (await world.report("other", wanted={"ask_replicas": 2})).devices == (1, 3)


@scene()
async def test_what_was_offered_in_the_last_moment_of_a_life_is_still_offered_in_the_next(
    world: World,
) -> None:
    """The state is written, the pool dies, and the offer never arrives."""
    first = await world.report("gpt")
    await world.report("gpt", wanted={"ask_replicas": 2}, holds=(0,), follows=first)
    await world.reborn()

    again = await world.report("gpt", wanted={"ask_replicas": 2}, holds=(0,), follows=first)

    assert again.devices == (0, 1)
    await world.tick()
    again = await world.report("gpt", wanted={"ask_replicas": 2}, holds=(0,), follows=first)
    assert again.devices == (0, 1)
    assert world.records("released") == []


@scene()
async def test_who_waits_keeps_its_place_over_a_restart(world: World) -> None:
    offer = await world.report("first", wanted=some(4))
    await world.report("second", wanted=some(3))
    await world.reborn()
    await world.report("first", wanted=some(4), holds=offer.devices, follows=offer)
    await world.report("late", wanted=some(3))

    await world.driver.withdraw("first")

    assert (await world.report("late", wanted=some(3))).devices == ()
    assert (await world.report("second", wanted=some(3))).replicas == 3


@scene()
async def test_what_the_dead_have_left_and_nobody_can_end_does_not_keep_a_pool_from_opening(
    world: World,
) -> None:
    """A process that the kernel does not let die, or that nobody can tell for certain."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    await world.report("gpt", pid=process.pid)
    process.communicate(b"\n")
    lock = world.take(0, "somebody")
    await world.reborn()

    await world.tick(9)
    assert world.driver.awaited() == ["gpt"]
    await world.tick(2)

    assert world.driver.awaited() == []
    assert board_of(world.driver)["devices"][0]["is_blocked"]
    assert (await world.report("other")).devices == (1,)
    lock.release()
    await world.tick(2)
    assert not board_of(world.driver)["devices"][0]["is_blocked"]


@scene()
async def test_a_pool_that_ends_before_everybody_has_reported_knows_who_keeps_devices(
    world: World,
) -> None:
    offer = await world.report("gpt")
    await world.report("cnn")
    await world.reborn()
    await world.report("gpt", holds=(0,), follows=offer)

    assert world.driver.awaited() == ["cnn"]
    assert world.driver.stop() == ["cnn", "gpt"]


@scene()
async def test_what_is_given_back_counts_even_of_a_claim_that_asks_for_the_impossible(
    world: World,
) -> None:
    offer = await world.report("gpt", wanted={"ask_replicas": 4})
    used = [world.take(device, "gpt") for device in (0, 2, 3)]
    await world.report("other", wanted=some(1, priority="urgent"))

    await refused(
        world.report(
            "gpt",
            wanted={"min_replicas": 9, "ask_replicas": 9},
            holds=(0, 2, 3),
            follows=offer,
        )
    )

    assert (await world.report("other", wanted=some(1, priority="urgent"))).devices == (1,)
    for lock in used:
        lock.release()


@scene()
async def test_what_nobody_runs_on_is_taken_before_what_was_given_last(world: World) -> None:
    await world.report("gpt", wanted={"ask_replicas": 2, "notice_s": 1.0})
    await world.report("gpt", wanted={"ask_replicas": 4, "notice_s": 1.0})
    used = [world.take(device, "gpt") for device in (0, 2, 3)]
    await world.report("other", wanted=some(1, priority="urgent"))

    await world.tick(2)

    offer = await world.report("other", wanted=some(1, priority="urgent"))
    assert offer.devices == (1,)
    for lock in used:
        lock.release()


@scene()
async def test_a_withdrawal_of_an_earlier_process_ends_no_later_claim_of_its_name(
    world: World,
) -> None:
    await world.report("gpt")

    await world.driver.withdraw("gpt", pid=os.getpid() + 1)
    assert set(world.claims()) == {"gpt"}

    await world.driver.withdraw("gpt", pid=os.getpid())
    assert world.claims() == {}


@scene()
async def test_a_report_that_was_overtaken_by_a_later_one_gives_nothing_back(world: World) -> None:
    two = {"ask_replicas": 2}
    first = await world.report("gpt", wanted=two)
    await PoolAdmin(world.driver).set_devices(1)
    fewer = await world.report("gpt", wanted=two, holds=(0, 1), follows=first)
    assert fewer.replicas == 1
    await PoolAdmin(world.driver).set_devices(4)
    again = await world.report("gpt", wanted=two, holds=(0, 1), follows=fewer)
    assert again.replicas == 2
    await world.report("gpt", wanted=two, holds=(0, 1), follows=again)

    late = await world.report("gpt", wanted=two, holds=(0,), follows=fewer)

    assert late.devices == (0, 1)
    assert world.records("released") == []


@scene()
async def test_a_device_whose_user_nobody_can_tell_is_waited_for_and_that_is_said(
    world: World,
) -> None:
    await world.report("gpt")
    lock = world.take(0, "gpt")
    os.ftruncate(lock.fd, 0)

    await world.driver.withdraw("gpt")
    await world.tick(3)

    [told] = world.records("not_ended")
    assert (told["name"], told["device"]) == ("gpt", 0)
    assert (await world.report("other")).devices == (1,)
    lock.release()
    await world.tick()
    assert set(world.claims()) == {"other"}


@scene()
async def test_a_pool_that_has_shrunk_shows_what_is_left_and_what_is_still_used(
    world: World,
) -> None:
    admin = PoolAdmin(world.driver)
    await world.report("gpt", wanted=some(4))
    await admin.set_devices(10_000)
    await world.report("big", wanted=some(2))
    await admin.cordon(9_999)
    await admin.set_devices(4)

    shown = [one["device"] for one in board_of(world.driver)["devices"]]
    assert shown == [0, 1, 2, 3, 4, 5, 9_999]

    await admin.uncordon(9_999)
    await world.driver.withdraw("big")
    await world.tick()

    assert [one["device"] for one in board_of(world.driver)["devices"]] == [0, 1, 2, 3]
