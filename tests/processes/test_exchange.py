"""Exact reduction over real groups equals the fold of one process, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from tests.processes.crew import Member, crew

from pliant.core.step import batching
from pliant.engine.comm.group import Group
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.exchange import Reduction
from pliant.engine.reduce.plan import ReductionPlan, fold

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

WAYS = ("windows", "sockets")


def a_layout() -> Layout:
    """Small and large buckets, float64 and complex ones, sizes that W does not divide."""
    return Layout.of(
        [
            ("embedding", torch.empty(101, 31)),
            ("half", torch.empty(257, 7, dtype=torch.bfloat16)),
            ("scalar", torch.empty(())),
            ("double", torch.empty(33, dtype=torch.float64)),
            ("large double", torch.empty(4_999, dtype=torch.float64)),
            ("complex", torch.empty(19, 3, dtype=torch.complex64)),
            ("large complex", torch.empty(4_797, dtype=torch.complex64)),
            ("last", torch.empty(9_001)),
        ],
        extras=23,
        bucket_bytes=40_000,
    )


@cache
def slot_gradients(layout: Layout, slot: int, step: int) -> list[torch.Tensor]:
    """Values of very different magnitude, so that every order of addition shows."""
    generator = torch.Generator().manual_seed(1000 * step + slot)
    gradients = []
    for bucket in layout.buckets:
        real = torch.float64 if bucket.dtype in (torch.float64, torch.complex128) else torch.float32
        shape = (bucket.numel, 2) if bucket.dtype.is_complex else (bucket.numel,)
        values = torch.randn(shape, generator=generator, dtype=real)
        values *= 10.0 ** torch.randint(-6, 7, shape, generator=generator)
        gradients.append(torch.view_as_complex(values) if bucket.dtype.is_complex else values)
    return gradients


@cache
def node_sum(layout: Layout, node: batching.Node, step: int) -> list[torch.Tensor]:
    if node.hi - node.lo == 1:
        return slot_gradients(layout, node.lo, step)
    left, right = (node_sum(layout, child, step) for child in batching.children(node))
    return [a + b for a, b in zip(left, right, strict=True)]


def lend(reduction: Reduction, sums: Sequence[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Put this member's sums by bucket where the reduction wants them, as accumulation does."""
    partials = []
    for bucket in reduction.layout.buckets:
        flats = [part[bucket.index] for part in sums]
        if reduction.lent and reduction.lent[bucket.index]:
            for place, flat in zip(reduction.lent[bucket.index], flats, strict=True):
                place.copy_(flat)
            flats = list(reduction.lent[bucket.index])
        partials.append(flats)
    return partials


def is_exact(
    reduction: Reduction, nodes: Sequence[batching.Node], num_slots: int, step: int
) -> bool:
    """Whether a step gives the bits of one process, and leaves the sums of ``nodes`` alone."""
    layout = reduction.layout
    partials = lend(reduction, [node_sum(layout, node, step) for node in nodes])
    before = [[flat.clone() for flat in flats] for flats in partials]
    for index, flats in enumerate(partials):
        reduction.launch(index, flats)
    reduced = reduction.finish()
    alone = node_sum(layout, batching.root(num_slots), step)
    equal = all(map(same_bits, reduced, alone))
    return equal and all(
        same_bits(a, b)
        for was, now in zip(before, partials, strict=True)
        for a, b in zip(was, now, strict=True)
    )


def reduce_all(member: Member, counts: list[int]) -> list[tuple[int, str, bool]]:
    """For every K: two steps through windows, then through sockets, each over a new group.

    Compare with the sums of one process.
    """
    layout = a_layout()
    outcome: list[tuple[int, str, bool]] = []
    previous = None
    for num_slots in counts:
        owned = batching.ownership(num_slots, len(member.endpoints))
        plan = ReductionPlan.of(num_slots, owned)
        nodes = batching.subtrees(num_slots, owned[member.rank])
        for way in WAYS:
            generation = len(outcome) + 1
            group = member.build(generation, layout=layout, plan=plan if way == "windows" else None)
            reduction = Reduction(group, layout, plan, previous=previous)
            previous = reduction
            for step in range(2):
                is_right = is_exact(reduction, nodes, num_slots, step)
                outcome.append((num_slots, used(group), is_right))
            group.all_gather(torch.ones(1))  # as a commit: nobody reads any more
            group.retire()
    return outcome


