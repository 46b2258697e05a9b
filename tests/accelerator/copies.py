"""Copies between a device and the host that go on beside training; run by ``test_sessions``.

Each check is played with other delays of the streams, as often as SIM_SEEDS says.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from tests.accelerator import checks, sim
from tests.accelerator.behaviour import Gate
from tests.engine import models
from tests.engine.comm.circle import BOUND_S, Running, over_sockets, wait_until
from torch.nn.attention import SDPBackend, sdpa_kernel

import pliant
from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.read import read_manifest
from pliant.checkpoint.store.open import open_storage
from pliant.core.step import batching
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.group import Group
from pliant.engine.device import here
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.exchange import Reduction
from pliant.engine.reduce.plan import ReductionPlan

SEEDS = int(os.environ.get("SIM_SEEDS", "2"))

NUMEL, NUM_BUCKETS, SLOTS = 20_000, 3, 3


def seeds(delay_us: int) -> Iterator[int]:
    for seed in range(SEEDS):
        sim.install().set_async(True, delay_us, seed)
        yield seed
    sim.install().set_async(True, 300, 0)


def choose_device() -> None:
    here.choose([torch.empty(0, device="sim")])


class Replica:
    """One of two in this process, on a thread of its own."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        parameters = [(f"w{number}", torch.empty(NUMEL, device="sim")) for number in range(3)]
        self.layout = Layout.of(parameters, bucket_bytes=4 * NUMEL)
        owned = batching.ownership(SLOTS, 2)
        self.plan = ReductionPlan.of(SLOTS, owned)
        self.nodes = batching.subtrees(SLOTS, owned[rank])
        self.reduction: Reduction | None = None

    def train(self, group: Group, first: int, breaks: Callable[[int], None] | None) -> None:
        """Reduce three steps; ``breaks``: called in the last one, first and in its middle."""
        now = self.reduction = Reduction(group, self.layout, self.plan, previous=self.reduction)
        flats = [[torch.empty(NUMEL, device="sim") for _ in self.nodes] for _ in range(NUM_BUCKETS)]
        for step in range(first, first + 3):
            is_broken = breaks is not None and step == first + 2
            for bucket, partials in enumerate(flats):
                if breaks is not None and is_broken and bucket in (0, NUM_BUCKETS - 1):
                    breaks(bucket)
                    if bucket:
                        return
                for node, flat in zip(self.nodes, partials, strict=True):
                    flat.fill_(float((node.hi - node.lo) * (step + 1) * (bucket + 1)))
                now.launch(bucket, partials)
            reduced = now.finish()
            for bucket, each in enumerate([each.cpu() for each in reduced]):
                wanted = float(SLOTS * (step + 1) * (bucket + 1))
                assert bool((each == wanted).all()), (step, bucket, wanted, each.min(), each.max())


