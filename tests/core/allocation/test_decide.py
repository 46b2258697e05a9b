"""A pool gives every claim what it should have, takes no more than is needed, and says why."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pliant.core.allocation import (
    Action,
    Asked,
    Claim,
    ClassSet,
    Cordoned,
    DevicesSet,
    Drained,
    Event,
    Grant,
    Opened,
    Overdue,
    PoolRules,
    PriorityClass,
    Reclaim,
    Recovered,
    Refuse,
    Released,
    Shrink,
    Standing,
    Suspend,
    Team,
    TeamRemoved,
    TeamSet,
    TimePassed,
    Uncordoned,
    Withdrawn,
    claims,
    new_pool,
    next_deadline_s,
    standing,
    step,
    summary,
    why,
)
from pliant.core.errors import ConfigError


class World:
    """A pool, a clock that somebody winds, and claimants that obey when they are told to."""

    def __init__(self, devices: int, **how: Any) -> None:
        self.pool = new_pool(devices, **how)
        self.now_s = 0.0
        self.asked = 0

    def do(self, event: Event, *, at: float | None = None) -> tuple[Action, ...]:
        self.now_s = self.now_s if at is None else at
        self.pool, actions = step(self.pool, event, now_s=self.now_s)
        return actions

    def ask(self, name: str, low: int, ask: int | None = None, **more: Any) -> tuple[Action, ...]:
        self.asked += 1
        more.setdefault("since", float(self.asked))
        more.setdefault("can_suspend", True)
        claim = Claim(name=name, min_replicas=low, ask_replicas=low if ask is None else ask, **more)
        return self.do(Asked(claim=claim))

    def fixed(self, name: str, count: int, **more: Any) -> tuple[Action, ...]:
        return self.ask(name, count, kind="fixed", can_suspend=False, **more)

    def obey(self) -> list[Action]:
        """Let everybody give back what it should, until nobody has to."""
        heard: list[Action] = []
        for _ in range(50):
            owing = [one for one in map(self.at, claims(self.pool)) if excess(one) > 0]
            for one in owing:
                keep = [d for d in one.devices if d not in one.drain]
                back = one.drain + tuple(reversed(keep))
                heard += self.do(Released(name=one.claim.name, devices=back[: excess(one)]))
            if not owing:
                return heard
        raise AssertionError("it does not end")

    def leave(self, name: str) -> list[Action]:
        devices = self.at(name).devices
        return [*self.do(Withdrawn(name=name)), *self.do(Released(name=name, devices=devices))]

    def at(self, name: str) -> Standing:
        found = standing(self.pool, name)
        assert found is not None
        return found

    def shares(self) -> dict[str, int]:
        return {name: self.at(name).share for name in claims(self.pool)}


def excess(one: Standing) -> int:
    return len(one.devices) - one.replicas


def kinds(actions: Any) -> list[tuple[str, str]]:
    return [(type(action).__name__, action.name) for action in actions]


# --- minimums and increments


def test_an_urgent_job_drains_exactly_what_it_needs_and_the_other_grows_back_later() -> None:
    world = World(8)
    world.ask("pretraining", 2, 8)

    taken = world.ask("tuning", 2, 2, priority="urgent")
    given = world.obey()
    back = world.leave("tuning")

    assert taken == (
        Shrink(
            name="pretraining",
            to=6,
            devices=(),
            notice_s=30.0,
            for_="tuning",
            reason="shrink from 8 to 6: urgent claim tuning needs its minimum of 2",
        ),
    )
    assert given == [
        Grant(
            name="tuning",
            to=2,
            devices=(6, 7),
            reason="begin with 2 of the 2 asked for: 2 from pretraining",
        )
    ]
    assert back[-1] == Grant(
        name="pretraining",
        to=8,
        devices=(6, 7),
        reason="grow from 6 to 8 of the 8 asked for: 2 idle",
    )


def test_a_fixed_claim_gets_all_or_nothing() -> None:
    world = World(4)
    world.fixed("a", 3)

    assert world.fixed("b", 2) == ()
    assert world.at("b").devices == ()
    assert world.leave("a")[-1] == Grant(
        name="b", to=2, devices=(0, 1), reason="begin with 2 of the 2 asked for: 2 idle"
    )


def test_a_minimum_is_handed_over_only_when_all_of_it_is_there() -> None:
    world = World(4)
    world.ask("old", 1, 4)
    world.ask("new", 2, 2, priority="high")

    first = world.do(Released(name="old", devices=(3,)))
    second = world.do(Released(name="old", devices=(1,)))

    assert first == ()
    assert kinds(second) == [("Grant", "new")]
    assert world.at("new").devices == (1, 3)


def test_a_minimum_takes_increments_of_its_own_class_but_no_minimum() -> None:
    world = World(4)
    world.ask("a", 1, 4)

    world.ask("b", 2)
    world.ask("c", 2)

    assert world.shares() == {"a": 2, "b": 2, "c": 0}
    assert why(world.pool, "c") == (
        "needs 2 more: none idle; 1 could be preempted; 3 cannot be preempted: normal is not "
        "below normal"
    )


def test_increments_go_lowest_class_and_newest_first() -> None:
    world = World(9)
    world.ask("high", 1, 3, priority="high")
    world.ask("older", 1, 3)
    world.ask("newer", 1, 3)

    world.fixed("x", 1, priority="urgent")
    assert world.shares() == {"high": 3, "newer": 2, "older": 3, "x": 1}
    world.fixed("y", 2, priority="urgent")
    assert world.shares() == {"high": 3, "newer": 1, "older": 2, "x": 1, "y": 2}
    world.fixed("z", 2, priority="urgent")
    assert world.shares() == {"high": 2, "newer": 1, "older": 1, "x": 1, "y": 2, "z": 2}


def test_a_minimum_is_taken_only_when_nothing_else_is_left_and_then_whole() -> None:
    world = World(4)
    world.ask("a", 2, 4, priority="low")
    world.obey()

    first = world.fixed("b", 2, priority="high")
    world.obey()
    second = world.fixed("c", 1, priority="high")

    assert kinds(first) == [("Shrink", "a")]
    assert second == (
        Suspend(
            name="a",
            notice_s=30.0,
            for_="c",
            reason="suspend, and give back 2: high claim c needs its minimum of 1, "
            "and nobody has more than a minimum to give",
        ),
    )
    assert world.at("a").is_suspended


def test_one_event_takes_increments_and_the_minimum_where_both_are_needed() -> None:
    world = World(4)
    world.ask("a", 2, 4, priority="low")

    (action,) = world.fixed("b", 3, priority="high")

    assert isinstance(action, Suspend)
    assert action.reason.startswith("suspend, and give back 4: high claim b needs its minimum of 3")


def test_who_cannot_be_suspended_keeps_its_minimum() -> None:
    world = World(4)
    world.ask("a", 2, 4, priority="low", can_suspend=False)

    world.fixed("b", 3, priority="urgent")

    assert world.shares() == {"a": 4, "b": 0}
    assert "2 belong to minimums that cannot be preempted" in why(world.pool, "b")


def test_an_increment_never_takes_a_minimum() -> None:
    world = World(4)
    world.ask("a", 2, 2, priority="low")
    world.ask("b", 1, 4, priority="urgent")

    assert world.shares() == {"a": 2, "b": 2}
    assert "they are a minimum, which only another claim's minimum may preempt" in why(
        world.pool, "b"
    )


def test_victims_that_turn_out_not_to_be_needed_are_spared() -> None:
    world = World(6)
    world.ask("small", 1, 1, priority="low", since=9.0)
    world.ask("large", 4, 4, priority="low", since=1.0)
    world.fixed("idle", 1)

    actions = world.fixed("b", 4, priority="urgent")

    assert kinds(actions) == [("Suspend", "large")]


def test_what_is_spared_does_not_go_to_a_third_who_could_not_have_taken_it() -> None:
    world = World(6, teams=[Team(name="polite", reclaim=Reclaim(from_="never"))])
    world.ask("small", 1, 1, priority="low", since=9.0)
    world.ask("large", 4, 4, priority="low", since=1.0)
    world.fixed("idle", 1)
    world.fixed("third", 1, team="polite")

    world.fixed("b", 4, priority="urgent")

    assert world.shares() == {"b": 4, "idle": 1, "large": 0, "small": 1, "third": 0}


def test_suspended_claims_come_back_in_order_of_class_then_age() -> None:
    world = World(3)
    for name, priority in (("young", "normal"), ("old", "normal"), ("best", "high")):
        since = {"young": 9.0, "old": 1.0, "best": 9.5}[name]
        world.ask(name, 1, priority=priority, since=since)
    world.fixed("all", 3, priority="urgent")
    world.obey()
    order = []

    world.do(DevicesSet(count=0))
    world.leave("all")
    for count in (1, 2, 3):
        order += [action.name for action in world.do(DevicesSet(count=count))]

    assert order == ["best", "old", "young"]


# --- what is on its way


def test_a_second_claim_does_not_cause_a_second_preemption_of_what_is_on_its_way() -> None:
    world = World(4)
    world.ask("a", 1, 4)
    world.fixed("b", 2, priority="high")

    again = world.fixed("c", 1, priority="high")

    assert [action.to for action in again if isinstance(action, Shrink)] == [1]
    assert world.shares() == {"a": 1, "b": 2, "c": 1}


def test_a_more_urgent_claim_may_take_what_is_reserved() -> None:
    world = World(4)
    world.ask("a", 2, 4, can_suspend=False)
    world.fixed("b", 2, priority="high")

    assert world.fixed("c", 2, priority="urgent") == ()
    given = world.obey()

    assert kinds(given) == [("Grant", "c")]
    assert world.shares() == {"a": 2, "b": 0, "c": 2}


def test_what_was_to_go_may_stay_when_the_taker_leaves_first() -> None:
    world = World(4)
    world.ask("a", 1, 4)
    world.fixed("b", 2, priority="high")

    assert world.do(Withdrawn(name="b")) == (
        Grant(name="a", to=4, devices=(), reason="grow from 2 to 4 of the 4 asked for: 2 idle"),
    )


def test_the_devices_of_the_dead_are_not_given_before_they_are_free() -> None:
    world = World(2)
    world.fixed("a", 2)
    world.fixed("b", 2)

    assert world.do(Withdrawn(name="a")) == ()
    assert kinds(world.do(Released(name="a", devices=(0, 1)))) == [("Grant", "b")]
    assert claims(world.pool) == ("b",)


def test_a_device_that_is_lost_is_replaced_even_by_itself() -> None:
    world = World(2)
    world.ask("a", 1, 2)

    (again,) = world.do(Released(name="a", devices=(1,)))

    assert (again.name, again.devices) == ("a", (1,))  # type: ignore[union-attr]


def test_overdue_is_said_once_for_each_notice() -> None:
    world = World(4)
    world.ask("a", 1, 4, notice_s=5.0)
    world.fixed("b", 2, priority="high")

    assert next_deadline_s(world.pool) == 5.0
    assert world.do(TimePassed(), at=5.0) == (
        Overdue(
            name="a",
            to=2,
            excess=2,
            reason="claim a may have 2 replicas and still holds 4 devices after its 5 s of notice",
        ),
    )
    assert world.do(TimePassed(), at=9.0) == ()


# --- teams


def two_teams(**of_a: Any) -> World:
    """Four devices of the team a, four of b."""
    return World(8, teams=[Team(name="a", quota=4, **of_a), Team(name="b", quota=4)])


def test_idle_quota_is_borrowed_and_taken_back_whatever_the_class() -> None:
    world = two_teams()
    world.ask("loan", 2, 8, team="b", priority="urgent")
    assert world.shares() == {"loan": 8}

    actions = world.ask("owner", 2, 4, team="a", priority="low")

    assert world.shares() == {"loan": 4, "owner": 4}
    assert [action.reason for action in actions] == [
        "shrink from 8 to 4: low claim owner asks for 4, "
        "and team a takes back what it lent of its quota of 4"
    ]


def test_what_is_within_a_quota_is_safe_from_other_teams() -> None:
    world = two_teams()
    world.ask("theirs", 1, 4, team="b", priority="low")
    world.ask("mine", 4, 8, team="a", priority="urgent")

    assert world.shares() == {"theirs": 4, "mine": 4}
    assert "team b is within its quota (4 of 4)" in why(world.pool, "mine")


def test_no_more_is_taken_from_a_team_than_it_has_borrowed() -> None:
    world = two_teams()
    world.ask("theirs", 1, 5, team="b", priority="low")
    world.ask("others", 1, 3)

    world.fixed("mine", 4, team="a")

    assert world.shares() == {"mine": 4, "others": 0, "theirs": 4}


def test_minimums_are_served_before_increments_of_their_class() -> None:
    world = World(3, teams=[Team(name="default", reclaim=Reclaim(from_="never"))])
    world.do(DevicesSet(count=1))
    world.ask("a", 1, 3)
    world.ask("b", 2)

    world.do(DevicesSet(count=3))

    assert world.shares() == {"a": 1, "b": 2}


def test_what_becomes_free_goes_to_the_higher_class_also_where_nobody_takes() -> None:
    world = World(3, teams=[Team(name="default", reclaim=Reclaim(from_="never"))])
    world.do(DevicesSet(count=1))
    world.fixed("low", 2, priority="low")
    world.fixed("high", 2, priority="high")

    world.do(DevicesSet(count=3))

    assert world.shares() == {"high": 2, "low": 0}


def test_nobody_borrows_more_than_its_limit() -> None:
    world = two_teams(borrow_limit=1)
    world.ask("mine", 1, 8, team="a")

    assert world.shares() == {"mine": 5}
    assert "team a is at its limit (5 of quota 4 and borrow_limit 1)" in why(world.pool, "mine")


def test_a_team_at_its_limit_makes_room_for_its_own() -> None:
    world = two_teams(borrow_limit=0)
    world.ask("low", 1, 4, team="a", priority="low")

    world.ask("high", 2, 2, team="a", priority="high")

    assert world.shares() == {"low": 2, "high": 2}


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (Reclaim(from_="never"), "team a never takes (reclaim.from=never)"),
        (
            Reclaim(by=("high", "urgent")),
            "team a lets only high, urgent take, not normal (reclaim.by)",
        ),
        (
            Reclaim(from_="same_team"),
            "team a takes from its own claims only (reclaim.from=same_team)",
        ),
    ],
)
def test_a_refused_reclaim_says_which_rule_refused_it(rule: Reclaim, sentence: str) -> None:
    world = two_teams(reclaim=rule)
    world.ask("loan", 2, 8, team="b")

    assert world.ask("owner", 4, team="a") == ()
    assert sentence in why(world.pool, "owner")


def test_a_quota_that_is_lowered_is_enforced() -> None:
    world = two_teams()
    world.ask("mine", 1, 8, team="a")

    (action,) = world.do(TeamSet(team=Team(name="a", quota=2, borrow_limit=1)))

    assert action == Shrink(
        name="mine",
        to=3,
        devices=(),
        notice_s=30.0,
        for_="",
        reason="shrink from 8 to 3: team a is limited to 3 devices",
    )


# --- sizes and gains


def test_only_sizes_that_a_claim_takes_are_given_and_left() -> None:
    world = World(7)
    world.ask("a", 2, 8, sizes=(2, 4, 8))
    assert world.shares() == {"a": 4}

    world.fixed("b", 4, priority="high")
    assert world.shares() == {"a": 2, "b": 4}


def test_what_a_victim_gives_too_much_is_not_forced_on_the_taker() -> None:
    world = World(6)
    world.ask("low", 2, 4, priority="low", sizes=(2, 4))

    world.ask("urgent", 2, 3, priority="urgent")

    assert world.shares() == {"low": 2, "urgent": 3}


def test_what_a_victim_gives_too_much_goes_to_whoever_is_next() -> None:
    world = World(5, teams=[Team(name="polite", reclaim=Reclaim(from_="never"))])
    world.ask("high", 1, priority="high")
    world.ask("low", 2, 4, priority="low", sizes=(2, 4))
    world.fixed("polite", 1, priority="urgent", team="polite")

    world.do(Asked(claim=replace(world.at("high").claim, ask_replicas=2)))

    assert world.shares() == {"high": 2, "low": 2, "polite": 1}


def test_devices_go_where_one_more_is_worth_most() -> None:
    world = World(8)
    world.ask("a", 1, 8, num_slots=2)
    world.ask("b", 1, 8, num_slots=64)
    world.do(TimePassed(), at=1000.0)

    assert world.shares() == {"a": 2, "b": 6}


def test_equals_take_turns_when_something_becomes_free() -> None:
    world = World(10, rules=PoolRules(min_gain=5.0))
    world.fixed("f", 6)
    world.ask("a", 1, 9)
    world.ask("b", 1, 9)
    assert world.shares() == {"a": 3, "b": 1, "f": 6}

    world.leave("f")

    assert world.shares() == {"a": 5, "b": 5}


def test_nobody_is_cut_for_a_device_that_brings_nothing() -> None:
    world = World(6)
    world.ask("a", 1, 2, priority="low")
    world.ask("b", 4, 7, num_slots=8, priority="urgent")

    assert world.shares() == {"a": 2, "b": 4}
    assert "more than 4 would make it no faster" in why(world.pool, "b")


def test_nobody_is_cut_for_a_part_of_a_step_that_brings_nothing_by_itself() -> None:
    world = World(6)
    world.ask("a", 1, 6)

    world.ask("b", 3, 8, num_slots=8, priority="urgent")  # gains from a 4th and from an 8th

    assert world.shares() == {"a": 2, "b": 4}


def test_equals_share_evenly_but_only_after_a_rest() -> None:
    world = World(8, rules=PoolRules(rest_s=60.0))
    world.ask("a", 1, 8)
    world.ask("b", 1, 8)
    world.obey()
    assert world.shares() == {"a": 7, "b": 1}

    assert world.do(TimePassed(), at=59.0) == ()
    (moved,) = world.do(TimePassed(), at=60.0)

    assert world.shares() == {"a": 4, "b": 4}
    assert moved.reason == (
        "shrink from 7 to 4: b, also normal, gains 29% with each device and it loses 22%"
    )


def test_a_small_gain_moves_nothing_between_equals() -> None:
    world = World(8, rules=PoolRules(min_gain=0.3, rest_s=0.0))
    world.ask("a", 1, 8)
    world.ask("b", 1, 8)

    world.do(TimePassed(), at=1.0)

    assert world.shares() == {"a": 6, "b": 2}


# --- patience


def test_a_large_claim_is_not_passed_by_small_ones_for_ever() -> None:
    """Two of a stream of small claims run at any time, one ending just after the next began."""
    world = World(4, rules=PoolRules(patience_s=10.0))
    world.fixed("s0", 2)
    world.fixed("s1", 2)
    world.fixed("large", 4)

    for number in range(2, 40):
        world.now_s += 1.0
        world.fixed(f"s{number}", 2)
        world.leave(f"s{number - 2}")
        if world.at("large").share:
            break
        if world.now_s == 10.0:
            passed = why(world.pool, f"s{number}")

    assert passed == "needs 2 more: normal claim large has waited longer for its 4"
    assert 10.0 <= world.now_s <= 13.0


def test_increments_use_what_is_saved_for_a_large_claim() -> None:
    world = World(4, rules=PoolRules(patience_s=10.0))
    world.fixed("a", 2)
    world.ask("b", 1, 2)
    world.fixed("large", 3)
    world.do(TimePassed(), at=11.0)

    assert world.shares() == {"a": 2, "b": 2, "large": 0}
    world.leave("a")
    assert world.shares() == {"b": 1, "large": 3}


# --- devices that come, go, and must not be used


def test_a_drained_device_goes_and_is_named() -> None:
    world = World(4)
    world.ask("a", 2, 4)

    (action,) = world.do(Drained(devices=(1,)))

    assert action == Shrink(
        name="a",
        to=3,
        devices=(1,),
        notice_s=30.0,
        for_="",
        reason="shrink from 4 to 3: of its devices, 1 is drained",
    )
    world.obey()
    assert world.at("a").devices == (0, 2, 3)
    assert kinds(world.do(Uncordoned(devices=(1,)))) == [("Grant", "a")]


def test_a_drained_device_is_replaced_before_a_minimum_goes_without_it() -> None:
    world = World(3)
    world.fixed("a", 2)

    actions = world.do(Drained(devices=(0,)))

    assert actions == (
        Shrink(
            name="a",
            to=2,
            devices=(0,),
            notice_s=30.0,
            for_="",
            reason="give back 0, drained, and stay at 2 on others",
        ),
        Grant(name="a", to=2, devices=(2,), reason="begin with 2 of the 2 asked for: 2 idle"),
    )


def test_a_drain_waits_for_a_minimum_that_nothing_can_replace() -> None:
    world = World(2)
    world.fixed("a", 2)

    assert world.do(Drained(devices=(0,))) == ()
    assert world.at("a").replicas == 2
    assert kinds(world.do(DevicesSet(count=3))) == [("Shrink", "a"), ("Grant", "a")]


def test_who_comes_back_before_it_left_is_told_which_devices_must_go() -> None:
    world = World(5)
    world.ask("a", 3)
    world.fixed("b", 2)
    assert kinds(world.do(Drained(devices=(0,)))) == [("Suspend", "a")]

    drop, back = world.leave("b")

    assert isinstance(drop, Shrink)
    assert (drop.to, drop.devices) == (3, (0,))
    assert drop.reason == "give back 0, drained, and have 3 on others"
    assert isinstance(back, Grant)
    assert (back.to, back.devices) == (3, (3,))


def test_a_cordoned_device_is_not_handed_out() -> None:
    world = World(2)
    world.do(Cordoned(devices=(0,)))

    world.ask("a", 1, 2)

    assert world.at("a").devices == (1,)
    assert summary(world.pool).usable == 1


def test_who_waits_is_told_which_device_is_out_of_use_and_why() -> None:
    world = World(4)
    world.do(Cordoned(devices=(3,), note="by ada since noon: fan"))
    world.do(Drained(devices=(1,), note="by cy since ten"))
    world.ask("b", 3)

    assert why(world.pool, "b") == (
        "needs 3 more: only 2 devices of the pool may be in use; device 1 is drained by cy since"
        " ten; device 3 is cordoned by ada since noon: fan"
    )
    assert why(world.pool, "b", has_notes=False, names={3: "cpu:3"}) == (
        "needs 3 more: only 2 devices of the pool may be in use; device 1 is drained; cpu:3 is"
        " cordoned"
    )
    world.do(Cordoned(devices=(0,)))
    assert "may be in use; device 0 is cordoned; device 1 is drained by cy" in why(world.pool, "b")
    world.do(Uncordoned(devices=(0, 1, 3)))
    assert why(world.pool, "b") == "has all 3 it can use of 3 asked for"
    world.do(Drained(devices=(3,)))
    world.ask("c", 1)
    world.ask("d", 1)
    assert "noon" not in why(world.pool, "d")


def test_who_holds_a_cordoned_device_keeps_it() -> None:
    world = World(2)
    world.fixed("a", 2)

    assert world.do(Cordoned(devices=(0,))) == ()
    world.leave("a")
    assert summary(world.pool).free == (1,)


def test_one_device_is_said_as_one() -> None:
    world = World(2)
    world.ask("a", 1, 2)

    (action,) = world.do(DevicesSet(count=1))
    world.ask("b", 2)

    assert action.reason == "shrink from 2 to 1: only 1 device may be in use"
    assert why(world.pool, "b") == "needs 2 more: only 1 device of the pool may be in use"


def test_a_smaller_pool_cuts_in_the_same_order_as_an_urgent_claim() -> None:
    world = World(6)
    world.ask("high", 1, 2, priority="high")
    world.ask("older", 1, 2)
    world.ask("newer", 1, 2)
    order = []

    for count in (5, 4, 3, 2, 1, 0):
        order += kinds(world.do(DevicesSet(count=count)))
        world.obey()

    assert order == [
        ("Shrink", "newer"),
        ("Shrink", "older"),
        ("Shrink", "high"),
        ("Suspend", "newer"),
        ("Suspend", "older"),
        ("Suspend", "high"),
    ]


def test_a_pool_that_cannot_be_cut_any_further_gives_nothing_until_it_fits_again() -> None:
    world = World(3)
    world.fixed("a", 3)
    world.do(DevicesSet(count=2))
    world.fixed("b", 1, priority="urgent")

    told = summary(world.pool)
    assert (told.share, told.usable) == (3, 2)
    assert world.shares() == {"a": 3, "b": 0}


# --- after a restart of the pool


def test_nothing_is_handed_out_before_everybody_is_known() -> None:
    world = World(4, is_open=False)
    held = Claim(name="a", min_replicas=1, ask_replicas=4, since=1.0)

    assert world.do(Recovered(claim=held, devices=(1, 3))) == ()
    assert world.fixed("b", 1) == ()
    assert "has restarted" in why(world.pool, "b")
    opened = world.do(Opened())

    assert kinds(opened) == [("Grant", "a"), ("Grant", "b")]
    assert world.at("b").devices != ()
    assert set(world.at("a").devices) == {1, 3} | {0, 2} - set(world.at("b").devices)


def test_a_device_is_not_recovered_twice() -> None:
    world = World(2, is_open=False)
    world.do(Recovered(claim=Claim(name="a"), devices=(0,)))

    assert world.do(Recovered(claim=Claim(name="b"), devices=(0,))) == (
        Refuse(name="b", reason="claim b is refused: device 0 is held by another claim"),
    )


# --- repeated news, changes, mistakes


def test_a_report_that_says_nothing_new_changes_nothing() -> None:
    world = World(4)
    world.ask("a", 1, 4)
    before = world.pool

    world.do(Asked(claim=replace(world.at("a").claim, since=77.0)), at=1.0)
    world.do(Released(name="a", devices=(9,)))
    world.do(Withdrawn(name="nobody"))

    assert world.pool is before


def test_who_asks_for_less_gives_the_rest_back() -> None:
    world = World(4)
    world.ask("a", 1, 4)

    (action,) = world.do(Asked(claim=replace(world.at("a").claim, ask_replicas=2)))

    assert action.reason == "shrink from 4 to 2: it asks for no more than 2 now"
    assert isinstance(
        world.do(Asked(claim=replace(world.at("a").claim, ask_replicas=0)))[0], Shrink
    )


def test_a_pool_that_shrinks_takes_from_the_lowest_class_first() -> None:
    """Also where the higher one would not take it back."""
    world = World(4, teams=(Team(name="x", reclaim=Reclaim(from_="never")),))
    world.ask("a", 1, 2, priority="high", team="x")
    world.ask("b", 1, 2, priority="low", team="x")

    (taken,) = world.do(DevicesSet(count=3))

    assert isinstance(taken, Shrink)
    assert (taken.name, taken.to) == ("b", 1)


def test_no_more_is_handed_out_than_may_be_in_use() -> None:
    """The pool was made smaller: two of four may be used, whichever, and a still has two."""
    world = World(4)
    world.ask("a", 2, priority="low")
    world.do(DevicesSet(count=2))

    (taken,) = world.ask("b", 2, priority="high")

    assert isinstance(taken, Suspend)
    assert world.at("b").devices == ()
    (given,) = world.do(Released(name="a", devices=(0, 1)))
    assert isinstance(given, Grant)
    assert given.name == "b"


def test_who_comes_later_does_not_overtake_one_that_waits_for_all_it_is_promised() -> None:
    """Else small claims could keep a large one waiting with what was given back for it."""
    world = World(4)
    world.ask("a", 4, priority="low")
    world.fixed("b", 3, priority="urgent")
    world.ask("c", 1, priority="normal")
    assert [world.at(name).share for name in "abc"] == [0, 3, 1]

    assert world.do(Released(name="a", devices=(0,))) == ()

    given = world.do(Released(name="a", devices=(1, 2, 3)))
    assert [(one.name, len(one.devices)) for one in given if isinstance(one, Grant)] == [
        ("b", 3),
        ("c", 1),
    ]


def test_a_minimum_that_is_raised_before_it_was_handed_over_is_waited_for_as_a_whole() -> None:
    world = World(4)
    world.ask("a", 1, 4)
    world.ask("b", 2)

    world.do(Asked(claim=replace(world.at("b").claim, min_replicas=4, ask_replicas=4)))
    world.obey()

    assert world.shares() == {"a": 4, "b": 0}


def test_who_runs_goes_on_below_a_minimum_that_was_raised() -> None:
    world = World(4)
    world.fixed("a", 2)
    world.ask("b", 2)

    world.do(Asked(claim=replace(world.at("b").claim, min_replicas=3, ask_replicas=3)))

    assert world.at("b").replicas == 2
    assert world.do(Released(name="b", devices=world.at("b").devices)) == ()
    assert world.shares() == {"a": 2, "b": 0}


def test_what_is_missing_to_a_minimum_that_was_raised_is_given_all_at_once() -> None:
    world = World(7)
    world.fixed("a", 2)
    world.ask("b", 1, 5)
    world.do(Asked(claim=replace(world.at("b").claim, ask_replicas=1)))
    world.do(Released(name="b", devices=(2,)))
    world.do(Drained(devices=(0,)))  # a holds 0, 1 and 2 until it has given 0 back

    raised = replace(world.at("a").claim, min_replicas=4, ask_replicas=4)
    assert world.do(Asked(claim=raised)) == ()
    assert (world.at("a").replicas, world.at("a").drain) == (2, (0,))
    assert world.do(Released(name="a", devices=(0,))) == ()
    assert world.do(Released(name="b", devices=(3,))) == ()
    (whole,) = world.do(Released(name="b", devices=(4,)))

    assert isinstance(whole, Grant)
    assert (whole.to, whole.devices) == (4, (3, 4))


def test_who_runs_below_a_raised_minimum_gets_back_what_it_lost_all_at_once() -> None:
    world = World(6)
    world.ask("a", 2, 3, can_suspend=False)
    world.ask("b", 1, 3, can_suspend=False)
    raised = replace(world.at("a").claim, min_replicas=6, ask_replicas=6)
    world.do(Asked(claim=raised))
    world.do(Cordoned(devices=(0, 1)))
    world.do(Released(name="a", devices=(0, 1)))
    assert world.at("a").replicas == 1

    assert world.do(Released(name="b", devices=(3,))) == ()
    (whole,) = world.do(Released(name="b", devices=(4,)))

    assert isinstance(whole, Grant)
    assert (whole.to, whole.devices) == (3, (3, 4))


def test_a_new_value_of_a_class_changes_who_comes_first() -> None:
    world = World(2)
    world.ask("a", 1, 2)
    world.ask("b", 1, 2, priority="low")
    assert world.shares() == {"a": 2, "b": 0}

    world.do(ClassSet(priority=PriorityClass(name="low", value=5000)))

    assert world.shares() == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"min_replicas": 9}, "it needs at least 9 devices, and the pool has 8"),
        ({"min_replicas": 5, "team": "small"}, "team small has a limit of 4 (quota 4, borrow"),
        ({"min_replicas": 3, "ask_replicas": 2}, "it asks for 2, which is below its minimum of 3"),
        ({"kind": "fixed", "min_replicas": 1, "ask_replicas": 2}, "exactly its minimum, got min 1"),
        ({"priority": "vip"}, "no priority class 'vip'; there are high, low, normal, urgent"),
        ({"team": "c"}, "there is no team 'c'; there are default, small"),
        ({"sizes": (4, 2)}, "sizes must be ascending numbers from 1 on, got [4, 2]"),
        ({"sizes": (2, *range(1000))}, "11, 12, 13, 14, ...]"),
        ({"sizes": (3,), "ask_replicas": 2}, "none of its sizes [3] lies between 1 and the 2"),
        (
            {"min_replicas": 4, "ask_replicas": 4, "num_slots": 3},
            "above the 3 micro-batches of its step",
        ),
    ],
)
def test_a_claim_that_can_never_be_met_is_refused_in_a_sentence(
    change: dict[str, Any], sentence: str
) -> None:
    world = World(8, teams=[Team(name="small", quota=4, borrow_limit=0)])
    if "min_replicas" in change:
        change = {"ask_replicas": max(1, change["min_replicas"]), **change}

    (refused,) = world.do(Asked(claim=replace(Claim(name="a"), **change)))

    assert isinstance(refused, Refuse)
    assert sentence in refused.reason
    assert claims(world.pool) == ()


def test_a_known_claim_goes_on_as_it_was_when_a_change_is_refused() -> None:
    world = World(2)
    world.ask("a", 1, 2)
    before = world.at("a")

    world.do(Asked(claim=replace(before.claim, priority="vip")))

    assert world.at("a") == before


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (TeamSet(team=Team(name="a", quota=1, borrow_limit=0)), "below the minimum of 2 of its"),
        (TeamSet(team=Team(name="b", reclaim=Reclaim(by=("vip",)))), "by names 'vip', which is no"),
        (TeamRemoved(name="a"), "team a still has claims: mine"),
        (TeamRemoved(name="zz"), "there is no team 'zz' to remove"),
        (TeamRemoved(name="default"), "the team default cannot be removed"),
    ],
)
def test_settings_that_contradict_are_errors_and_change_nothing(
    event: Event, sentence: str
) -> None:
    world = World(8, teams=[Team(name="a", quota=4)])
    world.ask("mine", 2, 4, team="a")
    before = world.pool

    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(")):
        world.do(event)

    assert world.pool == before


def test_a_team_that_nobody_uses_can_go() -> None:
    world = World(2, teams=[Team(name="a")])
    world.ask("mine", 1, team="a")
    world.leave("mine")

    world.do(TeamRemoved(name="a"))

    assert [use.team.name for use in summary(world.pool).teams] == ["default"]


def test_there_is_no_deadline_where_nothing_is_waited_for() -> None:
    world = World(2)
    world.fixed("a", 2)

    assert next_deadline_s(world.pool) == math.inf
