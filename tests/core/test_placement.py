"""Where replicas go: as even as there is room for, or on as few sites as may be."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.errors import ConfigError
from pliant.core.placement import (
    Placement,
    PlacementRule,
    next_home,
    next_leaver,
    next_mover,
    site_of,
)
from pliant.core.values import Labels, NodeId

RACK = PlacementRule(how=Placement.SPREAD, label="rack")
TIGHT = PlacementRule(how=Placement.PACK, label="rack")

Cluster = tuple[dict[NodeId, int], dict[NodeId, Labels]]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Draw nodes with devices, in racks; some say nothing of one."""
    rooms = draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))
    racks = draw(st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=7, max_size=7))
    free = {NodeId(f"n{number}"): room for number, room in enumerate(rooms, start=1)}
    labels = {node: (("rack", r),) for node, r in zip(free, racks, strict=False) if r}
    return free, dict[NodeId, Labels](labels)


def filled(rule: PlacementRule, cluster: Cluster, count: int) -> list[NodeId]:
    """Start replicas one after another; return where each went."""
    free, labels = dict(cluster[0]), cluster[1]
    homes: list[NodeId] = []
    while free and len(homes) < count:
        homes.append(next_home(rule, free, homes, labels).node)
        free[homes[-1]] -= 1
        free = {node: room for node, room in free.items() if room}
    return homes


def counts(cluster: Cluster, homes: list[NodeId]) -> Counter[str]:
    return Counter(site_of(node, cluster[1], "rack") for node in homes)


def rooms(cluster: Cluster) -> Counter[str]:
    found = Counter[str]()
    for node, room in cluster[0].items():
        found[site_of(node, cluster[1], "rack")] += room
    return found


@given(cluster=clusters(), count=st.integers(0, 30))
def test_replicas_that_spread_differ_by_one_at_most_but_where_there_is_no_room(
    cluster: Cluster, count: int
) -> None:
    there = counts(cluster, filled(RACK, cluster, count))

    room = rooms(cluster)
    assert there.total() == min(count, room.total())
    for site in room:
        for other in room:
            assert there[site] <= there[other] + 1 or there[other] == room[other]


@given(cluster=clusters(), count=st.integers(0, 30))
def test_replicas_that_are_packed_are_on_as_few_sites_as_hold_them(
    cluster: Cluster, count: int
) -> None:
    there = counts(cluster, filled(TIGHT, cluster, count))

    largest = sorted(rooms(cluster).values(), reverse=True)
    fewest = next(n for n in range(len(largest) + 1) if sum(largest[:n]) >= there.total())
    assert len(there) == fewest


@given(cluster=clusters(), count=st.integers(1, 30), leaving=st.integers(1, 30))
def test_what_is_left_after_a_shrink_is_as_even_as_before(
    cluster: Cluster, count: int, leaving: int
) -> None:
    homes = filled(RACK, cluster, count)
    before = counts(cluster, homes)

    for _ in range(min(leaving, len(homes))):
        newest_first = homes[::-1]
        homes.remove(newest_first[next_leaver(RACK, newest_first, homes, cluster[1])])
        after = counts(cluster, homes)
        assert max(after.values(), default=0) in (max(before.values()), max(before.values()) - 1)
        gone = next(site for site in before if before[site] != after[site])
        assert before[gone] == max(before.values())
        before = after


@given(cluster=clusters(), count=st.integers(1, 30))
def test_a_shrink_of_what_is_packed_clears_a_site_before_it_touches_another(
    cluster: Cluster, count: int
) -> None:
    homes = filled(TIGHT, cluster, count)
    left_from: list[str] = []

    while homes:
        newest_first = homes[::-1]
        leaver = newest_first[next_leaver(TIGHT, newest_first, homes, cluster[1])]
        homes.remove(leaver)
        left_from.append(site_of(leaver, cluster[1], "rack"))

    assert len(list(dict.fromkeys(left_from))) == sum(
        1 for site, before in zip(left_from, ["", *left_from], strict=False) if site != before
    )


@given(cluster=clusters(), homes=st.lists(st.sampled_from(["n1", "n2", "n3"]), max_size=5))
def test_by_default_a_replica_starts_where_most_is_free_and_the_newest_leaves(
    cluster: Cluster, homes: list[str]
) -> None:
    free, labels = cluster
    nodes = [NodeId(home) for home in homes]

    choice = next_home(PlacementRule(), free, nodes, labels)

    assert choice == (max(sorted(free), key=lambda node: free[node]), "")
    if nodes:
        assert next_leaver(PlacementRule(), nodes, nodes, labels) == 0


def test_nodes_without_the_label_are_sites_of_their_own_and_named_so() -> None:
    free = {NodeId("n1"): 1, NodeId("n2"): 1}
    labels: dict[NodeId, Labels] = {NodeId("n1"): (("rack", "a"),)}

    assert next_home(RACK, free, [NodeId("n1")], labels) == (
        NodeId("n2"),
        "node n2, without a rack, has fewest of those with room",
    )
    assert next_home(RACK, free, [NodeId("n2")], labels) == (
        NodeId("n1"),
        "rack a has fewest of those with room",
    )


@pytest.mark.parametrize("text", ["free", "spread", "pack", "spread:rack", "pack:zone"])
def test_a_rule_is_written_as_it_is_read(text: str) -> None:
    assert str(PlacementRule.of(text)) == text


@pytest.mark.parametrize("text", ["", "even", "spread:", ":rack"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be one of free, spread, pack"):
        PlacementRule.of(text)


@given(cluster=clusters(), count=st.integers(1, 30))
def test_replicas_that_have_not_begun_are_as_even_as_if_all_nodes_had_come_at_once(
    cluster: Cluster, count: int
) -> None:
    """Nodes come one after another, and the first takes all that it has room for."""
    free, labels = dict[NodeId, int](), cluster[1]
    homes: list[NodeId] = []
    for node, room in cluster[0].items():
        free[node] = room
        moves = 0
        while (index := next_mover(RACK, homes, homes, free, labels)) is not None:
            assert (moves := moves + 1) <= len(homes)
            homes_left = [*homes[:index], *homes[index + 1 :]]
            gone, new = homes[index], next_home(RACK, free, homes_left, labels).node
            free = free | {gone: free.get(gone, 0) + 1}
            free[new] -= 1
            homes = [new, *homes_left]
            free = {n: room for n, room in free.items() if room}
        while free and len(homes) < count:
            homes.insert(0, next_home(RACK, free, homes, labels).node)
            free[homes[0]] -= 1
            free = {n: room for n, room in free.items() if room}

    there, at_once = counts(cluster, homes), counts(cluster, filled(RACK, cluster, count))
    assert sorted(there.values()) == sorted(at_once.values())


def test_what_is_packed_or_goes_anywhere_stays_where_it_began() -> None:
    free, homes = {NodeId("n2"): 4}, [NodeId("n1")] * 4

    for rule in (PlacementRule(), TIGHT):
        assert next_mover(rule, homes, homes, free, {}) is None
    assert next_mover(RACK, homes, homes, free, {}) == 0


def test_a_replica_starts_in_the_lowest_increment_with_room() -> None:
    labels = {NodeId(f"n{i}"): (("increment", f"x{i}"),) for i in (1, 2, 10)}
    free = {NodeId("n10"): 8, NodeId("n2"): 1}

    for rule in ("free", "spread", "pack"):
        assert next_home(PlacementRule.of(rule), free, [], labels).node == "n2"
        with_base = {**free, NodeId("n0"): 1}  # without a label it is of the base
        assert next_home(PlacementRule.of(rule), with_base, [], labels).node == "n0"
