"""Sums: adding leaves along the tree, for one tensor.

Owns binary counting: which sums are kept and where each addition writes.  Must not know parameters,
hooks or buckets.
"""

from __future__ import annotations

import torch


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
        self._flats = [torch.empty(self._numel, dtype=torch.float64) for _ in range(num_partials)]

    def push(
        self, values: torch.Tensor | None, *, merges: int, part: int, is_last_of_part: bool
    ) -> None:
        """Add one slot's values; None for an absent slot."""
        self._stack.push(values, True, merges, self._flats[part], is_last=is_last_of_part)

    def partials(self) -> list[torch.Tensor]:
        """Return the partial sums in slot order."""
        return self._flats
