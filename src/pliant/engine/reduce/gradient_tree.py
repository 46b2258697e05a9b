"""Gradient tree: one parameter's leaves of a step, and how its sums are added along the tree.

Owns the order in which slots are computed and merged (positions), the sums of one tensor and where
each addition writes (binary counting), and what is known of one parameter while a step is computed.
Must not know buckets' readiness, nor when a slot opens and closes: that is ``reduce.accumulate``'s.

Two functions at the end ask what torch knows of a gradient and has no public name for.  Each says
no where torch does not tell: the sums have the same bits then, and take longer.  Seen to work with
torch 2.11 and 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Never

import torch

from pliant.core.errors import UsageError
from pliant.core.step.batching import Node, merge_plan
from pliant.engine.device import here, host
from pliant.engine.device.base import Mark
from pliant.engine.local_tensors import local_gradient, local_of
from pliant.engine.reduce.buckets import BucketEntry

SMALL_BYTES = 65536
"""A hook between two kernels costs 5 to 20 us; to read this much once more costs less."""

LOOKED_AT = 2
"""First attempts in which it is looked at whether a script writes to a leaf that waits."""

_OWN_AND_ITS_WRAPPER = 2
"""Whoever asks a storage how many hold it holds it, too."""


@dataclass(slots=True, eq=False)
class Position:
    """Where one slot stands in this replica's sums; computed from the tree."""

    slot: int
    merges: int
    part: int
    is_last_of_part: bool
    is_last: bool = False


def positions(nodes: Sequence[Node]) -> list[Position]:
    """Return the slots of these maximal subtrees in the order in which to compute them."""
    found: list[Position] = []
    for part, node in enumerate(nodes):
        visits = merge_plan(node)
        found += [
            Position(visit.slot, visit.merges, part, number == len(visits))
            for number, visit in enumerate(visits, start=1)
        ]
    found[-1].is_last = True
    return found


class SumStack:
    """Sums of one tensor; the innermost ones are the newest."""

    __slots__ = ("_owned", "_sums")

    def __init__(self) -> None:
        self._sums: list[torch.Tensor | None] = []
        self._owned: list[bool] = []

    def clear(self) -> None:
        """Forget all sums."""
        self._sums.clear()
        self._owned.clear()

    def take_owned(self) -> torch.Tensor | None:
        """Take the newest sum out if it may be written to; None: it may not, or is absent."""
        if not self._owned or not self._owned[-1] or self._sums[-1] is None:
            return None
        self._owned.pop()
        return self._sums.pop()

    def put_back(self, newest: torch.Tensor) -> None:
        """Let what was taken out be the newest sum again."""
        self._sums.append(newest)
        self._owned.append(True)

    def push(
        self,
        leaf: torch.Tensor | None,
        owned: bool,
        merges: int,
        out: torch.Tensor,
        *,
        is_last: bool,
    ) -> None:
        """Add a leaf, merge ``merges`` times; the outermost sum is in ``out`` after the last.

        ``owned``: nobody else has the leaf's memory, so that a sum may be written there.
        """
        for _ in range(merges):
            left, is_left_owned = self._sums.pop(), self._owned.pop()
            place = None if self._sums else out
            if left is None or leaf is None:
                leaf, owned = _add_absent(left, is_left_owned, leaf, owned, place)
                continue
            if place is None:
                place = left if is_left_owned else leaf if owned else None
            leaf, owned = torch.add(left, leaf, out=place), True
        if not is_last:
            self._sums.append(leaf)
            self._owned.append(owned)
        elif leaf is None:
            out.zero_()
        elif leaf is not out:
            out.copy_(leaf)


def _add_absent(
    left: torch.Tensor | None,
    is_left_owned: bool,
    right: torch.Tensor | None,
    is_right_owned: bool,
    place: torch.Tensor | None,
) -> tuple[torch.Tensor | None, bool]:
    """Return left + right of which one is absent, or both; as owned as what ``place`` is."""
    only, owned = (left, is_left_owned) if right is None else (right, is_right_owned)
    if only is None:
        return None, True
    if place is None and owned:
        place = only
    return torch.add(only, 0.0, out=place), True


