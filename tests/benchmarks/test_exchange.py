"""The exchange over gloo, against which figures stand, is right; the network says what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from benchmarks.gloo_baseline import GlooReduction, GlooTransport
from torch._C._distributed_c10d import HashStore

from benchmarks import network
from pliant.core.step import batching
from pliant.engine.comm.communicator import Communicator
from pliant.engine.comm.group import Group
from pliant.engine.comm.mesh import Port
from pliant.engine.comm.rendezvous import Rendezvous
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.plan import ReductionPlan, fold

SHAPES = [(100, 300), (7,)]
"""A bucket that is cut into shards; the extras are one that is not."""


def on_every_rank(size: int, layout: Layout, use: Callable[[Group], Any]) -> list[Any]:
    """Connect so many threads over gloo, and return what each of them finds."""
    store, port = HashStore(), Port()
    seats = [(str(rank), port.endpoint) for rank in range(size)]

    def run(rank: int) -> Any:
        rendezvous = Rendezvous(
            generation=1,
            seats=seats,
            replica=str(rank),
            secret=b"",
            port=port,
            layout=layout,
        )
        group = GlooTransport(store).group(rendezvous)
        found = use(group)
        group.retire()
        return found

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


@pytest.mark.parametrize(("size", "slots"), [(2, 2), (3, 8)])
def test_the_baseline_adds_up_exactly_as_the_plan_says(size: int, slots: int) -> None:
    weights = [(str(n), torch.nn.Parameter(torch.zeros(s))) for n, s in enumerate(SHAPES)]
    layout = Layout.of(weights, extras=64)
    plan = ReductionPlan.of(slots, batching.ownership(slots, size))
    torch.manual_seed(0)
    partials = [
        [torch.randn(bucket.numel).to(bucket.dtype) for _ in range(plan.num_partials)]
        for bucket in layout.buckets
    ]

    def reduce(group: Group) -> list[torch.Tensor]:
        first = sum(plan.partials[: group.rank])
        reduction = GlooReduction(group, layout, plan)
        for index, of_all in enumerate(partials):
            reduction.launch(index, of_all[first : first + plan.partials[group.rank]])
        return reduction.finish()

    for reduced in on_every_rank(size, layout, reduce):
        for found, of_all in zip(reduced, partials, strict=True):
            assert torch.equal(found, fold(plan, of_all))


def test_the_baseline_has_what_groups_need_besides() -> None:
    def talk(group: Group) -> Any:
        def pass_on(comm: Communicator) -> torch.Tensor:
            theirs = torch.empty(3)
            mine = torch.full((3,), float(comm.rank))
            (other,) = comm.others
            comm.wait(comm.post(sends=[(other, mine)], receives=[(other, theirs)]))
            return theirs

        rows = group.all_gather(torch.tensor([group.rank]))
        return rows.flatten().tolist(), group.submit(pass_on).wait().tolist()

    assert on_every_rank(2, Layout.of([]), talk) == [([0, 1], [1.0] * 3), ([0, 1], [0.0] * 3)]


def test_without_root_there_is_no_network_and_a_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with pytest.raises(SystemExit, match="skipped: --network needs root"):
        network.chosen("1gbit")
    assert network.chosen(None) is None
