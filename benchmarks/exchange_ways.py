"""The ways to exchange one model's buckets that ``benchmarks.exchange`` compares.

Owns building a group of each and reducing over it.  Must not know what is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import certificates
from benchmarks.gloo_baseline import GlooReduction, GlooTransport
from benchmarks.processes import Member
from pliant.core.step import batching
from pliant.engine.comm.group import Group
from pliant.engine.comm.rendezvous import Rendezvous
from pliant.engine.comm.transport import SocketTransport, Transport
from pliant.engine.reduce import shared_memory
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.exchange import Reduction
from pliant.engine.reduce.plan import ReductionPlan

GLOO = "gloo"
"""The baseline: the exchange before pliant had sockets of its own."""

WAYS = (GLOO, "sockets", "tls", "gloo windows", "windows")


class Model(torch.nn.Module):
    """Ten million parameters in the proportions of a small GPT."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(256, 384)] + [(384, 1152), (384, 384), (384, 1536), (1536, 384)] * 6
        self.weights = torch.nn.ParameterList(torch.zeros(shape) for shape in sizes)

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        """Give every parameter a gradient at almost no cost."""
        return torch.stack([(weight * factor).sum() for weight in self.weights]).sum()


@dataclass(slots=True)
class Exchange:
    """One reduction over one group, and partials for it."""

    reduction: Reduction
    partials: list[list[torch.Tensor]]
    """By bucket, where the reduction wants them."""

    @property
    def group(self) -> Group:
        """Its group."""
        return self.reduction.group

    def launch(self) -> None:
        """Start with all buckets."""
        for index, partials in enumerate(self.partials):
            self.reduction.launch(index, partials)

    def run(self) -> list[torch.Tensor]:
        """Reduce all buckets."""
        self.launch()
        return self.reduction.finish()


@dataclass(slots=True)
class Builder:
    """Builds groups one after the other; all members build the same ones in the same order."""

    member: Member
    layout: Layout
    plan: ReductionPlan
    certificates: Path | None = None
    _generation: int = field(default=1000)

    @classmethod
    def of(
        cls, member: Member, model: torch.nn.Module, slots: int, certificates: Path | None = None
    ) -> Builder:
        """Prepare for a model, with as many slots."""
        layout = Layout.of(model.named_parameters(), extras=64)
        plan = ReductionPlan.of(slots, batching.ownership(slots, member.size))
        return cls(member, layout, plan, certificates)

    def build(self, way: str, *, exact: bool) -> Exchange:
        """Build a group and fill the partials with the same numbers for every way."""
        self._generation += 1
        plan = self.plan if exact else self.plan.one_each()
        settings = self.member.settings(self._generation, self.layout)
        lends = None
        if way.endswith("windows"):
            lends = shared_memory.window_size(self.layout, plan, self.member.rank)
        if way == "tls":
            assert self.certificates is not None
            settings["tls"] = certificates.contexts(self.certificates)
        reduce: Callable[..., Reduction] = Reduction
        transport: Transport = SocketTransport()
        if way.startswith(GLOO):
            transport, reduce = GlooTransport(self.member.store), GlooReduction
        group = transport.group(Rendezvous(**settings), lends=lends)
        if way.endswith("windows") and group.shared is None:
            raise RuntimeError(f"{way}: the members cannot read each other's windows")
        reduction = reduce(group, self.layout, plan, exact=exact)
        return Exchange(reduction, self._partials(reduction, plan.partials[self.member.rank]))

    def _partials(self, reduction: Reduction, count: int) -> list[list[torch.Tensor]]:
        generator = torch.Generator().manual_seed(self.member.rank)
        found = []
        for bucket in self.layout.buckets:
            flats = list(reduction.lent[bucket.index]) if reduction.lent else []
            found.append(flats or [bucket.empty() for _ in range(count)])
            for flat in found[-1]:
                flat.copy_(torch.randn(flat.shape, generator=generator, dtype=flat.dtype))
        return found


def check_alike(exchanges: dict[str, Exchange], *, exact: bool) -> None:
    """Compare the results of all ways with the first one's, bit for bit.

    Gloo's all-reduce adds in an order of its own: there only nearly.

    Raises:
        AssertionError: two results differ.
    """
    results = {way: [flat.clone() for flat in each.run()] for way, each in exchanges.items()}
    first = next(iter(results))
    size = exchanges[first].group.size
    for way, found in results.items():
        is_gloo = first == GLOO and way != GLOO
        for ours, theirs in zip(found, results[first], strict=True):
            if exact or size == 2 or not is_gloo:
                assert torch.equal(ours, theirs), f"{way} and {first} give other bits"
            else:
                torch.testing.assert_close(ours, theirs)


def gloo_all_reduce(group: Group, flats: list[torch.Tensor]) -> None:
    """Reduce in place, which loses the partials: what others do."""

    def job(comm: Any) -> None:
        for flat in flats:
            comm.all_reduce(flat, flat)

    group.submit(job).wait()
