"""What a whole log comes to, at once."""

from __future__ import annotations

from collections.abc import Iterable

from pliant.observe.explain import Explained
from pliant.observe.log import Record


def explained_of(records: Iterable[Record]) -> Explained:
    explained = Explained()
    for record in records:
        explained.add(record)
    return explained