def used(group: Group) -> str:
    return "sockets" if group.shared is None else "windows"


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 5])
def test_every_ownership_gives_the_bits_of_one_process(num_replicas: int) -> None:
    counts = list(range(num_replicas, 25))

    with crew(num_replicas) as members:
        outcomes = members.everybody(reduce_all, counts)

    ways = WAYS if num_replicas > 1 else ("sockets", "sockets")
    assert (
        outcomes
        == [[(k, way, True) for k in counts for way in ways for _ in range(2)]] * num_replicas
    )


def reduce_fast(member: Member, way: str) -> bool:
    layout = a_layout()
    size = len(member.endpoints)
    plan = ReductionPlan.of(2 * size, batching.ownership(2 * size, size)).one_each()
    group = member.build(
        WAYS.index(way) + 1, layout=layout, plan=plan if way == "windows" else None
    )
    assert used(group) == (way if size > 1 else "sockets")
    reduction = Reduction(group, layout, plan, exact=False)
    mine = slot_gradients(layout, group.rank, 0)
    before = [part.clone() for part in mine]
    for bucket in layout.buckets:
        reduction.launch(bucket.index, [mine[bucket.index]])
    reduced = reduction.finish()
    total = [slot_gradients(layout, rank, 0) for rank in range(size)]
    near = all(
        torch.allclose(result, torch.stack(parts).sum(0), rtol=1e-5, atol=1.0)
        for result, parts in zip(reduced, map(list, zip(*total, strict=True)), strict=True)
    )
    group.retire()
    return near and all(map(same_bits, mine, before))


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_fast_reduction_adds_up_and_leaves_the_partials_alone(num_replicas: int) -> None:
    with crew(num_replicas) as members:
        for way in WAYS:
            assert members.everybody(reduce_fast, way) == [True] * num_replicas


def abandon_and_go_on(member: Member, way: str) -> str:
    """Complete a step, break the next one off, go on over a new group with the old buffers."""
    layout = Layout.of([("weight", torch.empty(1_000_000))])
    plan = ReductionPlan.of(2, batching.ownership(2, 2))
    offered = plan if way == "windows" else None
    first = member.build(1, layout=layout, plan=offered)
    reduction = Reduction(first, layout, plan)
    reduction.launch(0, [torch.full((1_000_000,), 1.0)])
    kept = reduction.finish()[0]
    first.all_gather(torch.ones(1))
    reduction.launch(0, [torch.full((1_000_000,), 5.0)])
    first.abandon("a Reform came")
    second = member.build(2, layout=layout, plan=offered)
    reduction = Reduction(second, layout, plan, previous=reduction)
    if not bool((kept == 2.0).all()):
        return "the kept result was overwritten"
    for step in range(4):
        reduction.launch(0, [torch.full((1_000_000,), float(step))])
        if not bool((reduction.finish()[0] == 2.0 * step).all()):
            return f"step {step} is wrong"
    second.retire()
    return "right"


@pytest.mark.parametrize("way", WAYS)
def test_a_broken_off_step_does_not_reach_the_next_generation(way: str) -> None:
    with crew(2) as members:
        assert members.everybody(abandon_and_go_on, way) == ["right"] * 2


def test_the_fold_of_one_process_equals_the_tree() -> None:
    layout = a_layout()
    for num_slots in range(1, 25):
        for num_replicas in range(1, min(5, num_slots) + 1):
            owned = batching.ownership(num_slots, num_replicas)
            nodes = [n for part in batching.partials(num_slots, owned) for n in part]
            leaves = [node_sum(layout, node, 0)[0] for node in nodes]

            root = fold(ReductionPlan.of(num_slots, owned), leaves)

            assert same_bits(root, node_sum(layout, batching.root(num_slots), 0)[0])
