"""Layout: what things are called in a checkpoint root, and who writes which part of a tensor.

Owns the names and the division into shares: pure functions of names, shapes and types alone, so
that all members of a generation, who hold equal state, divide it in the same way without a word.
Must not know storage or torch.

    <root>/lease.json
    <root>/step-00000500-l1/
        __<rank>_<generation>.distcp      one share's tensors and objects
        share-<generation>-<rank>.json    what that share wrote, with digests: it is whole
        .metadata                         PyTorch's index, for whoever has no pliant
        pliant.json                       the manifest, written last: the checkpoint exists

The generation is part of both names, so that a member of an older one, cut off and still writing,
never touches what a newer one has published.
"""

from __future__ import annotations

import heapq
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

DOCUMENT = "pliant.document"
"""Name of the item that holds all that is no tensor, and lists those."""

LEASE = "lease.json"
PLACE = "place"
MANIFEST = "pliant.json"
METADATA = ".metadata"

PIECE_BYTES = 64 << 20
"""Largest piece of a tensor, and so the memory that reading or copying one takes."""

FINE_PIECE_BYTES = 1 << 20
"""Pieces are not made smaller than this for the sake of balance: each costs 1.5 kB and 0.5 ms."""

PIECES_PER_RANK = 8
"""A rank has at least this many when tensors are large: the shares differ by an eighth at most."""

Path = tuple[str | int, ...]

_NAME = re.compile(r"step-(\d{8,})-l(\d+)")
_SHARE = re.compile(r"share-(\d+)-(\d+)\.json")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """Which state a checkpoint holds; ordered as they were made, a later lineage first of all."""

    lineage: int
    committed: int

    def __str__(self) -> str:
        return f"step-{self.committed:08d}-l{self.lineage}"


def name_of(committed: int, lineage: int) -> str:
    """Return what the checkpoint of so many committed steps is called."""
    return str(CheckpointName(lineage, committed))


def parse_name(name: str) -> CheckpointName | None:
    """Return what a name says; ``None`` if it is no checkpoint's."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    parsed = CheckpointName(int(found[2]), int(found[1]))
    return parsed if str(parsed) == name else None


def data_file(rank: int, generation: int) -> str:
    """Return the file that holds what a rank writes."""
    return f"__{rank}_{generation}.distcp"


def share_file(rank: int, generation: int) -> str:
    """Return the file that says that a rank's share is whole."""
    return f"share-{generation}-{rank}.json"


def parse_share_file(name: str) -> tuple[int, int] | None:
    """Return (rank, generation) of a share file; ``None`` if it is none."""
    found = _SHARE.fullmatch(name)
    return None if found is None else (int(found[2]), int(found[1]))


def unwritten_file(rank: int, generation: int) -> str:
    """Return the file that says that a rank has given its share up."""
    return f"unwritten-{generation}-{rank}.json"


def path_of(name: str) -> Path:
    """Return where an item lies in the nested state dict that plain PyTorch builds.

    Names of modules hold dots themselves: ``model`` and ``optim`` have the keys that
    ``get_model_state_dict`` and ``get_optimizer_state_dict`` give.
    """
    top, _, rest = name.partition(".")
    if not rest:
        return (name,)
    if top != "optim":
        return (top, rest)
    kind, _, rest = rest.partition(".")
    if kind == "state" and "." in rest:
        fqn, _, key = rest.rpartition(".")
        return (top, kind, fqn, key)
    index, _, key = rest.partition(".")
    if kind == "param_groups" and key and index.isdigit():
        return (top, kind, int(index), key)
    return (top, kind, rest) if rest else (top, kind)


