"""What a job asks of its pool, may use of it, when its turn comes, and what it gives back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core import tenancy
from pliant.core.policy.decide import Policy
from pliant.core.tenancy import (
    BURST,
    MOST_CLAIMS,
    MOST_NOTICE_S,
    REST_S,
    Admission,
    Allowance,
    Demand,
    Swap,
    Tenancy,
    Visitor,
    demand_of,
    end_asked,
    end_life,
    first_demand,
    follow_offer,
    in_devices,
    is_over,
    next_demand,
    occupy,
    swap_for,
    vacate,
)

NEW = Tenancy(min_replicas=1)


def offered(
    tenancy: Tenancy,
    devices: set[int] | frozenset[int],
    replicas: int,
    *,
    revision: int = 0,
    pool: str = "p",
    suspend: bool = False,
) -> Tenancy:
    return follow_offer(
        tenancy,
        pool=pool,
        revision=revision or tenancy.revision + 1,
        devices=frozenset(devices),
        replicas=replicas,
        suspend=suspend,
    )


def using(tenancy: Tenancy, *devices: int) -> Tenancy:
    return occupy(tenancy, frozenset(devices))


def test_what_is_offered_may_be_used_and_is_held() -> None:
    tenancy = offered(NEW, {2, 0, 1}, 3)

    assert tenancy.holds == (0, 1, 2)
    assert tenancy.room == 3


def test_its_turn_comes_with_its_minimum_and_not_before() -> None:
    tenancy = offered(Tenancy(min_replicas=2), {0}, 1)
    assert (tenancy.admission, tenancy.room) == (Admission.WAITING, 0)

    tenancy = offered(tenancy, {0, 1}, 2)
    assert (tenancy.admission, tenancy.room) == (Admission.RUNNING, 2)


def test_fewer_replicas_than_the_minimum_do_not_end_its_turn() -> None:
    """Only the pool knows why; the core holds what is left until more come."""
    tenancy = offered(Tenancy(min_replicas=2), {0, 1}, 2)

    tenancy = offered(tenancy, {0}, 1)

    assert (tenancy.admission, tenancy.room) == (Admission.RUNNING, 1)


def test_fewer_replicas_than_devices_cost_nothing_while_all_are_used() -> None:
    tenancy = offered(using(offered(NEW, {0, 1, 2}, 3), 0, 1, 2), {0, 1, 2}, 2)

    assert tenancy.holds == (0, 1, 2)
    assert tenancy.room == 2
    assert tenancy.unwanted == set()


def test_the_device_that_is_left_first_is_given_back() -> None:
    tenancy = offered(using(offered(NEW, {0, 1, 2}, 3), 0, 1, 2), {0, 1, 2}, 2)

    assert using(tenancy, 0, 2).holds == (0, 2)


def test_a_device_without_a_process_is_given_back_at_once() -> None:
    tenancy = offered(using(offered(NEW, {0, 1, 2}, 3), 1), {0, 1, 2}, 1)

    assert tenancy.holds == (1,)


def test_an_idle_device_is_kept_while_there_are_no_more_than_replicas() -> None:
    tenancy = using(offered(NEW, {0, 1, 2}, 3), 0)

    assert using(tenancy).holds == (0, 1, 2)


def test_a_device_that_is_no_longer_offered_must_be_left_and_is_held_until_then() -> None:
    tenancy = offered(using(offered(NEW, {0, 1}, 2), 0, 1), {0, 4}, 2)

    assert tenancy.unwanted == {1}
    assert tenancy.holds == (0, 1, 4)
    assert tenancy.room == 2
    assert using(tenancy, 0, 4).holds == (0, 4)


def test_an_offer_that_is_not_newer_changes_nothing() -> None:
    tenancy = offered(NEW, {0, 1}, 2, revision=5)

    assert offered(tenancy, {0}, 1, revision=5) == tenancy
    assert offered(tenancy, set(), 0, revision=4, suspend=True) == tenancy


def test_the_offers_of_another_life_of_the_pool_begin_anew() -> None:
    tenancy = offered(NEW, {0, 1}, 2, revision=5)

    assert offered(tenancy, {0}, 1, revision=1, pool="q").holds == (0,)


def test_a_job_that_is_suspended_holds_its_devices_until_its_processes_are_gone() -> None:
    tenancy = using(offered(NEW, {0, 1}, 2, revision=5), 0, 1)

    tenancy = offered(tenancy, {0, 1}, 0, suspend=True)
    assert (tenancy.admission, tenancy.holds) == (Admission.SUSPENDING, (0, 1))
    assert using(tenancy, 1).holds == (1,)

    tenancy = vacate(tenancy)
    assert (tenancy.admission, tenancy.holds, tenancy.is_suspended) == (Admission.WAITING, (), True)


def test_a_job_that_was_suspended_goes_on_only_by_a_newer_offer() -> None:
    tenancy = offered(using(offered(NEW, {0, 1}, 2), 0, 1), {0, 1}, 0, revision=5, suspend=True)
    tenancy = vacate(tenancy)

    assert offered(tenancy, {0, 1}, 2, revision=5).admission is Admission.WAITING
    again = offered(tenancy, {0, 1}, 2, revision=6)
    assert (again.admission, again.holds, again.is_suspended) == (Admission.RUNNING, (0, 1), False)


def test_a_suspension_that_is_taken_back_is_carried_out_all_the_same() -> None:
    """The job has been told to stop; it goes on from its checkpoint at once."""
    tenancy = offered(using(offered(NEW, {0}, 1), 0), {0}, 0, suspend=True)

    tenancy = offered(tenancy, {0}, 1)

    assert tenancy.admission is Admission.SUSPENDING
    assert vacate(tenancy).is_suspended


def test_a_job_that_has_not_run_was_not_suspended() -> None:
    assert not vacate(offered(Tenancy(min_replicas=2), {0}, 1)).is_suspended
    assert vacate(offered(NEW, {0}, 1)).is_suspended


DEVICES = st.frozensets(st.integers(0, 5))
OFFERS = st.tuples(DEVICES, st.integers(0, 6), st.booleans())
MOVES = st.lists(st.one_of(OFFERS, DEVICES, st.none()), max_size=20)


@given(MOVES)
def test_a_used_device_is_never_given_back_and_nothing_is_used_that_was_not_offered(
    moves: list[tuple[frozenset[int], int, bool] | frozenset[int] | None],
) -> None:
    """Processes start on usable devices only, as the agent sees to, and end whenever they like."""
    tenancy = Tenancy(min_replicas=2)
    for move in moves:
        before = tenancy
        if isinstance(move, tuple):
            tenancy = offered(tenancy, move[0], move[1], suspend=move[2])
            assert tenancy.usable <= move[0]
            assert tenancy.used == before.used
        elif move is None:
            tenancy = vacate(tenancy)
            assert (tenancy.holds, tenancy.admission) == ((), Admission.WAITING)
        else:
            starts = frozenset() if tenancy.admission is Admission.WAITING else tenancy.usable
            tenancy = occupy(tenancy, (starts | tenancy.used) & move)
            assert tenancy.usable <= before.usable, "only an offer gives"
        assert set(tenancy.holds) >= tenancy.used
        assert tenancy.room <= tenancy.replicas
        surplus = len(tenancy.usable) - tenancy.replicas
        assert surplus <= 0 or tenancy.usable <= tenancy.used, "idle devices are given back first"


@pytest.mark.parametrize(
    ("policy", "ask", "least", "sizes"),
    [
        (Policy(min_replicas=2), 5, 2, None),
        (Policy(min_replicas=2, replica_increment_step=1), 5, 2, None),
        (Policy(min_replicas=2, replica_increment_step=2), 7, 2, (2, 4, 6)),
        (Policy(min_replicas=2, replica_discrete_values=(2, 4, 8)), 4, 2, (2, 4)),
        (Policy(min_replicas=2, replica_increment_step=2, spares=1), 7, 2, None),
    ],
)
def test_the_outside_is_told_the_sizes_of_which_others_are_of_no_use(
    policy: Policy, ask: int, least: int, sizes: tuple[int, ...] | None
) -> None:
    demand = demand_of(policy, ask_replicas=ask)

    assert (demand.min_replicas, demand.ask_replicas, demand.sizes) == (least, ask, sizes)


@pytest.mark.parametrize(
    ("policy", "ask"),
    [
        (Policy(min_replicas=2), 2),
        (Policy(min_replicas=2, max_replicas=6), 6),
        (Policy(min_replicas=2, max_replicas=6, start_replicas=3), 3),
        (Policy(max_replicas=6, spares=1), 7),
    ],
)
def test_a_job_asks_at_first_for_what_someone_has_said_and_else_for_its_minimum(
    policy: Policy, ask: int
) -> None:
    demand = first_demand(policy)

    assert (demand.min_replicas, demand.ask_replicas) == (policy.min_replicas, ask)


def test_a_job_without_bounds_asks_for_more_only_once_its_steps_are_known() -> None:
    policy = Policy(min_replicas=2)
    before = replace(first_demand(policy), team="vision", priority="high")

    unknown = next_demand(demand_of(policy, ask_replicas=8), before, policy)
    known = next_demand(demand_of(policy, ask_replicas=8, num_slots=4), before, policy)

    assert unknown == before
    assert known == replace(before, ask_replicas=8, num_slots=4)


def test_a_job_with_bounds_asks_for_what_its_policy_wants_at_once() -> None:
    policy = Policy(min_replicas=2, max_replicas=8)
    before = first_demand(policy)

    assert next_demand(demand_of(policy, ask_replicas=5), before, policy).ask_replicas == 5
    assert next_demand(demand_of(policy, ask_replicas=0), before, policy).ask_replicas == 2


def test_what_was_known_of_its_steps_is_not_forgotten_by_another_life() -> None:
    policy = Policy(max_replicas=4)
    before = replace(first_demand(policy), num_slots=8, can_suspend=True)

    assert next_demand(demand_of(policy, ask_replicas=4), before, policy) == before


def test_who_is_suspended_for_others_gives_everything_back_and_comes_again() -> None:
    tenancy = offered(using(offered(NEW, {0}, 1), 0), {0}, 0, suspend=True)

    tenancy = end_life(end_asked(using(tenancy), reason="another needs its device"))

    assert (tenancy.holds, tenancy.is_suspended) == ((), True)
    assert not is_over(tenancy, exit_code=3)
    assert is_over(tenancy, exit_code=0)


def test_who_was_stopped_by_a_person_keeps_its_devices_to_its_end() -> None:
    running = end_asked(using(offered(NEW, {0}, 1), 0))
    suspended = end_asked(offered(using(offered(NEW, {0}, 1), 0), {0}, 0, suspend=True))

    for ended in (running, suspended):
        assert end_life(ended).holds == (0,)
        assert is_over(end_life(ended), exit_code=3)


@pytest.mark.parametrize(
    ("held", "devices", "replicas", "swap"),
    [
        ((), (3, 1, 4), 2, Swap(leave=(), take=(1, 3))),
        ((0, 1), (0, 1), 2, Swap(leave=(), take=())),
        ((0, 1), (0, 1, 5), 3, Swap(leave=(), take=())),
        ((0, 1), (1, 4, 5), 3, Swap(leave=(0,), take=(4,))),
        ((0, 1), (4, 5), 2, Swap(leave=(0, 1), take=(4, 5))),
        ((0, 1), (0, 1), 1, None),
        ((0, 1), (0,), 2, None),
        ((), (), 0, None),
    ],
)
def test_a_fixed_claim_holds_as_many_as_it_asked_for_of_those_that_are_offered(
    held: tuple[int, ...], devices: tuple[int, ...], replicas: int, swap: Swap | None
) -> None:
    assert swap_for(held, 2, devices=devices, replicas=replicas, suspend=False) == swap
    assert swap_for(held, 2, devices=devices, replicas=replicas, suspend=True) is None


def test_a_demand_asks_for_one_device_of_the_default_team_unless_it_says_more() -> None:
    assert Demand() == Demand(team="default", priority="normal", min_replicas=1, ask_replicas=1)


def test_a_job_with_replicas_of_several_workers_asks_for_devices_in_whole_replicas() -> None:
    demand = Demand(min_replicas=1, ask_replicas=3, num_slots=12)

    assert in_devices(demand, 1) is demand
    assert in_devices(demand, 4) == Demand(
        min_replicas=4, ask_replicas=12, sizes=(4, 8, 12), num_slots=48
    )
    assert in_devices(replace(demand, sizes=(1, 3)), 4).sizes == (4, 12)
    many = in_devices(Demand(min_replicas=3, ask_replicas=50_000), 2)
    assert (len(many.sizes or ()), many.ask_replicas) == (4096, 2 * 4098)
    assert in_devices(Demand(ask_replicas=0, num_slots=5_000_001), 2) == Demand(
        min_replicas=2, ask_replicas=0, sizes=None, num_slots=10_000_000
    )


@given(slots=st.integers(1, 100), replicas=st.integers(1, 100), workers=st.integers(1, 8))
def test_what_one_more_replica_is_worth_is_the_same_in_devices(
    slots: int, replicas: int, workers: int
) -> None:
    asked = in_devices(Demand(ask_replicas=replicas, num_slots=slots), workers)

    assert asked.num_slots is not None
    rounds = -(-asked.num_slots // asked.ask_replicas)
    assert rounds == -(-slots // replicas)


ADA = Visitor(uid=1001, pid=7, user="ada")
BOB = Visitor(uid=1002, pid=8, user="bob")
OWNER = Visitor(uid=1000, pid=9, user="cy", is_owner=True)
FOR_ADA = {"vision": ("ada",)}


URGENT = {"urgent": ()}


def refused(who: Visitor, wanted: Demand, *, before: Demand | None = None) -> str:
    return tenancy.claim_refusal(who, wanted, before=before, teams=FOR_ADA, classes=URGENT)


def test_no_user_has_a_claim_of_anothers_name() -> None:
    assert tenancy.claim_name("ada", "gpt") != tenancy.claim_name("bob", "gpt")
    assert tenancy.is_of("ada", "ada/gpt")
    assert not tenancy.is_of("ada", "ad/gpt")
    assert not tenancy.is_of("ad", "ada/gpt")


def test_what_is_everybodys_is_for_the_owner_to_change() -> None:
    assert tenancy.administration_refusal(OWNER, owner="cy") == ""
    assert tenancy.administration_refusal(BOB, owner="cy") == (
        "only cy, whose pool it is, and root may do this; you are bob"
    )


def test_a_team_and_a_class_are_for_those_who_are_named() -> None:
    def refusal(who: Visitor, team: str, priority: str) -> str:
        wanted = Demand(team=team, priority=priority)
        return refused(who, wanted)

    assert refusal(ADA, "vision", "normal") == ""
    assert refusal(BOB, "vision", "normal") == "team vision is for ada, and you are bob"
    assert refusal(BOB, "default", "normal") == ""
    assert refusal(ADA, "vision", "urgent") == (
        "class urgent is for nobody but its owner, and you are ada"
    )
    assert refusal(OWNER, "vision", "urgent") == ""


def test_who_is_taken_off_a_team_may_go_on_as_before_and_change_nothing_to_it() -> None:
    before = Demand(team="vision", priority="normal", ask_replicas=4)

    assert refused(BOB, replace(before, ask_replicas=2), before=before) == ""
    assert "class urgent is for" in refused(BOB, replace(before, priority="urgent"), before=before)
    assert "team vision is for ada" in refused(BOB, before, before=Demand(team="default"))
    assert "team vision is for ada" in refused(BOB, before)


def test_no_claim_takes_longer_to_give_back_than_others_can_wait() -> None:
    long = Demand(notice_s=7200)

    assert refused(BOB, Demand(notice_s=MOST_NOTICE_S)) == ""
    assert refused(BOB, long) == (
        "a notice of 7200 s is too long for a pool that users share; ask for 3600 s at most"
    )
    assert refused(BOB, long, before=Demand()) == refused(BOB, long)
    assert refused(BOB, long, before=long) == ""
    assert refused(OWNER, long) == ""


def test_one_user_has_so_many_claims_and_no_more() -> None:
    assert tenancy.crowd_refusal(ADA, claims=MOST_CLAIMS - 1) == ""
    assert "ada has 64 claims" in tenancy.crowd_refusal(ADA, claims=MOST_CLAIMS)


@given(st.lists(st.floats(0, 30), max_size=300), st.floats(0, 1e6))
def test_nobody_changes_more_than_is_allowed_and_everybody_may_again(
    waits: list[float], begin_s: float
) -> None:
    """Whatever the pace: a burst and what time has given, and the wait that was said is enough."""
    allowance, now_s, made = Allowance(at_s=begin_s), begin_s, 0
    for wait_s in waits:
        now_s += wait_s
        allowance, again_s = tenancy.spend(allowance, now_s=now_s)
        made += again_s == 0.0
        assert made <= BURST + (now_s - begin_s) / REST_S + 1e-3
        assert 0.0 <= again_s <= REST_S
        if again_s:
            _, still_s = tenancy.spend(allowance, now_s=now_s + again_s + 1e-3)
            assert still_s == 0.0


def test_a_clock_that_stands_still_gives_nothing() -> None:
    allowance = Allowance(at_s=5.0)
    for _ in range(BURST):
        allowance, again_s = tenancy.spend(allowance, now_s=5.0)
        assert again_s == 0.0

    assert tenancy.spend(allowance, now_s=5.0)[1] == REST_S
    assert tenancy.spend(allowance, now_s=4.0)[1] == REST_S
