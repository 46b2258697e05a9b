"""Checks of the exchange from device to device, by the stand-in; run by ``test_exchanges``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.accelerator import checks, sim
from tests.accelerator.stand_in import StandIn
from tests.engine.comm.circle import Running, over_sockets, wait_until

from pliant.core.step import batching
from pliant.engine.comm.communicator import Communicator, GroupBroken, SingleCommunicator
from pliant.engine.comm.device_communicator import DeviceCommunicator, LibraryError
from pliant.engine.comm.group import Group, Ticket
from pliant.engine.comm.sockets import SocketCommunicator
from pliant.engine.device import here
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.exchange import Reduction
from pliant.engine.reduce.plan import ReductionPlan, fold

sim.install()
WHERE = torch.device("sim", 0)
LONG_S = 60.0

DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
)


def members(size: int, **of_library: Any) -> list[Communicator]:
    """Return the members of one generation, connected, each with a library of its own."""
    libraries = [StandIn(**of_library) for _ in range(size)]
    return next_generation(libraries)


def next_generation(libraries: list[StandIn]) -> list[Communicator]:
    size = len(libraries)
    if size == 1:
        return [SingleCommunicator(7)]
    unique_id = libraries[0].unique_id()
    made: list[Communicator] = []
    for sockets, library in zip(over_sockets(size, LONG_S), libraries, strict=True):
        assert isinstance(sockets, SocketCommunicator)
        group = library.connect(unique_id, rank=sockets.rank, size=size, where=WHERE)
        made.append(DeviceCommunicator(sockets, library, group, where=WHERE, collective_s=LONG_S))
    for communicator in made:
        assert isinstance(communicator, DeviceCommunicator)
        communicator.connected(LONG_S)
    return made


@contextmanager
def groups(communicators: list[Communicator]) -> Iterator[list[Group]]:
    made = [Group(each, collective_s=LONG_S) for each in communicators]
    try:
        yield made
    finally:
        for group in made:
            group.abandon("the check is over")


def everywhere(made: list[Group], job: Callable[[Communicator], Any]) -> list[Ticket[Any]]:
    def on_its_stream(comm: Communicator) -> Any:
        with here.device.behind(here.device.mark(WHERE), WHERE):
            return job(comm)

    return [group.submit(on_its_stream) for group in made]


def pattern(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    return ((torch.arange(numel, device="cpu") * (rank + 3)) % 100).to(dtype)


def check_pieces_of_every_kind_and_size_arrive() -> None:
    for dtype in DTYPES:
        for numel in (0, 1, 1000, 200_000):

            def gather(
                comm: Communicator, dtype: torch.dtype = dtype, numel: int = numel
            ) -> list[torch.Tensor]:
                shards = [torch.zeros(numel, dtype=dtype, device=WHERE) for _ in range(comm.size)]
                shards[comm.rank] = pattern(comm.rank, numel, dtype).to(WHERE)
                comm.all_gather(shards)
                return shards

            with groups(members(3)) as made:
                for ticket in everywhere(made, gather):
                    for rank, shard in enumerate(ticket.wait()):
                        assert torch.equal(shard.cpu(), pattern(rank, numel, dtype)), (dtype, numel)


def check_host_memory_goes_by_sockets_meanwhile() -> None:
    with groups(members(2)) as made:
        tickets = everywhere(
            made, lambda comm: comm.rows(torch.full((2,), comm.rank, device="cpu"))
        )
        for ticket in tickets:
            assert ticket.wait().tolist() == [[0, 0], [1, 1]]
        assert [each.wait() for each in everywhere(made, lambda comm: comm.share("a", b"x"))]


def check_every_reduction_has_the_bits_of_the_plan() -> None:
    """Of one to five members, of any number of slots, and in fast mode."""
    for size in range(1, 6):
        with groups(members(size)) as made:
            for slots in sorted({size, size + 1, 2 * size, 7, 12}):
                if slots >= size:
                    _check_reduction(made, slots, is_exact=True)
            _check_reduction(made, 12, is_exact=False)


def _check_reduction(made: list[Group], slots: int, *, is_exact: bool) -> None:
    size = len(made)
    torch.manual_seed(size * 100 + slots)
    parameters = [("small", torch.zeros(7)), ("large", torch.zeros(9000, 3))]
    layout = Layout.of([(name, value.to(WHERE)) for name, value in parameters])
    plan = ReductionPlan.of(slots, batching.ownership(slots, size))
    used = plan if is_exact else plan.one_each()
    partials = [
        [torch.randn(bucket.numel, device="cpu") for bucket in layout.buckets]
        for _ in range(used.num_partials)
    ]
    wanted = [fold(used, [each[at] for each in partials]) for at in range(len(layout.buckets))]
    reductions = [Reduction(group, layout, plan, exact=is_exact) for group in made]
    owned = iter(partials)
    for reduction, count in zip(reductions, used.partials, strict=True):
        mine = [next(owned) for _ in range(count)]
        for at in range(len(layout.buckets)):
            pinned = [partial[at].pin_memory() for partial in mine]
            reduction.launch(at, [each.to(WHERE, non_blocking=True) for each in pinned])
    for reduction in reductions:
        for found, expected in zip(reduction.finish(), wanted, strict=True):
            assert found.device == WHERE
            assert torch.equal(found.cpu(), expected), (size, slots, is_exact)


def _swap_alone(made: list[Group]) -> Ticket[Any]:
    """Let the first member exchange with the second, who does nothing."""

    def swap(comm: Communicator) -> torch.Tensor:
        theirs = torch.zeros(1000, device=WHERE)
        comm.swap(torch.ones(1000, device=WHERE), theirs)
        return theirs

    return everywhere(made[:1], swap)[0]


def check_what_was_aborted_never_counts_though_it_looks_complete() -> None:
    with groups(members(2)) as made:
        ticket = _swap_alone(made)
        wait_until(lambda: _is_queued(made[0]))

        made[0].abandon("enough")

        _check_broken(ticket, "enough")
        torch.accelerator.synchronize(WHERE)  # aborted work has ended, and errors are none


def check_a_member_that_dies_is_noticed_by_its_socket() -> None:
    with groups(members(3)) as made:
        tickets = [_swap_of_three(made[0]), _swap_of_three(made[1])]
        wait_until(lambda: _is_queued(made[0]) and _is_queued(made[1]))

        communicator: Any = made[2]._communicator
        for connection in communicator._sockets._connections.values():
            connection.close()

        for ticket in tickets:
            _check_broken(ticket, "has ended")


def check_a_death_during_a_copy_to_the_host_is_noticed_by_the_socket() -> None:
    if not sim.install().is_async():
        return  # a copy is over at once
    release, is_over = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        release.wait(LONG_S)
        is_over.set()

    layout = Layout.of([("weight", torch.zeros(20, device=WHERE))])
    plan = ReductionPlan.of(2, batching.ownership(2, 2))
    with groups(over_sockets(2, LONG_S)) as made:
        reduction = Reduction(made[0], layout, plan)
        sim.install().launch(0, [], hold)
        reduction.launch(0, [torch.ones(20, device=WHERE)])

        made[1]._communicator.close()  # as the kernel does for a process that is killed

        try:
            with pytest.raises(GroupBroken, match="the connection to rank 1 has ended"):
                reduction.finish()
            assert not is_over.is_set()
        finally:
            release.set()


def _swap_of_three(group: Group) -> Ticket[Any]:
    def gather(comm: Communicator) -> None:
        comm.all_gather([torch.zeros(10, device=WHERE) for _ in range(comm.size)])

    return everywhere([group], gather)[0]


def check_the_next_group_waits_until_the_last_abort_has_returned() -> None:
    libraries = [StandIn(slow_abort_s=0.3) for _ in range(2)]
    with groups(next_generation(libraries)) as first:
        ticket = _swap_alone(first)
        wait_until(lambda: _is_queued(first[0]))
        ending = [
            Running(lambda group=group: group.abandon("shrinks"))  # type: ignore[misc]
            for group in first
        ]
        with groups(next_generation(libraries)) as second:
            tickets = everywhere(second, lambda comm: comm.swap(*_pair()))
            for each in tickets:
                each.wait()
        for thread in ending:
            thread.result()
        _check_broken(ticket, "shrinks")

    for library in libraries:
        aborted = library.journal.index(("aborted", 1))
        assert aborted < library.journal.index(("queued", 2)), library.journal


def check_a_retired_group_gives_way_to_the_next_one() -> None:
    libraries = [StandIn() for _ in range(2)]
    first = [Group(each, collective_s=LONG_S) for each in next_generation(libraries)]
    with groups(next_generation(libraries)) as second:
        for ticket in everywhere(first, lambda comm: comm.swap(*_pair())):
            ticket.wait()
        for group in first:
            group.retire()
        for ticket in everywhere(second, lambda comm: comm.swap(*_pair())):
            ticket.wait()


def check_many_threads_may_abandon_at_once() -> None:
    with groups(members(2, slow_abort_s=0.1)) as made:
        ticket = _swap_alone(made)
        ready = threading.Barrier(4)

        def abandon() -> None:
            ready.wait()
            made[0].abandon("one of many")

        for each in [Running(abandon) for _ in range(4)]:
            each.result()
        _check_broken(ticket, "one of many")


def check_a_library_that_refuses_is_named() -> None:
    with pytest.raises(LibraryError, match="no NVLink"):
        members(2, refuses="no NVLink here")


def _pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(100, device=WHERE), torch.zeros(100, device=WHERE)


def _is_queued(group: Group) -> bool:
    communicator: Any = group._communicator
    return ("queued", 1) in communicator._library.journal


def _check_broken(ticket: Ticket[Any], why: str) -> None:
    with pytest.raises(GroupBroken, match=why):
        ticket.wait(LONG_S)


if __name__ == "__main__":
    here.choose([torch.zeros(1, device=WHERE)])
    checks.main(dict(globals()))