@dataclass(frozen=True, slots=True)
class Spec:
    """What the division knows of a tensor."""

    shape: tuple[int, ...]
    item_bytes: int
    begins: tuple[int, ...] | None = None
    """Of a part of a tensor that is sharded over the workers of a replica: where in the whole it
    begins; None: every worker has the whole."""

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.item_bytes


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """A box of a tensor that lies in one run of its memory."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def box(self, begins: tuple[int, ...] | None = None) -> tuple[slice, ...]:
        """Return the index that cuts it out of its tensor, or of the part that begins there."""
        begins = begins or (0,) * len(self.offsets)
        return tuple(
            slice(start - begin, start - begin + size)
            for start, begin, size in zip(self.offsets, begins, self.sizes, strict=True)
        )


def divide(tensors: Mapping[str, Spec], num_ranks: int) -> list[list[Piece]]:
    """Return what each rank writes: every element once, shares balanced by bytes.

    Large tensors are cut by rows; the largest pieces are dealt first, each to whoever has least.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks={num_ranks} must be at least 1")
    total = sum(spec.num_bytes for spec in tensors.values())
    limit = min(PIECE_BYTES, max(FINE_PIECE_BYTES, total // (num_ranks * PIECES_PER_RANK)))
    sized = sorted(
        (-math.prod(piece.sizes) * spec.item_bytes, piece)
        for name, spec in tensors.items()
        for piece in cut(name, spec, limit)
    )
    shares: list[list[Piece]] = [[] for _ in range(num_ranks)]
    loads = [(0, 0, rank) for rank in range(num_ranks)]  # bytes, pieces, rank
    for negative_bytes, piece in sized:
        num_bytes, num_pieces, rank = heapq.heappop(loads)
        shares[rank].append(piece)
        heapq.heappush(loads, (num_bytes - negative_bytes, num_pieces + 1, rank))
    return [sorted(share) for share in shares]


def share_of(
    tensors: Mapping[str, Spec], *, rank: int, num_shares: int, num_workers: int = 1
) -> list[Piece]:
    """Return what one writes of those who write: all workers, replica after replica.

    What all workers have is dealt to all of them, parts to those of the same place in the replicas,
    who have the same; ``tensors`` are those that the worker with this rank has to write.
    """
    whole = {name: spec for name, spec in tensors.items() if spec.begins is None}
    pieces = divide(whole, num_shares)[rank]
    parts = {name: spec for name, spec in tensors.items() if spec.begins is not None}
    own = divide(parts, num_shares // num_workers)[rank // num_workers] if parts else []
    return sorted([*pieces, *(_moved(piece, parts[piece.name].begins or ()) for piece in own)])


def _moved(piece: Piece, begins: tuple[int, ...]) -> Piece:
    offsets = tuple(map(operator.add, piece.offsets, begins))
    return Piece(piece.name, offsets, piece.sizes)


def cut(name: str, spec: Spec, limit: int) -> Iterator[Piece]:
    """Yield a tensor's pieces of at most ``limit`` bytes (one element at least), in order."""
    if not spec.shape or spec.num_bytes <= limit:
        yield Piece(name, (0,) * len(spec.shape), spec.shape)
        return
    axis, row_bytes = 0, spec.num_bytes // spec.shape[0]
    while row_bytes > limit and axis + 1 < len(spec.shape):
        axis += 1
        row_bytes //= spec.shape[axis]
    rows = max(1, limit // row_bytes)
    for lead in product(*map(range, spec.shape[:axis])):
        for start in range(0, spec.shape[axis], rows):
            count = min(rows, spec.shape[axis] - start)
            behind = spec.shape[axis + 1 :]
            offsets = (*lead, start, *(0 for _ in behind))
            yield Piece(name, offsets, (*(1 for _ in lead), count, *behind))


def fill(shape: Sequence[int], boxes: Iterable[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    """Return whether boxes (offsets, sizes) cover a shape, every element exactly once."""
    found = list(boxes)
    for offsets, sizes in found:
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            return False
        if any(o < 0 or s < 0 or o + s > n for o, s, n in zip(offsets, sizes, shape, strict=True)):
            return False
    if sum(math.prod(sizes) for _, sizes in found) != math.prod(shape) or not found:
        return False
    return not _overlap(found)


def _overlap(boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    """Return whether two boxes have an element in common.

    Sorted along the first axis, a box meets only those that begin before it ends.
    """
    boxes = sorted(box for box in boxes if math.prod(box[1]))
    for index, (offsets, sizes) in enumerate(boxes):
        for other_offsets, other_sizes in boxes[index + 1 :]:
            if offsets and other_offsets[0] >= offsets[0] + sizes[0]:
                break
            if all(
                o < p + t and p < o + s
                for o, s, p, t in zip(offsets, sizes, other_offsets, other_sizes, strict=True)
            ):
                return True
    return False
