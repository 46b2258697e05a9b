"""Exchange: add up the members' partial sums of each bucket, exactly or fast.

Owns how partial sums travel and in which order they are added, for any
ownership.  Must not know: autograd, slots' content, when a step commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pliant.engine.groups import Group
from pliant.engine.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who holds which partial sums of a step, and how they are folded to the root."""

    num_slots: int
    partials: tuple[int, ...]
    """Number of partial sums (maximal subtrees) of each rank."""
    merges: tuple[tuple[int, int], ...]
    """(left, right): partial ``left`` += partial ``right``; the last one makes the root at 0."""

    @classmethod
    def of(cls, num_slots: int, ownership: Sequence[range]) -> Plan:
        """Derive the plan from ``batching.ownership``."""
        raise NotImplementedError


class Reduction:
    """Reduces one step after another over one group and one ownership.

    Per step: ``launch`` each bucket once, in the same order on all members, then ``finish``.
    """

    def __init__(
        self,
        group: Group,
        layout: Layout,
        plan: Plan,
        *,
        exact: bool = True,
        previous: Reduction | None = None,
    ) -> None:
        """Args:
        previous: reduction over an earlier group, whose buffers are taken over if nothing
            can still write into them.
        """

    def launch(self, bucket_index: int, partials: Sequence[torch.Tensor]) -> None:
        """Start reducing one bucket; returns in microseconds; may be called from a backward hook.

        The partials (contiguous, flat, one per maximal subtree in order) must not be changed
        before ``finish`` returned.
        In fast mode pass one tensor, weights already applied.
        """
        raise NotImplementedError

    def finish(self) -> list[torch.Tensor]:
        """Wait for all buckets; return the reduced flat tensors by bucket index.

        They stay intact until the second next step's first ``launch``; the caller may change them.
        With one member and one partial the result is the partial itself.

        Raises:
            GroupBroken: a peer failed or the group was abandoned.
        """
        raise NotImplementedError