class ValueSums:
    """The sums of one flat float64 vector per slot: loss, weights, presence, buffers."""

    def __init__(self, numel: int) -> None:
        self._numel = numel
        self._stack = SumStack()
        self._flats: list[torch.Tensor] = []

    def begin(self, num_partials: int) -> None:
        """Start an attempt at a step."""
        self._stack.clear()
        self._flats = [
            torch.empty(self._numel, dtype=torch.float64, device=host.LOCATION)
            for _ in range(num_partials)
        ]

    def push(
        self, values: torch.Tensor | None, *, merges: int, part: int, is_last_of_part: bool
    ) -> None:
        """Add one slot's values; None for an absent slot."""
        self._stack.push(values, True, merges, self._flats[part], is_last=is_last_of_part)

    def partials(self) -> list[torch.Tensor]:
        """Return the partial sums in slot order."""
        return self._flats


@dataclass(slots=True, eq=False)
class GradientColumn:
    """One parameter: where its leaves come from and where its sums go."""

    index: int
    parameter: torch.nn.Parameter
    bucket: int
    dtype: torch.dtype
    entry: BucketEntry
    is_sharded: bool
    has_hook: bool = False
    """Whether a hook takes its gradient in this step; else that is done for a whole bucket."""
    stack: SumStack = field(default_factory=SumStack)
    outs: list[torch.Tensor] = field(default_factory=list)
    zeroed: list[bool] = field(default_factory=list)
    fired: bool = False
    is_deferred: bool = False
    """Merge when the backward has ended: its hook was seen to fire twice, or the sums are shared
    with other workers."""
    is_merged: bool = False
    """Whether the open slot's leaf was merged when the hook fired."""
    is_plain: bool = False
    """Whether its leaves are its gradients as they are, to be merged when the hook fires."""
    is_tracked: bool = False
    """Whether it required a gradient at the step's start."""
    can_lend: bool = False
    """Whether autograd may add leaves to its sums; see ``lend``."""
    lent: torch.Tensor | None = None
    """Its newest sum, while that lies in ``.grad``; without a hook, the leaf that was seen."""
    num_writes: int = 0
    """To that, before it was lent or seen."""
    watch: torch.utils.hooks.RemovableHandle | None = None
    """Of a hook that only looks."""
    pending: torch.Tensor | None = None
    of_slots: Sequence[torch.Tensor] | None = None
    """Leaves of all slots of a pass, where they arrived together."""
    mark: Mark = None
    """Behind what has made those, if that was on another stream: FSDP calls hooks on its own."""
    version: int = 0
    """Of its values at the step's start: it counts changes in place."""
    address: int = 0
    """Of those values."""
    is_touched: bool = False
    """Its version rises though nothing is written, as where a forward parametrizes it anew."""
    word: Callable[[], list[int]] | None = None
    """Of those values, where they may be compared."""
    start: torch.Tensor | None = None
    """Those values, so that no other tensor can have their address while the step is computed."""

    def join_kept(self) -> None:
        """Let what this thread does with what was kept in a hook come after that."""
        mark, self.mark = self.mark, None
        if mark is not None:
            for leaf in (self.pending, *(self.of_slots or ())):
                if leaf is not None:
                    here.device.join(mark, leaf)

    def take_word(self, *, is_first: bool) -> None:
        """Take a digest of the values, if what its version says may be wrong, or is not known."""
        is_compared = (is_first or self.is_touched) and self.start is not None
        self.word = here.device.words([self._whole()]) if is_compared else None

    def _whole(self) -> tuple[torch.Tensor, int, int]:
        return self.local, 0, self.local.nbytes

    def check_unchanged(self) -> None:
        """Refuse what would change the step's sums for those slots only that come later.

        Raises:
            UsageError: it was frozen, unfrozen or written to since the step's start.
        """
        if self.parameter.requires_grad is not self.is_tracked:
            raise UsageError(
                f"requires_grad of {self.entry.name!r} changed inside the loop over a step; "
                "change it before that loop, or after it"
            )
        local = self.local
        is_changed = self.start is not None and local.data_ptr() != self.address
        version = local._version  # noqa: SLF001  # see ``begin`` of the sums
        if version != self.version and not is_changed:
            is_changed = self.word is None or self.word() != here.device.words([self._whole()])()
            self.version, self.is_touched = version, True
        if is_changed:
            raise UsageError(
                f"the values of {self.entry.name!r} changed inside the loop over a step; "
                "change them before that loop, or after it"
            )

    def lend(self) -> None:
        """Have autograd add the coming leaf to the newest sum, if there is one of our own.

        It does so in place, as soon as the leaf is there, without Python.
        """
        if self.can_lend and self.is_plain and (newest := self.stack.take_owned()) is not None:
            self.parameter.grad = self.lent = newest
            self.num_writes = newest._version  # noqa: SLF001  # see ``begin`` of the sums

    def take_lent(self, found: torch.Tensor | None, *, additions: int) -> bool:
        """Take what was lent out of what was ``found`` in ``.grad``; return whether anything was.

        Raises:
            UsageError: somebody but autograd has written there.
        """
        lent, self.lent = self.lent, None
        if lent is None:
            return False
        num_writes = lent._version - self.num_writes  # noqa: SLF001  # see ``begin`` of the sums
        if found is not lent or num_writes > additions:
            self.refuse_written()
        return True

    def take_back(self) -> None:
        """Take back what was lent and to which no leaf came."""
        if (found := self.lent) is not None and self.take_lent(self.parameter.grad, additions=0):
            self.parameter.grad = None
            self.stack.put_back(found)

    def watch_leaf(self, *, is_looked_at: bool) -> None:
        """Have a leaf that waits in ``.grad`` looked at when it comes, or no longer."""
        if self.watch is not None:
            self.watch.remove()
            self.watch = None
        if is_looked_at:
            add_hook = self.parameter.register_post_accumulate_grad_hook
            self.watch = add_hook(self._see)  # type: ignore[no-untyped-call]

    def _see(self, parameter: torch.Tensor) -> None:
        self.lent = leaf = parameter.grad
        if leaf is not None:
            self.num_writes = leaf._version  # noqa: SLF001  # see ``begin`` of the sums

    def refuse_written(self) -> Never:
        """Refuse what would be of some replicas' micro-batches, and of others' sums.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f".grad of {self.entry.name!r} was written to inside the loop over a step; the session "
            "takes gradients from step.backward(loss) alone, and a hook that Tensor.register_hook "
            "adds may change them"
        )

    @property
    def is_small(self) -> bool:
        """Whether its leaf waits for others without loss."""
        return self.entry.numel * self.dtype.itemsize <= SMALL_BYTES

    @property
    def local(self) -> torch.Tensor:
        """What lies here of the parameter."""
        return local_of(self.parameter) if self.is_sharded else self.parameter


def checked_leaf(gradient: torch.Tensor, column: GradientColumn) -> torch.Tensor:
    """Return the part of a gradient that lies here.

    Raises:
        UsageError: it is sparse.
    """
    leaf = local_gradient(gradient, column.parameter) if column.is_sharded else gradient
    if leaf.layout is not torch.strided:
        raise UsageError(
            f"the gradient of {column.entry.name!r} is sparse; sparse gradients are not "
            "supported (use sparse=False in the embedding)"
        )
    return leaf


def added(
    before: Sequence[torch.Tensor] | None, more: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Return what comes of a parameter whose gradient arrives in two parts."""
    if before is None:
        return more
    return [one + other for one, other in zip(before, more, strict=True)]


def zero_frozen(column: GradientColumn) -> None:
    """Make a frozen parameter's part of the flat buffers +0.0, once."""
    for part, out in enumerate(column.outs):
        if not column.zeroed[part]:
            out.zero_()
            column.zeroed[part] = True


def has_own_memory(tensor: torch.Tensor) -> bool:
    """Return whether nothing else is known to have this tensor's memory.

    Autograd may give two parameters views of one storage (the two addends of ``a.view(n) +
    b.view(n)``), and a function or a hook of the script may keep what it has returned.
    """
    count = getattr(torch._C, "_storage_Use_Count", None)  # noqa: SLF001  # see the module's text
    if count is None:
        return False
    return bool(count(tensor.untyped_storage()._cdata) == _OWN_AND_ITS_WRAPPER)  # noqa: SLF001


def is_watched(parameter: torch.Tensor) -> bool:
    """Return whether somebody has hooks that look at this parameter's accumulated gradient."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", True))
