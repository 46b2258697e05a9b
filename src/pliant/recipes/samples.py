"""Samples of a recipe: which tokens of which documents a sample has, as a function of its number.

Owns packing, and what of a sample is learned and what sees what.  Shapes: B samples, T tokens.

    wrapped   documents in an order drawn from the seed, one after the other, cut every T tokens
    bfd       whole documents, the longest first, each where it leaves least room
    none      each document by itself

The session shuffles samples anew each epoch; which sample is which stays as it is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor
from torch.utils.data import Dataset

from pliant.core.errors import ConfigError
from pliant.core.text import counted
from pliant.recipes.tokens import Tokens

IGNORED = -100
"""Label of what is not learned, as in transformers."""

Piece = tuple[int, int]
"""Where a part of a document begins and ends, among all tokens."""


class Samples(Dataset[dict[str, Tensor]]):
    """Samples of at most ``length`` tokens; each token of each document is in exactly one."""

    def __init__(self, data: Tokens, length: int) -> None:
        self.data, self.length = data, length

    def pieces(self, index: int) -> Sequence[Piece]:
        """Return what a sample is made of."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return tokens, labels, and of each token the document and the place in it, all (T,)."""
        parts = self.pieces(index)
        tokens = np.concatenate([self.data.tokens[a:b] for a, b in parts]).astype(np.int64)
        labels = tokens.copy()
        if self.data.targets is not None:
            learned = np.concatenate([self.data.targets[a:b] for a, b in parts])
            labels[~learned] = IGNORED
        sizes = [b - a for a, b in parts]
        labels[np.cumsum([0, *sizes[:-1]])] = IGNORED  # nothing before it says what it must be
        return {
            "tokens": torch.from_numpy(tokens),
            "labels": torch.from_numpy(labels),
            "documents": torch.from_numpy(np.repeat(np.arange(1, len(sizes) + 1), sizes)),
            "positions": torch.from_numpy(np.concatenate([np.arange(size) for size in sizes])),
        }


