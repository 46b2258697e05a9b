"""A sorted list and a directory that are values, and of which a change costs little.

Both are cut into pieces, so that a change copies one piece and the list of pieces: what an event
costs hardly grows with how many claims there are.  ``core.table.Table`` copies everything, which
is simpler and as fast up to some hundred entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Generic, TypeVar

T = TypeVar("T")
V = TypeVar("V")
Key = tuple[Any, ...]

_LONGEST = 64
"""Keys in a piece; two levels of 64 are 4,096 keys."""

_first = itemgetter(0)


class Ordered:
    """Sorted keys without duplicates; ``add`` and ``discard`` return the changed list."""

    __slots__ = ("_pieces",)

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        ordered = sorted(set(keys))
        self._pieces = tuple(
            tuple(ordered[at : at + _LONGEST // 2]) for at in range(0, len(ordered), _LONGEST // 2)
        )

    def add(self, key: Key) -> Ordered:
        """Return the list with this key."""
        pieces = self._pieces
        if not pieces:
            return _made(((key,),))
        which = max(0, bisect_right(pieces, key, key=_first) - 1)
        piece = pieces[which]
        at = bisect_left(piece, key)
        if at < len(piece) and piece[at] == key:
            return self
        longer = (*piece[:at], key, *piece[at:])
        if len(longer) <= _LONGEST:
            return _made((*pieces[:which], longer, *pieces[which + 1 :]))
        half = len(longer) // 2
        return _made((*pieces[:which], longer[:half], longer[half:], *pieces[which + 1 :]))

    def discard(self, key: Key) -> Ordered:
        """Return the list without this key."""
        pieces = self._pieces
        which = bisect_right(pieces, key, key=_first) - 1
        if which < 0:
            return self
        piece = pieces[which]
        at = bisect_left(piece, key)
        if at == len(piece) or piece[at] != key:
            return self
        shorter = (*piece[:at], *piece[at + 1 :])
        return _made((*pieces[:which], *([shorter] if shorter else []), *pieces[which + 1 :]))

    @property
    def first(self) -> Key:
        """The smallest key; there must be one."""
        return self._pieces[0][0]

    @property
    def second(self) -> Key | None:
        """The next one, if there is one."""
        pieces = self._pieces
        if len(pieces[0]) > 1:
            return pieces[0][1]
        return pieces[1][0] if len(pieces) > 1 else None

    def __iter__(self) -> Iterator[Key]:
        for piece in self._pieces:
            yield from piece

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Ordered({list(self)})"


def _made(pieces: tuple[tuple[Key, ...], ...]) -> Ordered:
    made = Ordered.__new__(Ordered)
    made._pieces = pieces  # noqa: SLF001 - its own class
    return made


NOTHING = Ordered()

_PIECES = 256


class Directory(Generic[V]):
    """Values by name; ``put`` and ``drop`` return the changed directory."""

    __slots__ = ("_pieces",)

    def __init__(self, items: Iterable[tuple[str, V]] = ()) -> None:
        pieces: list[dict[str, V]] = [{} for _ in range(_PIECES)]
        for name, value in items:
            pieces[hash(name) % _PIECES][name] = value
        self._pieces = tuple(pieces)

    def get(self, name: str) -> V | None:
        """Return the value of this name, or None."""
        return self._pieces[hash(name) % _PIECES].get(name)

    def changed(self, changes: dict[str, V | None]) -> Directory[V]:
        """Return the directory with these values; None: without that name."""
        pieces = list(self._pieces)
        copied: set[int] = set()
        for name, value in changes.items():
            at = hash(name) % _PIECES
            if at not in copied:
                copied.add(at)
                pieces[at] = dict(pieces[at])
            if value is None:
                pieces[at].pop(name, None)
            else:
                pieces[at][name] = value
        made: Directory[V] = Directory.__new__(Directory)
        made._pieces = tuple(pieces)
        return made

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield names and values, in no particular order."""
        for piece in self._pieces:
            yield from piece.items()

    def __contains__(self, name: str) -> bool:
        return name in self._pieces[hash(name) % _PIECES]

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            yield from piece

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Directory) and dict(self.items()) == dict(other.items())

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Directory, (tuple(self.items()),)

    def __repr__(self) -> str:
        return f"Directory({dict(self.items())})"
