"""Other loaders: data that a script draws inside a step from a DataLoader of its own.

Owns what can be seen of it, from the head of a step to its commit.  An iterator goes on from where
its replica left it, so what it gives differs between replicas, joiners most of all, and no ledger
knows of it.  One that is made anew at the same place is seeded there like everything else, and
gives the same on every replica.  Must not know slots' content or how a step is computed.

Data that comes in other ways (a queue, a generator, ``dataset[i]`` by an own order) is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from pliant.core.errors import UsageError

_INSTEAD = (
    "train on what `for batch in step:` gives (a session's dataset=, collate_fn= and num_workers= "
    "do what a DataLoader does)"
)


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """One micro-batch of a step, or its head."""

    step: int
    is_head: bool

    def __str__(self) -> str:
        return f"step {self.step}" if self.is_head else f"this micro-batch of step {self.step}"


_iterate = DataLoader.__iter__
"""As torch has it: a watch puts another in its place."""


def has_own_iterator(loader: DataLoader[Any]) -> bool:
    """Whether a loader iterates otherwise than every DataLoader does."""
    return type(loader).__iter__ not in (_iterate, DataLoader.__iter__)


class LoaderWatch:
    """Watches every DataLoader of this process between ``open`` and ``close``."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._place: _Place | None = None
        self._thread = 0
        self._made: WeakKeyDictionary[object, tuple[_Place | None, bool]] = WeakKeyDictionary()
        """Iterators: where each was made, and whether it is over the session's dataset."""
        self._originals: tuple[Any, Any] | None = None

    def enter(self, step: int, *, is_head: bool = False) -> None:
        """From now on the script computes a micro-batch of ``step``, or is in its head."""
        self._place = _Place(step, is_head)

    def leave(self) -> None:
        """From now on anything may be drawn."""
        self._place = None

    def open(self) -> None:
        """Begin to watch."""
        make, draw = self._originals = DataLoader.__iter__, _BaseDataLoaderIter.__next__
        self._thread = threading.get_ident()

        def made(loader: DataLoader[Any]) -> Iterator[Any]:
            iterator: Iterator[Any] = make(loader)
            self._made[iterator] = self._place, loader.dataset is self._dataset
            return iterator

        def drawn(iterator: _BaseDataLoaderIter) -> Any:
            if self._place is not None and threading.get_ident() == self._thread:
                self._check(iterator, self._place)
            return draw(iterator)

        DataLoader.__iter__ = made  # type: ignore[method-assign, assignment]
        _BaseDataLoaderIter.__next__ = drawn  # type: ignore[method-assign, assignment]

    def close(self) -> None:
        """Let every DataLoader be as it was; a second call does nothing."""
        if self._originals is not None:
            DataLoader.__iter__, _BaseDataLoaderIter.__next__ = self._originals  # type: ignore[method-assign]
            self._originals = None

    def _check(self, iterator: _BaseDataLoaderIter, place: _Place) -> None:
        made_at, is_own = self._made.get(iterator, (None, False))
        if made_at is not place:
            raise UsageError(
                f"an iterator of a DataLoader that was made before {place} was drawn from there: "
                f"what it gives is another thing on every replica; {_INSTEAD}, or make the "
                "iterator there"
            )
        if is_own and not place.is_head:
            raise UsageError(
                "a DataLoader over the session's own dataset was drawn from inside the loop over "
                f"step {place.step}; {_INSTEAD}"
            )
