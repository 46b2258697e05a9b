"""The exchange as it was before pliant had sockets of its own: over ``ProcessGroupGloo``.

A baseline for figures, no more: it does not find gloo's sockets, so an abandoned group stays.  The
way of exchanging is the old one, too: all-to-all with splits, in turns, and broadcasts of shards.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any, cast

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from pliant.engine.comm.communicator import Communicator, OperationFailed, Piece, Transfer
from pliant.engine.comm.mesh import parse_endpoint
from pliant.engine.comm.rendezvous import Rendezvous
from pliant.engine.comm.transport import SocketTransport
from pliant.engine.comm.windows import Window
from pliant.engine.reduce import exchange
from pliant.engine.reduce.plan import shard_sizes
from pliant.engine.reduce.shared_memory import SMALL_BYTES

CONNECT_S = 60.0

_LOOK_S = 0.2

_Gloo = cast("Any", dist.ProcessGroupGloo)


class GlooTransfer(Transfer):
    """Gloo's point-to-point operations of one ``post``."""

    __slots__ = ("works",)

    def __init__(self, works: list[Any]) -> None:
        super().__init__()
        self.works = works


class GlooCommunicator(Communicator):
    """One connected gloo group, used by one communication thread."""

    def __init__(
        self,
        generation: int,
        *,
        rank: int,
        size: int,
        store: Store,
        address: str,
        collective_s: float,
    ) -> None:
        """Connect to all members; blocks until they do the same."""
        super().__init__(generation, rank=rank, size=size)
        self._store = PrefixStore(f"g{generation}", store)
        self._collective_s = collective_s
        options = _Gloo._Options()  # noqa: SLF001
        options._devices = [_Gloo.create_device(hostname=address, lazy_init=False)]  # noqa: SLF001
        options._timeout = timedelta(seconds=CONNECT_S)  # noqa: SLF001
        self._group = _Gloo(self._store, rank, size, options)
        self._group.set_timeout(timedelta(seconds=collective_s))
        self._tags: dict[tuple[str, int], int] = {}
        self._bell: queue.SimpleQueue[torch.futures.Future[Any] | None] = queue.SimpleQueue()

    def post(self, *, sends: Iterable[Piece] = (), receives: Iterable[Piece] = ()) -> Transfer:
        """Start gloo's point-to-point operations."""
        self.check()
        with _failures():
            works = [
                self._group.recv([tensor], rank, self._tag("from", rank))
                for rank, tensor in receives
                if tensor.numel()
            ]
            works += [
                self._group.send([tensor], rank, self._tag("to", rank))
                for rank, tensor in sends
                if tensor.numel()
            ]
        return GlooTransfer(works)

    def wait(self, *transfers: Transfer) -> None:
        """Wait for each operation."""
        for transfer in transfers:
            for work in cast("GlooTransfer", transfer).works:
                with _failures():
                    work.wait()

    def share(self, name: str, payload: bytes) -> list[bytes]:
        """Exchange through the store."""
        self._store.set(f"{name}/{self.rank}", payload.decode())
        return [self._store.get(f"{name}/{rank}") for rank in range(self.size)]

    def abandon(self, reason: str) -> None:
        """Wake the communication thread; gloo goes on until its time-out."""
        self.end.set(reason)
        self._bell.put(None)

    def close(self) -> None:
        """Leave the connections to the end of the process: a slower member may need them."""

    # --- collectives, as they were --------------------------------------------------------

    def all_reduce(self, source: torch.Tensor, total: torch.Tensor) -> None:
        """Gloo's own; in place if both are the same."""
        if total is not source:
            total.copy_(source)
        with _failures():
            work = self._group.allreduce(total)
        self.run(work)

    def rows(self, row: torch.Tensor) -> torch.Tensor:
        """All-to-all: gloo's all-gather passes the rows along a ring."""
        source = row.repeat(self.size)
        rows = torch.empty_like(source)
        splits = [row.numel()] * self.size
        self.run(self.exchange(rows, source, splits, splits))
        return rows.view(self.size, row.numel())

    def meet(self, ranks: Iterable[int] | None = None) -> None:
        """All-to-all of a byte each; always of all."""
        here = torch.zeros(self.size, dtype=torch.uint8)
        ones = [1] * self.size
        self.run(self.exchange(torch.empty_like(here), here, ones, ones))

    def exchange(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        source_splits: Sequence[int],
    ) -> Any:
        """Start an all-to-all: piece ``r`` of ``source`` goes to rank ``r``."""
        self.check()
        with _failures():
            return self._group.alltoall_base(output, source, output_splits, source_splits)

    def spread(self, tensor: torch.Tensor, root: int) -> Any:
        """Start a broadcast."""
        self.check()
        with _failures():
            return self._group.broadcast(tensor, root)

    def run(self, *works: Any) -> None:
        """Wait until all of these collectives have completed, or the group ends."""
        for work in works:
            work.get_future().add_done_callback(self._bell.put)
        deadline_at = time.monotonic() + self._collective_s
        for _ in works:
            future = self._listen(deadline_at)
            self.check()
            if future is not None:
                with _failures():
                    future.value()

    def _listen(self, deadline_at: float) -> torch.futures.Future[Any] | None:
        while (now := time.monotonic()) < deadline_at:
            try:
                return self._bell.get(timeout=min(_LOOK_S, deadline_at - now))
            except queue.Empty:
                continue
        raise self.broken(f"no answer within {self._collective_s:g} s")

    def _tag(self, way: str, rank: int) -> int:
        self._tags[way, rank] = self._tags.get((way, rank), -1) + 1
        return self._tags[way, rank]


