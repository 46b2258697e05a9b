"""How one step is divided: slots, who owns them, and in which tree their sums are added.

Owns the arithmetic's shape.  A step always consists of the same ``K`` slots; the tree that adds
them is a function of ``K`` alone, so the result cannot depend on how many replicas there are.
Must not know tensors, replica ids, generations or time: everything here is numbers in, numbers out.

    K = 7, three replicas          root 0..7
                                  /         \\
                              0..4           4..7         root and left children give the odd
                             /    \\         /    \\        slot to their left half, right
                          0..2    2..4   4..5    5..7     children to their right half
      owner:               a       b     b         c      5 nodes lie inside one owner with no
      partial sums:      (0..2)  (2..4)(4..5)   (5..7)    parent that does: 4 partial sums

A replica sums each *maximal subtree* of its slots on its own (``subtrees``, ``merge_plan``); the
partial sums of all replicas are then folded along the rest of the tree (``fold_plan``).  Both
halves together are the root tree, for every ownership.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from operator import add
from typing import Literal, NamedTuple

from pliant.core.errors import ConfigError

Side = Literal["root", "left", "right"]


class Node(NamedTuple):
    """The sum of slots ``lo .. hi-1`` in the tree, and which child of its parent it is."""

    lo: int
    hi: int
    side: Side


class Visit(NamedTuple):
    """Compute ``slot``, push its gradient, then ``merges`` times add the two newest sums."""

    slot: int
    merges: int


def num_slots(*, global_batch_size: int, micro_batch_size: int) -> int:
    """Return ``K``, the slots of one step.

    Raises:
        ConfigError: a size is not a positive integer, or the micro-batch does not divide the
            global batch; names the nearest values that work.
    """
    for name, value in (
        ("global_batch_size", global_batch_size),
        ("micro_batch_size", micro_batch_size),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name} must be a positive integer, got {value!r}")
    if global_batch_size % micro_batch_size == 0:
        return global_batch_size // micro_batch_size
    micro = _either(_nearest_divisors(global_batch_size, micro_batch_size))
    below = global_batch_size - global_batch_size % micro_batch_size
    batch = _either(tuple(n for n in (below, below + micro_batch_size) if n))
    raise ConfigError(
        f"micro_batch_size={micro_batch_size} does not divide "
        f"global_batch_size={global_batch_size}; "
        f"use micro_batch_size {micro}, or global_batch_size {batch}"
    )


def efficiency(num_slots: int, num_replicas: int) -> float:
    """Return the share of replica time that computes: 1.0 when ``W`` divides ``K``."""
    return num_slots / (num_replicas * math.ceil(num_slots / num_replicas))


# The tree


def root(num_slots: int) -> Node:
    """Return the whole step."""
    return Node(0, num_slots, "root")


def split(lo: int, hi: int, side: Side) -> int:
    """Return the first slot of the right half of ``lo..hi``; needs two slots or more."""
    return lo + (hi - lo + (side != "right")) // 2


def children(node: Node) -> tuple[Node, Node]:
    """Return the two halves of a node of two slots or more."""
    mid = split(*node)
    return Node(node.lo, mid, "left"), Node(mid, node.hi, "right")


@lru_cache(maxsize=4096)
def subtrees(num_slots: int, owned: range) -> tuple[Node, ...]:
    """Return the maximal nodes inside ``owned``, in slot order: the partial sums of its owner."""
    found: list[Node] = []
    stack = [root(num_slots)] if owned else []
    while stack:
        node = stack.pop()
        if owned.start <= node.lo and node.hi <= owned.stop:
            found.append(node)
        elif node.lo < owned.stop and owned.start < node.hi:
            left, right = children(node)
            stack += (right, left)
    return tuple(found)


@lru_cache(maxsize=4096)
def merge_plan(node: Node) -> tuple[Visit, ...]:
    """Return in which order to compute the slots of ``node``, and when to merge.

    Binary counting on a stack: push each slot's gradient, add the two newest sums ``merges``
    times; one sum is left.  The half that needs more live sums comes first, which keeps them to
    ``floor(log2(slots)) + 1``; slot order would need one more for a right child of 3 slots.  The
    operands of an addition may thus be swapped, which does not change its bits.
    """
    visits: list[Visit] = []
    _visit(node, 0, visits)
    return tuple(visits)


def fold_plan(num_slots: int, partials: Sequence[Node]) -> list[tuple[int, int]]:
    """Return the additions that turn the partial sums of all replicas into the root.

    Each pair ``(left, right)`` indexes ``partials``: add ``right`` into ``left``, in this order.
    The result ends up in index 0.

    Raises:
        ValueError: the partials do not tile the tree.
    """
    index_of = {node: index for index, node in enumerate(partials)}
    plan: list[tuple[int, int]] = []

    def reach(node: Node) -> int:
        if node in index_of:
            return index_of.pop(node)
        if node.hi - node.lo == 1:
            raise ValueError(f"partial sums do not tile {num_slots} slots: {partials!r}")
        left, right = children(node)
        pair = (reach(left), reach(right))
        plan.append(pair)
        return pair[0]

    reach(root(num_slots))
    if index_of:
        raise ValueError(f"partial sums do not tile {num_slots} slots: {partials!r}")
    return plan


def peak_copies(num_slots: int, owned: range) -> int:
    """Return how many gradient copies are alive at once while the owner computes ``owned``.

    At most ``floor(log2(slots owned)) + 1``, plus one per further subtree.
    """
    peak = 0
    for finished, node in enumerate(subtrees(num_slots, owned)):
        alive = finished
        for _, merges in merge_plan(node):
            alive += 1
            peak = max(peak, alive)
            alive -= merges
    return peak


# Who owns what


def ownership(num_slots: int, num_replicas: int) -> tuple[range, ...]:
    """Divide the slots of a step evenly: one contiguous range per replica_rank.

    Sizes differ by at most one, and the cuts are those that need the fewest partial sums in all.
    Every replica owns at least one slot.  By speed they are divided in ``core.step.balance``.

    Raises:
        ConfigError: fewer than one replica, or more replicas than slots.
    """
    if not 1 <= num_replicas <= num_slots:
        raise ConfigError(
            f"{num_replicas} replicas cannot share {num_slots} micro-batches: 1 to {num_slots} can"
        )
    return _even(num_slots, num_replicas)


def ranges_of(sizes: Sequence[int]) -> tuple[range, ...]:
    """Return the slots of each replica, one after another."""
    return tuple(range(lo, hi) for lo, hi in pairwise(accumulate(sizes, initial=0)))


def partials(num_slots: int, owners: Sequence[range]) -> tuple[tuple[Node, ...], ...]:
    """Return the partial sums of each replica, in rank order; flattened they are in slot order."""
    return tuple(subtrees(num_slots, owned) for owned in owners)


@lru_cache(maxsize=1024)
def _even(num_slots: int, num_replicas: int) -> tuple[range, ...]:
    """Choose which replicas take one slot more, so that the cuts split the fewest nodes.

    A node with a cut inside is no partial sum but its two halves are; ``P`` is one more than the
    number of such nodes.  Cuts are laid from left to right, and what a cut adds depends only on
    the cut before it (``_newly_split``), so a table over (cuts laid, long ranges among them) finds
    the best choice.  Row by row in C: 20 ms at K=8000, W=1024.
    """
    size, num_long = divmod(num_slots, num_replicas)
    if not num_long:
        return ranges_of([size] * num_replicas)
    spans = _split_spans(num_slots)
    short = [_newly_split(spans, at, at + size) for at in range(num_slots - size)]
    long = [_newly_split(spans, at, at + size + 1) for at in range(num_slots - size - 1)]
    row: list[int] = [0]  # fewest split nodes with (index + first) long ranges so far
    first = 0
    rows = [(first, row)]
    for laid in range(1, num_replicas):
        start, stop = max(0, num_long - num_replicas + laid), min(laid, num_long) + 1
        at = (laid - 1) * size
        through_short = _costs(row, first, short, at, start, stop)
        through_long = _costs(row, first, long, at, start - 1, stop - 1)
        row, first = list(map(min, through_short, through_long)), start
        rows.append((first, row))
    return ranges_of(_walk_back(rows, size, num_long, long))


_NEVER = 1 << 40


def _costs(
    row: list[int], first: int, price: list[int], at: int, start: int, stop: int
) -> list[int]:
    """Return ``row + price`` for ``start..stop`` long ranges so far; _NEVER off the row."""
    lo, hi = max(start, first), min(stop, first + len(row))
    inside = list(map(add, row[lo - first : hi - first], price[at + lo : at + hi]))
    return [_NEVER] * (lo - start) + inside + [_NEVER] * (stop - hi)


def _walk_back(
    rows: list[tuple[int, list[int]]], size: int, num_long: int, long: list[int]
) -> list[int]:
    """Read the chosen sizes off the table, last replica first."""

    def best(laid: int, longs: int) -> int:
        first, row = rows[laid]
        return row[longs - first] if first <= longs < first + len(row) else _NEVER

    last = len(rows) - 1
    longs = min((num_long, num_long - 1), key=lambda count: best(last, count))
    sizes = [size + num_long - longs]
    for laid in range(last, 0, -1):
        at = (laid - 1) * size + longs - 1
        is_long = longs > 0 and best(laid, longs) == best(laid - 1, longs - 1) + long[at]
        sizes.append(size + is_long)
        longs -= is_long
    return sizes[::-1]


@lru_cache(maxsize=64)
def _split_spans(num_slots: int) -> tuple[tuple[int, ...], ...]:
    """For each cut, the first slots of the nodes that it splits, smallest node first."""
    spans: list[tuple[int, ...]] = [()] * (num_slots + 1)
    stack: list[tuple[Node, tuple[int, ...]]] = [(root(num_slots), ())]
    while stack:
        node, above = stack.pop()
        if node.hi - node.lo == 1:
            continue
        here = (node.lo, *above)
        left, right = children(node)
        spans[right.lo] = here
        stack += ((left, here), (right, here))
    return tuple(spans)


def _newly_split(spans: Sequence[Sequence[int]], before: int, cut: int) -> int:
    """Count the nodes that ``cut`` splits and no cut up to ``before`` does."""
    count = 0
    for lo in spans[cut]:
        if lo < before:
            break
        count += 1
    return count


def _visit(node: Node, merges: int, visits: list[Visit]) -> None:
    """Append the visits of ``node``; its last one also does the ``merges`` of its ancestors."""
    if node.hi - node.lo == 1:
        visits.append(Visit(node.lo, merges))
        return
    first, second = children(node)
    if _live_sums(second.hi - second.lo, "right") > _live_sums(first.hi - first.lo, "left"):
        first, second = second, first
    _visit(first, 0, visits)
    _visit(second, merges + 1, visits)


@cache
def _live_sums(slots: int, side: Side) -> int:
    """Fewest sums alive at once while adding up a node (Sethi and Ullman's numbering)."""
    if slots == 1:
        return 1
    mid = split(0, slots, side)
    left, right = _live_sums(mid, "left"), _live_sums(slots - mid, "right")
    return left + 1 if left == right else max(left, right)


def _nearest_divisors(number: int, wanted: int) -> tuple[int, ...]:
    """Return the closest divisors of ``number`` below and above ``wanted``, as far as they are."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    divisors = small + [number // n for n in reversed(small)]
    below = [n for n in divisors if n < wanted]
    above = [n for n in divisors if n > wanted]
    return tuple(below[-1:] + above[:1])


def _either(values: tuple[int, ...]) -> str:
    return " or ".join(map(str, values))
