"""Exchange: add up the members' partial sums of each bucket.

Owns how partial sums travel and in which order they are added, for any ownership.  Must not know:
autograd, what a slot is, when a step commits.

Exact: the additions are those of the fold plan, element by element, whoever does them; so the
result is the same bits for every ownership, every number of members and both ways to travel.

    members of one host               read each other's partials in place: ``reduce.shared_memory``
    members of several hosts          so within a host, then hosts among them: ``reduce.hostwise``

or, through sockets, and always for small buckets and the extras:

    two members, one partial each     both swap their partials and add
    small buckets                     everybody gets all partials and folds them
    else                              W shards: everybody gets all partials of its own shard, folds
                                      them and broadcasts the result

Fast: the same with one partial per member, added in rank order.  A partial is only ever read.

Measured with ``python -m benchmarks.exchange --replicas W --slots K --windows`` (43 MB, 2 cores,
torch 2.13; wall time over all-reduce of the same buckets in place by gloo, which loses the
partials; ``docs/explanation/exchange.md``):

             W=2 K=8   W=3 K=12   W=4 K=8
    windows    0.27       0.57      0.39     (fast 0.24 to 0.43)
    sockets    0.65       1.43      0.90
    gloo       0.85       1.91      1.10     as it was before
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pliant.engine.comm.communicator import Communicator
from pliant.engine.comm.group import Group, Ticket
from pliant.engine.device import here, memory
from pliant.engine.device.base import Mark
from pliant.engine.device.memory import Scratch
from pliant.engine.reduce.buckets import SHARED, Bucket, Layout
from pliant.engine.reduce.hostwise import Hostwise
from pliant.engine.reduce.plan import BlockwiseFold, ReductionPlan, as_real, shard_cuts
from pliant.engine.reduce.shared_memory import SMALL_BYTES, Shared, ThroughWindows, fit


class Reduction:
    """Reduces one step after another over one group and one ownership.

    Per step: ``launch`` each bucket once, in the same order on all members, then ``finish``.
    """

    def __init__(
        self,
        group: Group,
        layout: Layout,
        plan: ReductionPlan,
        *,
        exact: bool = True,
        previous: Reduction | None = None,
    ) -> None:
        """Prepare to reduce ``layout``'s buckets over ``group``; layout and plan are everybody's.

        Args:
            exact: by the fold plan, else one partial per member.
            previous: the reduction of an earlier generation, whose buffers are taken over as far
                as nothing can still write into them.  A result of its last step stays valid.
        """
        if len(plan.partials) != group.size:
            raise ValueError(f"a plan for {len(plan.partials)} ranks, a group of {group.size}")
        self.group = group
        self.layout = layout
        windows = group.shared
        self._plan = plan if exact else plan.one_each(() if windows is None else windows.hosts)
        self._blockwise = BlockwiseFold(self._plan)
        self._shared: ThroughWindows | None = None
        if windows is not None and fit(windows, layout, self._plan):
            if len(windows.hosts) == 1:
                self._shared = Shared(windows, layout, self._plan, group.rank)
            else:
                self._shared = Hostwise(windows, layout, self._plan, group.rank)
        self.lent: Sequence[Sequence[torch.Tensor]] = (
            () if self._shared is None else self._shared.lent
        )
        """By bucket, where the partials are best added up: the others read them there.

        Nothing where they may lie anywhere.  All may: what lies elsewhere is copied.
        """
        self._sets: list[list[torch.Tensor | None]] = [self._no_buffers(), self._no_buffers()]
        self._turn = 0
        self._staged: dict[int, Sequence[torch.Tensor]] = {}
        """By bucket, where partials of an accelerator are in host memory.

        Of this reduction alone: a copy that nobody waits for any more may still come."""
        self._landed: dict[int, Mark] = {}
        """By bucket, when its result has come back to the accelerator that it is for."""
        self._tickets: dict[int, Ticket[torch.Tensor]] = {}
        self._finished = True
        self._told = b""
        self._num_shared = 0
        self.shared: list[bytes] = []
        """What each member has told in the last step, in rank order; empty: nobody anything."""
        self._scratch = Scratch()
        if previous is not None and previous.layout.digest == layout.digest:
            self._turn, self._sets, self._scratch = previous.give_away()

    def launch(self, bucket_index: int, partials: Sequence[torch.Tensor]) -> None:
        """Start reducing one bucket; returns in microseconds; may be called from a backward hook.

        The partials (contiguous, flat, one per maximal subtree in slot order; in fast mode one,
        weights already applied) must not be changed before ``finish`` returned, and never again
        if it raised.  On a broken group it does nothing: ``finish`` tells.
        """
        if self._finished:
            self._finished = False
            self._turn ^= 1
            self._tickets = {}
        bucket = self.layout.buckets[bucket_index]
        expected = self._plan.partials[self.group.rank]
        if len(partials) != expected or bucket_index in self._tickets:
            raise ValueError(f"bucket {bucket_index}: {len(partials)} partials of {expected}")
        if any(p.numel() != bucket.numel or p.dtype != bucket.dtype for p in partials):
            raise ValueError(f"bucket {bucket_index}: a partial of another size or dtype")
        if self.group.size == 1:
            root = partials[0]
            self._tickets[bucket_index] = self.group.submit(lambda _: root)
            return
        self._tickets[bucket_index] = self.group.submit(self._job_for(bucket, partials))

    def tell(self, payload: bytes) -> None:
        """Say what all members are to learn beside this step's sums, before ``finish``.

        It travels if the sum of the extras' ``SHARED`` says that somebody has something to tell.
        """
        self._told = payload

    def finish(self) -> list[torch.Tensor]:
        """Wait for all buckets; return the reduced flat tensors by bucket index.

        They stay intact until the first ``launch`` of the step after the next one; the caller may
        change them.  With one member the result is its partial itself.

        Raises:
            GroupBroken: a peer failed or the group was abandoned.
        """
        if len(self._tickets) != len(self.layout.buckets):
            raise ValueError(f"{len(self._tickets)} of {len(self.layout.buckets)} buckets launched")
        reduced = []
        for bucket in self.layout.buckets:
            result = self._tickets[bucket.index].wait()
            if (landed := self._landed.pop(bucket.index, None)) is not None:
                here.device.join(landed, result)
            reduced.append(result)
        self.shared = []
        if self.layout.extras and reduced[-1][SHARED]:
            self._num_shared += 1
            self.shared = self.group.share(f"told/{self._num_shared}", self._told)
        self._finished = True
        return reduced

    def _job_for(
        self, bucket: Bucket, partials: Sequence[torch.Tensor]
    ) -> Callable[[Communicator], torch.Tensor]:
        """Return what the communication thread does with a bucket, wherever that is."""
        if bucket.device == self.group.device:
            return self._on_the_device(bucket, partials)
        buffers = self._sets[self._turn]
        reduced = buffers[bucket.index]
        if reduced is None:
            in_host = memory.lasting if bucket.is_in_host_memory else here.device.staging
            reduced = buffers[bucket.index] = in_host(bucket.numel, bucket.dtype)
        if bucket.is_in_host_memory:
            return self._job(bucket.index, partials, reduced)
        return self._through_the_host(bucket, partials, reduced)

    def _on_the_device(
        self, bucket: Bucket, partials: Sequence[torch.Tensor]
    ) -> Callable[[Communicator], torch.Tensor]:
        """Reduce what is on an accelerator from there to there, behind this moment."""
        job = _Job(bucket.empty(), tuple(partials), self._plan, self._blockwise, self._scratch)
        mark = here.device.mark(bucket.device)  # behind whatever had that memory before

        def reduce(comm: Communicator) -> torch.Tensor:
            with here.device.behind(mark, bucket.device):
                return job.reduce(comm)

        return reduce

    def _job(
        self, bucket_index: int, partials: Sequence[torch.Tensor], reduced: torch.Tensor
    ) -> Callable[[Communicator], torch.Tensor]:
        shared = self._shared
        if shared is None or not shared.serves(bucket_index):
            job = _Job(reduced, tuple(partials), self._plan, self._blockwise, self._scratch)
            return job.reduce

        def read(comm: Communicator) -> torch.Tensor:
            shared.reduce(comm, bucket_index, partials, reduced)
            return reduced

        return read

    def _through_the_host(
        self, bucket: Bucket, partials: Sequence[torch.Tensor], reduced: torch.Tensor
    ) -> Callable[[Communicator], torch.Tensor]:
        """Reduce what is on an accelerator: to the host behind this moment, and back."""
        staged = self._staged.get(bucket.index)
        if staged is None:
            staged = [here.device.staging(bucket.numel, bucket.dtype) for _ in partials]
            self._staged[bucket.index] = staged
        job = self._job(bucket.index, staged, reduced)
        result = bucket.empty()
        mark = here.device.mark(bucket.device)  # behind whatever had that memory before

        def stage(comm: Communicator) -> torch.Tensor:
            here.device.fetch(partials, staged, mark)(comm.check_members)
            self._landed[bucket.index] = here.device.put(job(comm), result)
            return result

        return stage

    def _no_buffers(self) -> list[torch.Tensor | None]:
        return [None] * len(self.layout.buckets)

    def give_away(self) -> tuple[int, list[list[torch.Tensor | None]], Scratch]:
        """Give the buffers to a later generation's reduction: which set was last, and all of them.

        New memory would cost a page fault per 4 KB in the first step.  The set of the last step
        comes second, for its result may still be wanted.
        """
        if not self._finished:  # that step was broken off: nothing may write into these late
            self.group.abandon("its last step was broken off")
        last, sets, scratch = self._turn, self._sets, self._scratch
        self._sets, self._scratch = [self._no_buffers(), self._no_buffers()], Scratch()
        return last, sets, scratch


class _Job:
    """The reduction of one bucket, as the communication thread runs it."""

    def __init__(
        self,
        reduced: torch.Tensor,
        partials: tuple[torch.Tensor, ...],
        plan: ReductionPlan,
        blockwise: BlockwiseFold,
        scratch: Scratch,
    ) -> None:
        self._result = reduced
        self._reduced = as_real(reduced)
        self._partials = [as_real(partial) for partial in partials]
        self._plan = plan
        self._blockwise = blockwise
        self._scratch = scratch

    def reduce(self, comm: Communicator) -> torch.Tensor:
        if self._reduced.numel() == 0:
            return self._result
        if self._plan.partials == (1, 1):
            self._swap(comm)
        elif self._reduced.nbytes <= SMALL_BYTES:
            whole = slice(0, self._reduced.numel())
            self._blockwise.fold(self._collect(comm, [whole] * comm.size), self._reduced)
        else:
            self._by_shards(comm)
        return self._result

    def _swap(self, comm: Communicator) -> None:
        comm.swap(self._partials[0], self._reduced)
        pair = [self._reduced, self._reduced]
        pair[comm.rank] = self._partials[0]
        torch.add(pair[0], pair[1], out=self._reduced)

    def _by_shards(self, comm: Communicator) -> None:
        cuts = shard_cuts(self._reduced.numel(), comm.size)
        pieces = self._collect(comm, cuts)
        if pieces:
            self._blockwise.fold(pieces, self._reduced[cuts[comm.rank]])
        comm.all_gather([self._reduced[cut] for cut in cuts])

    def _collect(self, comm: Communicator, cuts: Sequence[slice]) -> list[torch.Tensor]:
        """Return this member's cut of all partials, numbered through; give the others theirs.

        Own partials stay where they are.
        """
        cut, counts = cuts[comm.rank], self._plan.partials
        length = cut.stop - cut.start
        num_theirs = self._plan.num_partials - counts[comm.rank]
        memory = self._scratch.provide(num_theirs * length, self._reduced)
        theirs = [memory[length * place : length * (place + 1)] for place in range(num_theirs)]
        senders = [rank for rank, count in enumerate(counts) for _ in range(count)]
        receives = zip((rank for rank in senders if rank != comm.rank), theirs, strict=True)
        sends = [(rank, partial[cuts[rank]]) for rank in comm.others for partial in self._partials]
        comm.wait(comm.post(sends=sends, receives=receives))
        before = sum(counts[: comm.rank])
        mine = [partial[cut] for partial in self._partials]
        return [*theirs[:before], *mine, *theirs[before:]] if length else []