class GlooTransport(SocketTransport):
    """Meets through a store and exchanges over gloo; windows as over sockets."""

    def __init__(self, store: Store, *given: Any) -> None:
        super().__init__(*given)
        self._store = store

    def _connected(
        self, rendezvous: Rendezvous, window: Window | None, collective_s: float
    ) -> Communicator:
        communicator = GlooCommunicator(
            rendezvous.generation,
            rank=rendezvous.rank,
            size=rendezvous.size,
            store=self._store,
            address=parse_endpoint(rendezvous.endpoints[rendezvous.rank])[0],
            collective_s=collective_s,
        )
        own = None if window is None else asdict(window.address)
        offers = communicator.share("greeting", json.dumps(own).encode())
        self._share_windows(communicator, window, dict(enumerate(map(json.loads, offers))))
        return communicator


class GlooReduction(exchange.Reduction):
    """Reduces as it was done over gloo."""

    def _job(
        self, bucket_index: int, partials: Sequence[torch.Tensor], reduced: torch.Tensor
    ) -> Callable[[Communicator], torch.Tensor]:
        if self._shared is not None and self._shared.lent[bucket_index]:
            return super()._job(bucket_index, partials, reduced)
        job = GlooJob(reduced, tuple(partials), self._plan, self._blockwise, self._scratch)
        return job.reduce


class GlooJob(exchange._Job):  # noqa: SLF001
    """The reduction of one bucket, as it was done over gloo."""

    def reduce(self, comm: Communicator) -> torch.Tensor:
        """Swap, or everything to everybody, or shards."""
        if self._reduced.numel() == 0:
            return self._result
        if self._plan.partials == (1, 1):
            self._swap(comm)
        elif self._reduced.nbytes <= SMALL_BYTES:
            self._all_to_everybody(cast("GlooCommunicator", comm))
        else:
            self._by_shards(comm)
        return self._result

    def _swap(self, comm: Communicator) -> None:
        numel = self._reduced.numel()
        splits = [0, numel] if comm.rank == 0 else [numel, 0]
        gloo = cast("GlooCommunicator", comm)
        gloo.run(gloo.exchange(self._reduced, self._partials[0], splits, splits))
        pair = [self._reduced, self._reduced]
        pair[comm.rank] = self._partials[0]
        torch.add(pair[0], pair[1], out=self._reduced)

    def _all_to_everybody(self, comm: GlooCommunicator) -> None:
        counts, numel = self._plan.partials, self._reduced.numel()
        own = torch.cat(self._partials).repeat(comm.size)
        everything = self._scratch.provide(sum(counts) * numel, own)
        receives = [count * numel for count in counts]
        sends = [counts[comm.rank] * numel] * comm.size
        comm.run(comm.exchange(everything, own, receives, sends))
        self._blockwise.fold(torch.split(everything, numel), self._reduced)

    def _by_shards(self, comm: Communicator) -> None:
        gloo = cast("GlooCommunicator", comm)
        sizes = shard_sizes(self._reduced.numel(), gloo.size)
        received = self._receive_shards(gloo, sizes)
        shards = torch.split(self._reduced, sizes)
        if sizes[gloo.rank]:
            self._blockwise.fold(received, shards[gloo.rank])
        gloo.run(*[gloo.spread(s, root) for root, s in enumerate(shards) if s.numel()])

    def _receive_shards(self, comm: GlooCommunicator, sizes: list[int]) -> list[torch.Tensor]:
        """Return this member's shard of all partials, numbered through.

        One all-to-all per partial of the member that has most; who has fewer sends nothing.
        """
        counts, mine = self._plan.partials, sizes[comm.rank]
        memory = self._scratch.provide(sum(counts) * mine, self._reduced)
        pieces: dict[tuple[int, int], torch.Tensor] = {}
        works = []
        offset = 0
        for turn in range(max(counts)):
            senders = [rank for rank, count in enumerate(counts) if count > turn]
            target = memory[offset : offset + len(senders) * mine]
            for place, rank in enumerate(senders):
                pieces[rank, turn] = target[place * mine : (place + 1) * mine]
            is_sender = turn < len(self._partials)
            works.append(
                comm.exchange(
                    target,
                    self._partials[turn] if is_sender else memory[:0],
                    [mine if rank in senders else 0 for rank in range(comm.size)],
                    sizes if is_sender else [0] * comm.size,
                )
            )
            offset += target.numel()
        comm.run(*works)
        return [pieces[rank, turn] for rank, count in enumerate(counts) for turn in range(count)]


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise OperationFailed(str(error).splitlines()[0]) from None
