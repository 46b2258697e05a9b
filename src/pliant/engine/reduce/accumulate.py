"""Accumulate: one replica's sums of slot gradients, along the tree.

Owns the leaves of a step from the moment autograd has finished one until the partial sums lie in
flat buffers.  Must not know sessions, groups, the protocol, or what happens to the sums.

    hook of a parameter --leaf--> its stack --merges of this visit--> ... --last--> flat buffer

Every parameter has a stack of sums of its own and merges by binary counting as soon as its leaf
exists, while the leaf is still in the cache (measured: 0.98 of plain accumulation, against 1.02
for merging at the end of a slot).  The first of a slot's merges is autograd's where it can be: the
newest sum lies in ``.grad`` during the backward, and the leaf is added to it in place, as in plain
accumulation (a prototype: 0.94 of merging in the hook).  A leaf that is only kept for now goes onto
its stack at the end of its slot: a hook that runs between two kernels costs several times what a
loop does.  So small parameters have no hook where others of their bucket have one: their leaves
are taken together, when the last of those hooks has fired, or the backward has ended.  The last
merge of a part, and all behind the first outermost one, write into the flat buffer that is sent.
An absent leaf counts as +0.0, always, so that -0.0 + absent gives +0.0 whether the two meet here
or on another replica: the bits are a function of the number of slots alone.

A captured leaf is never written to unless nothing else has its memory (``has_own_memory``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

import torch

from pliant.core.errors import UsageError
from pliant.engine.device import here
from pliant.engine.local_tensors import is_sharded
from pliant.engine.reduce import gradient_tree
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.gradient_tree import (
    GradientColumn,
    added,
    checked_leaf,
    has_own_memory,
    is_watched,
    zero_frozen,
)

UNKNOWN_ATTEMPTS = 3
"""Attempts until it is known whose versions rise in each forward.  The forward of an attempt's
first slot may have run before the attempt began, which was then not seen to raise any."""

BucketReady = Callable[[int], None]

LeavesOf = Callable[[torch.Tensor], Sequence[torch.Tensor] | None]
"""Takes a gradient apart into those of all slots of a pass; None: it is of this slot alone."""


class GradientSums:
    """Captures every parameter's gradient per slot and adds the slots up.

    ``begin`` an attempt; per slot ``open``, any backward inside ``capturing``, ``close``; then
    ``partials`` of each bucket.  ``forget_buffers`` after a group was abandoned that may still
    read or write them.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        layout: Layout,
        *,
        is_shared: bool = False,
    ) -> None:
        """``is_shared``: other workers compute slots of these sums, too (``take_leaves``)."""
        self._leaves_of: LeavesOf | None = None
        self._buckets = layout.buckets[: layout.extras_index]
        self.num_buckets = len(self._buckets)
        self._is_far = not all(bucket.is_in_host_memory for bucket in self._buckets)
        entries = [(bucket, entry) for bucket in self._buckets for entry in bucket.entries]
        self._columns = [
            GradientColumn(index, one, bucket.index, bucket.dtype, entry, is_sharded(one))
            for index, (bucket, entry) in enumerate(entries)
            for one in (parameters[entry.name],)
        ]
        for column in self._columns:
            column.is_deferred = is_shared
        self._small: list[list[GradientColumn]] = [[] for _ in self._buckets]
        """Those without a hook, by bucket."""
        self._lending: list[GradientColumn] = []
        """Those to whose sums autograd may add."""
        self._unfired = [0] * len(self._buckets)
        """Hooks of the bucket that have not fired in the last slot."""
        self._lagging: list[GradientColumn] = []
        """Small ones that have not come, of buckets whose hooks have all fired."""
        self._looks_left = gradient_tree.LOOKED_AT
        self._has_closed = False
        """Whether a slot of this attempt was closed."""
        self._num_closed = 0
        """Attempts with a slot that was closed, so that it is known whose versions rise."""
        self._hooked: dict[int, torch.utils.hooks.RemovableHandle] = {}
        self._flats: list[list[torch.Tensor]] = [[] for _ in self._buckets]
        self._lent: Sequence[Sequence[torch.Tensor]] = ()
        """What was lent for the present flat buffers."""
        self._tracked: list[GradientColumn] = []
        self._waiting = [0] * len(self._buckets)
        self._on_ready: BucketReady = _nobody
        self._is_capturing = self._is_accumulating = False
        self._merges = 0
        self._part = 0
        self._is_last_of_part = False
        self._is_last = False
        self._is_kept = False
        """Whether leaves of the open slot wait for the next one's."""
        self._factor = 1.0
        self.is_invalid = False
        """A leaf grew after it had been added: this attempt's sums are wrong, do it again."""

    def begin(
        self,
        num_partials: int,
        on_ready: BucketReady | None = None,
        lent: Sequence[Sequence[torch.Tensor]] = (),
    ) -> None:
        """Start an attempt at a step: forget all sums, follow ``requires_grad`` as it is now.

        Args:
            num_partials: partial sums that this replica will hold in the end.
            on_ready: called during the last backward with each bucket whose sums are complete.
            lent: flat buffers by bucket, in which others can read the sums; where there are none
                this object has its own.
        """
        self.is_invalid = self._has_closed = False
        self._on_ready = on_ready or _nobody
        self._provide_buffers(num_partials, lent)
        self._tracked = []
        self._waiting = [0] * len(self._buckets)
        for column in self._columns:
            column.stack.clear()
            column.pending = column.of_slots = column.mark = None
            column.parameter.grad = column.lent = None
            column.is_tracked = column.parameter.requires_grad
            column.start = column.local.detach()
            column.address = column.start.data_ptr()
            column.version = column.start._version  # noqa: SLF001  # public nowhere; torch 2.11 to 2.15
            column.take_word(is_first=self._num_closed < UNKNOWN_ATTEMPTS)
            is_special = column.is_deferred or column.is_sharded or self._leaves_of is not None
            column.is_plain = column.is_tracked and not is_special
            if column.is_tracked:
                self._tracked.append(column)
                self._waiting[column.bucket] += 1
            else:
                zero_frozen(column)
        self._hook_tracked()

    def open(self, *, merges: int, part: int, is_last_of_part: bool, is_last: bool) -> None:
        """Start a slot: how often to merge after its leaf, and which partial sum it belongs to."""
        self._merges = merges
        self._part = part
        self._is_last_of_part = is_last_of_part
        self._is_last = is_last
        self._is_kept = not merges and not is_last_of_part
        for column in self._tracked:
            column.fired = column.is_merged = False
        if is_last:
            for bucket, waiting in enumerate(self._waiting):
                if not waiting:  # every parameter of it is frozen
                    self._on_ready(bucket)

    def capture(self, backward: Callable[[], None], factor: float) -> None:
        """Run a backward of the open slot and take its gradients, each times ``factor``."""
        self._factor = factor
        here.device.refuse_graphs()
        self._refuse_strangers()
        is_final = self._is_last_of_part and self._merges == 1  # then the sum goes to its buffer
        if self._merges and not is_final and factor == 1.0:
            for column in self._lending:
                column.lend()
        self._is_capturing = True
        try:
            backward()
            with torch.no_grad():
                self._take_small(chain.from_iterable(self._small))
                for column in self._lending:
                    column.take_back()
        finally:
            self._is_capturing = False

    def let_accumulate(self, backwards: Callable[[], object]) -> None:
        """Run backwards that together leave the open slot's gradients in ``.grad``."""
        here.device.refuse_graphs()
        self._is_accumulating = True
        try:
            backwards()
        finally:
            self._is_accumulating = False

    def take_accumulated(self, factor: float | None) -> None:
        """Take the gradients that lie in ``.grad``, each times ``factor``; None: forget them."""
        self._factor = 1.0 if factor is None else factor
        for column in self._tracked:
            leaf = column.parameter.grad
            column.parameter.grad = column.lent = None
            if leaf is not None and factor is not None:
                column.is_deferred = column.fired = True
                column.pending = checked_leaf(leaf, column)

    @property
    def factor(self) -> float:
        """By which the leaves of the open slot count."""
        return self._factor

    def take_apart(self, leaves_of: LeavesOf) -> None:
        """Have gradients taken apart that are of several slots."""
        self._leaves_of = leaves_of

    @torch.no_grad()
    def take_leaves(self) -> tuple[dict[int, torch.Tensor], dict[int, Sequence[torch.Tensor]]]:
        """Take the leaves of the open slot, as they are to be added, by parameters' numbers.

        Beside them those of all slots of the pass, of parameters whose leaves come together.
        """
        leaves, together = {}, {}
        for column in self._tracked:
            column.join_kept()
            leaf, column.pending = column.pending, None
            of_slots, column.of_slots = column.of_slots, None
            if of_slots is not None:
                together[column.index] = of_slots
            if column.fired and leaf is not None:
                leaf = leaf.to(column.dtype)
                leaves[column.index] = leaf if self._factor == 1.0 else leaf.mul(self._factor)
            column.fired = False
        return leaves, together

    def put_leaves(self, leaves: Mapping[int, torch.Tensor]) -> None:
        """Let these be the leaves of the open slot."""
        self._factor = 1.0
        for column in self._tracked:
            column.pending = leaves.get(column.index)
            column.fired = column.pending is not None

    @torch.no_grad()
    def close(self) -> list[int]:
        """End the slot: what did not fire is absent.  Return the numbers of those that fired.

        A parameter's number is its place in the buckets, counted over all of them.
        """
        self._num_closed += not self._has_closed
        self._has_closed = True
        for column in self._columns:
            column.check_unchanged()
        self._refuse_strangers()
        if self._is_far:
            here.device.use(one.pending for one in self._tracked if one.pending is not None)
        present = []
        for column in self._tracked:
            if not column.fired:
                self._push(column, None)
                continue
            present.append(column.index)
            if not column.is_merged:
                column.join_kept()
                leaf, column.pending = column.pending, None
                self._push(column, leaf)
        return present

    def partials(self, bucket: int) -> list[torch.Tensor]:
        """Return the flat partial sums of one bucket, in slot order."""
        return self._flats[bucket]

    def release(self) -> None:
        """Drop what an unfinished attempt still holds, and the gradients."""
        for column in self._columns:
            column.stack.clear()
            column.pending = None
            column.start = None
            column.parameter.grad = column.lent = None

    def forget_buffers(self) -> None:
        """Never touch the present flat buffers again: an abandoned group may still use them."""
        self._flats = [[] for _ in self._buckets]
        self._lent = ()
        for column in self._columns:
            column.outs = []
            column.zeroed = []

    def unhook(self) -> None:
        """Take the hooks out of the parameters."""
        for handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()
        for column in self._columns:
            column.watch_leaf(is_looked_at=False)

    def _provide_buffers(self, num_partials: int, lent: Sequence[Sequence[torch.Tensor]]) -> None:
        """Use what is lent, or as many buffers of this object's own as are needed."""
        if lent is self._lent and all(len(flats) == num_partials for flats in self._flats):
            return
        for bucket, flats in zip(self._buckets, self._flats, strict=True):
            if self._lent and self._lent[bucket.index]:
                flats.clear()
            if lent and lent[bucket.index] and bucket.is_in_host_memory:
                flats[:] = lent[bucket.index]
            del flats[num_partials:]
            while len(flats) < num_partials:
                flats.append(here.device.lasting(bucket.numel, bucket.dtype, bucket.device))
        self._lent = lent
        for column in self._columns:
            flats = self._flats[column.bucket]
            column.outs = [column.entry.view(flat).data for flat in flats]  # count own writes
            column.zeroed = [False] * num_partials

    def _hook_tracked(self) -> None:
        """Have every gradient of the step taken: by its hook, or with those of its bucket."""
        carried = {column.bucket for column in self._tracked if not column.is_small}
        self._small = [[] for _ in self._buckets]
        self._unfired = [0] * len(self._buckets)
        self._lagging = []
        self._looks_left -= 1
        for column in self._tracked:
            needs_none = column.is_small and column.is_plain and column.bucket in carried
            column.has_hook = column.index in self._hooked or not needs_none
            column.watch_leaf(is_looked_at=self._looks_left >= 0 and not column.has_hook)
            if not column.has_hook:
                self._small[column.bucket].append(column)
                continue
            self._unfired[column.bucket] += column.is_plain
            if column.index not in self._hooked:
                is_alike = column.parameter.dtype is column.dtype
                column.can_lend = is_alike and not is_watched(column.parameter)
                add_hook = column.parameter.register_post_accumulate_grad_hook
                self._hooked[column.index] = add_hook(partial(self._take_gradient, column))  # type: ignore[no-untyped-call]
        self._lending = [one for one in self._tracked if one.has_hook and one.can_lend]

    def _take_gradient(self, column: GradientColumn, parameter: torch.Tensor) -> None:
        """Take a finished gradient out of its parameter; runs inside backward."""
        if self._is_accumulating:
            return
        leaf, parameter.grad = parameter.grad, None
        is_plain = self._is_capturing and column.is_plain and not column.fired
        if is_plain and leaf is not None and leaf.layout is torch.strided:
            column.fired = True
            if self._is_kept:
                column.pending = leaf
            else:
                column.is_merged = True
                self._push(column, leaf)
                if self._is_last and column.has_hook:
                    self._follow(column.bucket)
            return
        self._take_special(column, leaf)

    def _follow(self, bucket: int) -> None:
        """A hook has fired in the last slot: take the small leaves of buckets whose all have."""
        self._unfired[bucket] -= 1
        if not self._unfired[bucket]:
            self._lagging += self._small[bucket]
        if self._lagging:
            self._take_small(self._lagging)
            self._lagging = [column for column in self._lagging if not column.fired]

    def _take_small(self, columns: Iterable[GradientColumn]) -> None:
        """Take the leaves of these that have come."""
        for column in columns:
            leaf = column.parameter.grad
            column.take_lent(leaf, additions=0)
            if leaf is not None:
                self._take_gradient(column, column.parameter)

    def _refuse_strangers(self) -> None:
        """Refuse gradients that no backward of the session left.

        Raises:
            UsageError: there are some, of a backward or written there.
        """
        for column in self._tracked:
            if column.parameter.grad is None:
                continue
            if column.has_hook:  # which would have refused a backward
                column.refuse_written()
            self._take_special(column, column.parameter.grad)

    def _take_special(self, column: GradientColumn, leaf: torch.Tensor | None) -> None:
        """Take what is not one dense gradient of one slot, or refuse it."""
        if not self._is_capturing:
            raise UsageError(
                "loss.backward() was called on the session's model; call step.backward(loss), "
                "once per micro-batch"
            )
        if leaf is None or not column.is_tracked:
            return  # ``close`` refuses a parameter that was unfrozen in between
        if self._leaves_of is not None and (together := self._leaves_of(leaf)) is not None:
            column.fired = True
            column.of_slots = added(column.of_slots, together)
            column.mark = here.device.mark(leaf.device)
            return
        leaf = checked_leaf(leaf, column)
        column.fired = True
        if column.is_merged:
            column.is_deferred, column.is_plain = True, False
            self.is_invalid = True
        else:
            column.pending = leaf if column.pending is None else column.pending + leaf
            column.mark = here.device.mark(leaf.device)

    def _push(self, column: GradientColumn, leaf: torch.Tensor | None) -> None:
        owned, merges = False, self._merges
        if column.take_lent(leaf, additions=1):  # autograd has done the first of them
            owned, merges = True, merges - 1
        elif leaf is not None:
            owned = self._is_kept and column.can_lend and has_own_memory(leaf)
            if leaf.dtype is not column.dtype:
                leaf, owned = leaf.to(column.dtype), True
            if self._factor != 1.0:
                leaf, owned = torch.mul(leaf, self._factor), True
        column.zeroed[self._part] = False
        column.stack.push(
            leaf, owned, merges, column.outs[self._part], is_last=self._is_last_of_part
        )
        if self._is_last:
            self._waiting[column.bucket] -= 1
            if not self._waiting[column.bucket]:
                self._on_ready(column.bucket)


def _nobody(_: int) -> None:
    """Tell nobody that a bucket is ready."""
