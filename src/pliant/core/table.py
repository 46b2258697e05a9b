"""A dict that is a value: never changed, only replaced, and hashable.

Core states hold these so that they can be compared, logged, and kept in sets by an explorer.  A
copy of a thousand entries takes microseconds, which is what one event may cost.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Table(dict[K, V]):
    """An immutable mapping; ``put`` and ``drop`` return the changed one."""

    __slots__ = ()

    def put(self, key: K, value: V) -> Table[K, V]:
        """Return a table in which ``key`` has this value."""
        changed = Table(self)
        dict.__setitem__(changed, key, value)
        return changed

    def drop(self, *keys: K) -> Table[K, V]:
        """Return a table without these keys; those it does not have do not matter."""
        if not any(key in self for key in keys):
            return self
        return Table({key: value for key, value in self.items() if key not in keys})

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (dict(self),)

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("a Table is never changed; use put or drop")

    __setitem__ = __delitem__ = _refuse
    clear = pop = popitem = setdefault = update = __ior__ = _refuse
