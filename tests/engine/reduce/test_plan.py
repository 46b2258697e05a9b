"""Folding block by block equals the plain fold, bit for bit, and only reads the partials."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from pliant.engine.reduce.plan import (
    BlockwiseFold,
    HostwisePlan,
    ReductionPlan,
    as_real,
    fold,
    shard_sizes,
)

DTYPES = [torch.float32, torch.float64, torch.complex64]
BLOCK = 256 * 1024 // 4


@st.composite
def plans(draw: st.DrawFn) -> ReductionPlan:
    num_slots = draw(st.integers(2, 40))
    cuts = draw(st.sets(st.integers(1, num_slots - 1), min_size=1, max_size=7))
    owners = [range(lo, hi) for lo, hi in pairwise([0, *sorted(cuts), num_slots])]
    plan = ReductionPlan.of(num_slots, owners)
    return draw(st.sampled_from([plan, plan.one_each()]))


def partials_of(plan: ReductionPlan, numel: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(numel)
    return [
        torch.randn(numel, dtype=dtype, generator=generator) * 10.0 ** (7 * (index % 3) - 7)
        for index in range(plan.num_partials)
    ]


@given(
    plan=plans(),
    numel=st.sampled_from([1, 15, 33, BLOCK // 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7]),
    dtype=st.sampled_from(DTYPES),
)
def test_every_plan_size_and_dtype_gives_the_bits_of_the_plain_fold(
    plan: ReductionPlan, numel: int, dtype: torch.dtype
) -> None:
    partials = partials_of(plan, numel, dtype)
    before = [partial.clone() for partial in partials]
    root, copy = torch.empty(numel, dtype=dtype), torch.empty(numel, dtype=dtype)

    folding = BlockwiseFold(plan)
    for _ in range(2):  # what is left in its memory does not matter
        folding.fold([as_real(p) for p in partials], as_real(root), copy=as_real(copy))

    alone = fold(plan, before)
    for result in (root, copy):
        assert torch.equal(result.view(torch.uint8), alone.view(torch.uint8))
    assert all(map(torch.equal, partials, before))


@given(plan=plans())
def test_additions_never_write_to_a_partial_and_end_at_the_root(plan: ReductionPlan) -> None:
    targets = [target for _, _, target in plan.additions]

    assert min(targets) >= plan.num_partials
    assert targets[-1] == plan.num_partials
    assert len(set(targets)) <= plan.num_partials // 2 + 1


@given(numel=st.integers(0, 10_000), num_shards=st.integers(1, 9))
def test_shards_tile_the_tensor_and_the_first_is_the_largest(numel: int, num_shards: int) -> None:
    sizes = shard_sizes(numel, num_shards)

    assert sum(sizes) == numel
    assert len(sizes) == num_shards
    assert sizes[0] == max(sizes)


# On several hosts


@given(plan=plans(), data=st.data())
def test_hosts_that_add_up_their_own_first_come_to_the_bits_of_the_plan(
    plan: ReductionPlan, data: st.DataObject
) -> None:
    """Wherever the members are, also where those of one host are no neighbours."""
    size = len(plan.partials)
    homes = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    hosts = [[r for r in range(size) if homes[r] == home] for home in dict.fromkeys(homes)]
    partials = partials_of(plan, 15, torch.float32)

    levels = HostwisePlan.of(plan, hosts)

    home = [h for r, count in enumerate(plan.partials) for h in [homes[r]] * count]
    sums = []
    for host, found in zip(dict.fromkeys(homes), levels.sums, strict=True):
        assert {home[n] for each in found for n in each.partials} == {host}
        sums += [fold(each.plan, [partials[n] for n in each.partials]) for each in found]
    root = fold(levels.outer, sums)
    assert torch.equal(root.view(torch.uint8), fold(plan, partials).view(torch.uint8))


def test_neighbouring_subtrees_of_one_host_leave_it_as_one_sum() -> None:
    plan = ReductionPlan.of(8, [range(2 * rank, 2 * rank + 2) for rank in range(4)])

    beside = HostwisePlan.of(plan, [[0, 1], [2, 3]])
    apart = HostwisePlan.of(plan, [[0, 2], [1, 3]])

    assert beside.outer.partials == (1, 1)
    assert apart.outer.partials == (2, 2)


def test_fast_reduction_adds_up_each_host_first() -> None:
    plan = ReductionPlan.of(4, [range(rank, rank + 1) for rank in range(4)])
    hosts = [[0, 2], [1, 3]]

    levels = HostwisePlan.of(plan.one_each(hosts), hosts)

    assert levels.outer.partials == (1, 1)
