"""A plan of faults has what it promises, whatever the seed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.chaos.plan import CARDS, DECK, LASTS_S, LINKS, MOST_S, OFF, ChaosPlan, Kind

from pliant.testing import faults

HOSTS = ("a", "b", "c", "d")

SEEDS = st.integers(0, 10**9)


def plan_of(seed: int, num_faults: int, *, has_minutes: bool = True) -> ChaosPlan:
    return ChaosPlan.of(seed, num_faults, HOSTS, gap_s=4.0, has_minutes=has_minutes)


@given(SEEDS, st.integers(1, 200))
def test_times_are_in_order_and_every_fault_ends(seed: int, num_faults: int) -> None:
    plan = plan_of(seed, num_faults)

    assert [fault.number for fault in plan.faults] == list(range(1, num_faults + 1))
    times = [fault.at_s for fault in plan.faults]
    assert times == sorted(times)
    assert all(0 <= fault.lasts_s <= MOST_S for fault in plan.faults)
    assert all((fault.lasts_s > 0) == (fault.kind in LASTS_S) for fault in plan.faults)
    assert plan.ends_s <= times[-1] + MOST_S


@given(SEEDS)
def test_a_whole_deck_lacks_no_kind_of_fault(seed: int) -> None:
    plan = plan_of(seed, 2 * DECK)

    assert Counter(fault.kind for fault in plan.faults) == {k: 2 * n for k, n in CARDS.items()}


@given(SEEDS, st.integers(1, 200), st.booleans())
def test_a_seed_means_one_plan(seed: int, num_faults: int, has_minutes: bool) -> None:
    plan, again = (plan_of(seed, num_faults, has_minutes=has_minutes) for _ in range(2))

    assert plan == again


@given(SEEDS, st.integers(1, 100))
def test_a_longer_plan_begins_as_a_shorter_one(seed: int, num_faults: int) -> None:
    assert plan_of(seed, 2 * num_faults).faults[:num_faults] == plan_of(seed, num_faults).faults


@given(SEEDS)
def test_a_short_plan_has_nothing_that_lasts_for_minutes(seed: int) -> None:
    plan = plan_of(seed, DECK, has_minutes=False)

    assert max(fault.lasts_s for fault in plan.faults) <= 20


@given(SEEDS)
def test_all_hosts_are_off_only_where_the_plan_says_all(seed: int) -> None:
    plan = plan_of(seed, 10 * DECK)
    off = [fault for fault in plan.faults if fault.kind in OFF]

    for fault in off:
        before = [one for one in off if one.number < fault.number and one.ends_s > fault.at_s]
        away = {name for one in before for name in one.hosts}
        assert not away & set(fault.hosts), "nobody is switched off twice"
        assert fault.kind is Kind.ALL_DIE or away | set(fault.hosts) != set(HOSTS)


@given(SEEDS)
def test_a_cut_names_the_links_that_its_kind_means(seed: int) -> None:
    for fault in plan_of(seed, DECK).faults:
        links = set(fault.links)
        assert bool(links) == (fault.kind in LINKS)
        assert len(links) == len(fault.links)
        back = {(receiver, sender) for sender, receiver in links}
        match fault.kind:
            case Kind.LINK | Kind.CUT_OFF:
                assert links == back
            case Kind.LINK_ONE_WAY:
                assert len(links) == 1
            case Kind.DUMB:
                assert {sender for sender, _ in links} == set(fault.hosts)
                assert len(links) == len(HOSTS) - 1
            case Kind.DEAF:
                assert {receiver for _, receiver in links} == set(fault.hosts)
                assert len(links) == len(HOSTS) - 1
            case _:
                pass


@given(SEEDS)
def test_replicas_get_faults_that_can_be_read(seed: int) -> None:
    placed = faults.parse(plan_of(seed, DECK).placed)

    assert placed
    assert "r1" not in {fault.replica for fault in placed}
    assert len({fault.replica for fault in placed}) == len(placed)