class LateCopies:
    """Holds copies of a step back until the same ones of a later step have come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
        self.is_holding = False
        self.gates: list[tuple[torch.Stream, Gate]] = []
        self._addresses: set[int] = set()
        device: Any = here.device
        fetch, put, join = device.fetch, device.put, device.join

        def late_fetch(tensors: Any, into: Any, mark: Any) -> Any:
            self._hold(device._stream_of(tensors[0].device), way == "fetch")
            wait = fetch(tensors, into, mark)

            def wait_and_let_go(check: Any) -> None:
                wait(check)
                self.let_go(way == "fetch")

            return wait_and_let_go

        def late_put(source: Any, into: Any) -> Any:
            if self.is_holding:
                self._addresses.add(into.data_ptr())
            self._hold(device._stream_of(into.device), way == "put")
            return put(source, into)

        def join_and_let_go(mark: Any, used: Any) -> None:
            join(mark, used)
            if not self.is_holding and used.data_ptr() in self._addresses:  # used again
                mark.synchronize()
                self.let_go(way == "put")

        monkeypatch.setattr(device, "fetch", late_fetch)
        monkeypatch.setattr(device, "put", late_put)
        monkeypatch.setattr(device, "join", join_and_let_go)

    def _hold(self, stream: torch.Stream, is_meant: bool) -> None:
        if self.is_holding and is_meant:
            with stream:
                self.gates.append((stream, Gate()))

    def let_go(self, is_meant: bool = True) -> None:
        while is_meant and not self.is_holding and self.gates:
            stream, gate = self.gates.pop()
            gate.open()
            stream.synchronize()


def check_what_an_abandoned_step_still_copies_is_in_no_later_one() -> None:
    choose_device()
    for way in (way for _ in seeds(1000) for way in ("fetch", "put")):
        with pytest.MonkeyPatch.context() as monkeypatch:
            late, replicas = LateCopies(monkeypatch, way), [Replica(0), Replica(1)]
            for generation in range(3):
                train_a_generation(replicas, generation, late, breaks=generation < 2)
            late.let_go()


def train_a_generation(
    replicas: list[Replica], generation: int, late: LateCopies, *, breaks: bool
) -> None:
    groups = [Group(member, collective_s=60.0) for member in over_sockets(2, 60.0)]
    both = threading.Barrier(2)
    late.is_holding = False

    def end(bucket: int) -> None:
        both.wait(BOUND_S)
        late.is_holding = True
        if bucket:  # in the middle of the step
            wait_until(lambda: bool(late.gates))
            for group in groups:
                group.abandon("killed")
        both.wait(BOUND_S)

    running = [
        Running(lambda r=r, g=g: r.train(g, 3 * generation, end if breaks else None))  # type: ignore[misc]
        for r, g in zip(replicas, groups, strict=True)
    ]
    for each in running:
        assert each.result(60.0) is None
    for group in groups:
        group.abandon("over")


def check_a_thread_that_waits_for_a_device_that_hangs_leaves_with_its_group() -> None:
    choose_device()
    gate, replica = Gate(), Replica(0)
    groups = [Group(member, collective_s=60.0) for member in over_sockets(2, 60.0)]
    reduction = Reduction(groups[0], replica.layout, replica.plan)
    reduction.launch(0, [torch.ones(NUMEL, device="sim") for _ in replica.nodes])
    thread = groups[0]._thread
    assert thread is not None

    ending = Running(lambda: groups[1].abandon("killed"))  # the other side notices

    assert ending.ends_within(BOUND_S)
    ending = Running(lambda: groups[0].abandon("told to"))
    assert ending.ends_within(BOUND_S)
    assert not thread.is_alive()
    gate.open()


def check_what_is_kept_may_be_changed_at_once_and_keeping_waits_for_nothing() -> None:
    choose_device()
    device: Any = here.device
    state = [torch.ones(NUMEL, device="sim"), torch.ones(6, 8, device="sim").t()]
    kept = [torch.empty(one.shape, pin_memory=True) for one in state]
    with device._stream_of(torch.device("sim:0")):
        gate = Gate()
    given_up = threading.Event()

    def check() -> None:
        if given_up.is_set():
            raise GroupBroken(1, "given up")

    with sim.install().waits() as waits:
        wait = device.fetch(state, kept)
        for one in state:
            one.add_(1)
        del state, one
        torch.zeros(NUMEL, device="sim")
    assert not waits
    waiting = Running(lambda: wait(check))
    assert not waiting.ends_within(0.05)
    given_up.set()
    assert waiting.ends_within(BOUND_S)
    gate.open()
    wait(lambda: None)
    assert all(bool((one == 1.0).all()) for one in kept)


def kept_states(model: str, device: str, *, is_settled: bool) -> dict[int, dict[str, Any]]:
    """Train, keeping what can be; return the digests of what each step's checkpoint holds."""
    case = models.build(model, randomness=False)
    if device != "cpu":
        sim.move(case, device)

    sessions: list[pliant.Session] = []

    def settle() -> None:
        if is_settled:
            wait_until(lambda: sessions[0]._parts._saver.is_settled)

    with TemporaryDirectory() as place, sdpa_kernel(SDPBackend.MATH):
        kept = pliant.Checkpoint(place, every="1steps", keep=100)
        models.train(case, 6, checkpoint=kept, on_session=sessions.append, on_batch=settle)
        names = [path.parent.name for path in Path(place).glob(f"*/{layout.MANIFEST}")]
        manifests = [read_manifest(open_storage(place), name) for name in names]
    return {
        one.committed: {
            item.name: [chunk.digest for chunk in item.chunks]
            for item in one.items
            if item.kind == "tensor"
        }
        for one in manifests
    }


def check_a_checkpoint_has_the_state_of_its_step_while_training_goes_on() -> None:
    for model in ("gpt", "cnn"):
        on_host = kept_states(model, "cpu", is_settled=True)
        assert on_host.keys() >= {1, 2, 3, 4, 5, 6}
        between = 0
        for seed in seeds(300):
            found = kept_states(model, "sim", is_settled=False)
            between += len(found.keys() - {6})
            for committed, state in found.items():
                assert state == on_host[committed], (model, seed, committed)
        assert between, "no checkpoint was taken while training went on"


if __name__ == "__main__":
    checks.main(globals())