class Wrapped(Samples):
    """All tokens in a row; the last sample may be short."""

    def __init__(self, data: Tokens, length: int, seed: int) -> None:
        super().__init__(data, length)
        self._order = np.random.default_rng(seed).permutation(len(data))
        lengths = np.diff(data.starts)[self._order]
        self._ends = np.cumsum(lengths)

    def __len__(self) -> int:
        return int(-(-self._ends[-1] // self.length))

    def pieces(self, index: int) -> Sequence[Piece]:
        """Return what lies between two multiples of the length."""
        low, high = index * self.length, min((index + 1) * self.length, int(self._ends[-1]))
        found = []
        for place in range(int(np.searchsorted(self._ends, low, "right")), len(self._ends)):
            ends = int(self._ends[place])
            document = int(self._order[place])
            begins = ends - int(self.data.starts[document + 1] - self.data.starts[document])
            shift = int(self.data.starts[document]) - begins
            found.append((max(low, begins) + shift, min(high, ends) + shift))
            if ends >= high:
                break
        return found


class Packed(Samples):
    """Whole documents, several to a sample; those longer than a sample are cut into such."""

    def __init__(self, data: Tokens, length: int) -> None:
        super().__init__(data, length)
        self._bins = best_fit(_cut(data, length), length)

    def __len__(self) -> int:
        return len(self._bins)

    def pieces(self, index: int) -> Sequence[Piece]:
        """Return what was packed together."""
        return self._bins[index]


class Alone(Samples):
    """Each document by itself; of one that is too long, the beginning."""

    def __len__(self) -> int:
        return len(self.data)

    def pieces(self, index: int) -> Sequence[Piece]:
        """Return the beginning of a document."""
        begins, ends = int(self.data.starts[index]), int(self.data.starts[index + 1])
        return [(begins, min(ends, begins + self.length))]


def check_learned(path: str, data: Tokens) -> None:
    """Refuse documents of which nothing is learned: the first token of each never is.

    Raises:
        ConfigError: so it is of all.
    """
    if data.targets is None:
        is_any = bool((np.diff(data.starts) > 1).any())
    else:
        is_any = int(data.targets.sum()) > int(data.targets[data.starts[:-1]].sum())
    if not is_any:
        raise ConfigError(f"{path} has nothing to learn: each of its documents is empty")


def check_cut(data: Tokens, length: int) -> int:
    """Return how many documents are longer than a sample, and lose their end.

    Raises:
        ConfigError: of some nothing is learned then.
    """
    empty = sum(_learns_nothing(data, number, length) for number in range(len(data)))
    if empty:
        raise ConfigError(
            f"of {empty} of {counted(len(data), 'document')} nothing is learned within "
            f"data.sequenceLength {length}: what is to be learned begins behind it; give more"
        )
    return int((np.diff(data.starts) > length).sum())


def _learns_nothing(data: Tokens, number: int, length: int) -> bool:
    begins = int(data.starts[number])
    ends = min(int(data.starts[number + 1]), begins + length)
    if data.targets is None:
        return ends - begins < 2
    return not bool(data.targets[begins + 1 : ends].any())


class Pairs(Dataset[tuple[dict[str, Tensor], dict[str, Tensor]]]):
    """What is preferred, beside what is not."""

    def __init__(self, data: Tokens, length: int) -> None:
        self._alone = Alone(data, length)
        self.digest = data.digest
        self.reference: np.ndarray | None = None
        """Of each answer, the log-probability that the policy is compared with, if it is stored."""

    def __len__(self) -> int:
        return len(self._alone) // 2

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        chosen, rejected = self._alone[2 * index], self._alone[2 * index + 1]
        if self.reference is not None:
            for number, answer in enumerate((chosen, rejected), 2 * index):
                answer["reference"] = torch.tensor(self.reference[number])
        return chosen, rejected

    def answers(self) -> Iterator[dict[str, Tensor]]:
        """Yield all answers, those of a pair one after the other."""
        return (self._alone[number] for number in range(len(self._alone)))


def best_fit(pieces: Sequence[Piece], length: int) -> list[list[Piece]]:
    """Pack pieces into bins of a length: the longest first, each where it leaves least room.

    >>> best_fit([(0, 3), (3, 8), (8, 10)], 5)
    [[(3, 8)], [(0, 3), (8, 10)]]
    """
    bins: list[list[Piece]] = []
    with_room: dict[int, list[int]] = defaultdict(list)
    rooms: list[int] = []  # sorted, each once
    for begins, ends in sorted(pieces, key=lambda piece: piece[0] - piece[1]):
        size = ends - begins
        place = bisect_left(rooms, size)
        if place == len(rooms):
            room, number = length, len(bins)
            bins.append([])
        else:
            room = rooms[place]
            number = with_room[room].pop(0)
            if not with_room[room]:
                del rooms[place]
        bins[number].append((begins, ends))
        if room > size:
            if not with_room[room - size]:
                insort(rooms, room - size)
            with_room[room - size].append(number)
    return bins


def digest_of(samples: Samples) -> str:
    """Return a digest of what is in which sample: a run says it, another proves it."""
    found = xxhash.xxh3_128(samples.data.digest.encode())
    for index in range(len(samples)):
        found.update(np.asarray(samples.pieces(index), np.int64).tobytes())
    return found.hexdigest()


def collate(samples: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return samples side by side, (B, T), short ones filled up with what nobody sees or learns."""
    longest = max(len(one["tokens"]) for one in samples)
    found = {}
    for name, filler in (("tokens", 0), ("labels", IGNORED), ("documents", 0), ("positions", 0)):
        rows = [one[name] for one in samples]
        found[name] = torch.stack(
            [torch.nn.functional.pad(row, (0, longest - len(row)), value=filler) for row in rows]
        )
    return found


def collate_pairs(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Tensor]:
    """Return B pairs as 2 B samples: first all that is preferred, then all that is not."""
    answers = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    found = collate(answers)
    if "reference" in answers[0]:
        found["reference"] = torch.stack([answer["reference"] for answer in answers])
    return found


def _cut(data: Tokens, length: int) -> list[Piece]:
    found = []
    for begins, ends in zip(data.starts[:-1].tolist(), data.starts[1:].tolist(), strict=True):
        found += [(low, min(low + length, ends)) for low in range(begins, ends, length)]
    return found
