"""Dataset attributes: what a dataset keeps, in short words that two replicas can compare.

A script that changes its dataset in a tail (a curriculum) changes it on those who run that tail; a
joiner begins with what the script made.  Owns the words, which attributes change by being fetched
from (caches, counters, open files), and the comparison.  Must not know who compares when, nor what
an attribute means: whether samples differ cannot be said, so nothing is refused.

Not seen: what is no attribute (globals, closures), objects that keep their state elsewhere, what
changes between two of the places that are looked at in a large array or list.
"""

from __future__ import annotations

import ctypes
import enum
import json
import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing.managers import BaseProxy
from multiprocessing.shared_memory import ShareableList, SharedMemory
from multiprocessing.sharedctypes import SynchronizedBase
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import xxhash

MAX_VALUES = 10_000
"""Values that are looked at, in all: about 20 ms."""

MAX_PARTS = 256
"""Elements of an array or a list that are looked at, spread over it."""

MAX_DEPTH = 4
"""Datasets in datasets, and transforms in these."""

MAX_CHARACTERS = 40
"""Of a value that is shown as it is."""

MAX_NAMED = 3
"""Attributes that one sentence names."""

INSTEAD = (
    "what a tail changes in a dataset reaches a joiner through extra_state= (and only with "
    "num_workers=0), or is computed in the loop from step.index"
)

MAX_LISTED = 16
"""Elements of a list that are looked into: datasets, transforms."""

Words = dict[str, str]

_SHARED = "shared "
"""How words of what processes share begin."""

_TOO_MANY = ""
"""Under this name: not every attribute was looked at."""

_SHOWN = (bool, int, float, complex, str, bytes, np.generic, enum.Enum, PurePath, range, slice)
_CONTAINERS = (dict, set, frozenset, list, tuple, deque)
_WORDED = (*_SHOWN, *_CONTAINERS, torch.Tensor, np.ndarray, partial)


class DatasetAttributes:
    """Of one replica's dataset."""

    def __init__(self, dataset: object, *, is_copied: bool) -> None:
        """``is_copied``: loader processes fetch, from the dataset as it is when they start."""
        self._dataset = dataset
        self._is_copied = is_copied
        self._volatile: set[str] = set()
        self._at_start: Words = {}
        self.counts: list[str] = []
        """Numbers that change by being fetched from."""

    @contextmanager
    def fetching(self) -> Iterator[None]:
        """Learn what changes by being fetched from; that is never compared."""
        before = words_of(self._dataset)
        yield
        after = words_of(self._dataset)
        names = different(before, after)
        self._volatile.update(names)
        self.counts = [name for name in names if are_numbers(before.get(name), after.get(name))]

    def open(self) -> None:
        """Take the dataset as it is: loader processes start now."""
        self._at_start = words_of(self._dataset) if self._is_copied else {}

    def pack(self) -> bytes:
        """Return what another replica compares with its own."""
        return json.dumps([self._fetched_from(), sorted(self._volatile)]).encode()

    def unlike(self, others: Sequence[bytes], where: str = "on the replicas that train") -> str:
        """Say which attributes are others where the run is; empty: none."""
        mine = self._fetched_from()
        for theirs, volatile in map(unpacked, others):
            names = [name for name in different(mine, theirs) if name not in volatile]
            if names := [name for name in names if name not in self._volatile]:
                return (
                    f"the dataset's {told(mine, theirs, names, where)}: if samples depend on it, "
                    f"this run depends on who joined when; {INSTEAD}"
                )
        return ""

    def unseen(self) -> str:
        """Say which attributes changed since the loader processes started; empty: none."""
        now = words_of(self._dataset)
        names = different(self._at_start, now) if self._is_copied else []
        shared = [name for name in names if now.get(name, "").startswith(_SHARED)]
        if shared := [name for name in shared if name not in self._volatile]:
            return (
                f"the dataset's {' and '.join(map(repr, shared[:MAX_NAMED]))} in shared memory "
                "changed while loader processes fetch ahead: if samples depend on it, they depend "
                f"on how far ahead each replica's are; {INSTEAD}"
            )
        if not names:
            return ""
        return (
            f"the dataset's {' and '.join(map(repr, names[:MAX_NAMED]))} changed after the loader "
            f"processes had started, which do not see it; {INSTEAD}"
        )

    def _fetched_from(self) -> Words:
        return self._at_start if self._is_copied else words_of(self._dataset)


def told(mine: Words, theirs: Words, names: Sequence[str], where: str) -> str:
    """Say what the first of these names are here, and what they are there."""
    return " and ".join(
        f"{name!r} is {mine.get(name, 'missing')} here and {theirs.get(name, 'missing')} {where}"
        for name in names[:MAX_NAMED]
    )


def unpacked(packed: bytes) -> tuple[Words, list[str]]:
    """Return what ``pack`` made; nothing of what it did not make."""
    try:
        words, volatile = json.loads(packed)
    except (ValueError, TypeError):
        return {_TOO_MANY: ""}, []
    return (words, volatile) if isinstance(words, dict) else ({_TOO_MANY: ""}, [])


def words_of(dataset: object) -> Words:
    """Return a word for each attribute: its value if that is short, else a digest of it."""
    found: Words = {}
    look = _Look()
    look.at(dataset, "", found, MAX_DEPTH)
    return found if look.values_left > 0 else found | {_TOO_MANY: ""}


def different(mine: Words, theirs: Words) -> list[str]:
    """Return the names that differ; where not all was looked at, only what both have."""
    names = mine.keys() & theirs.keys() if _TOO_MANY in mine | theirs else mine.keys() | theirs
    return sorted(name for name in names if mine.get(name) != theirs.get(name))


def are_numbers(*words: str | None) -> bool:
    """Whether these are numbers, and not True or False."""
    try:
        return all(math.isfinite(float(word or "")) for word in words)
    except ValueError:
        return False


def word_of(value: object) -> str:
    """Return a plain value as it is shown, or a digest of a long one."""
    text = repr(value)
    return text if len(text) <= MAX_CHARACTERS else digest(type(value).__name__, [text])


class _Look:
    """One look at a dataset: how much is left to be looked at, and what has been."""

    def __init__(self) -> None:
        self.values_left = MAX_VALUES
        self._seen: set[int] = set()

    def at(self, holder: object, prefix: str, found: Words, depth: int) -> None:
        """Go through the attributes of an object, and of those that it holds."""
        self._seen.add(id(holder))
        own = list(vars(holder).items()) if hasattr(holder, "__dict__") else []
        for name, value in sorted(own, key=lambda item: isinstance(item[1], _CONTAINERS)):
            path = f"{prefix}{name}"
            held = [(at, part) for at, part in _parts(path, value) if _holds(part)]
            if not held:
                found[path] = self._word(value, depth)
            for at, part in held:
                if depth and id(part) not in self._seen:
                    self.at(part, f"{at}.", found, depth - 1)
            if self.values_left <= 0:
                return

    def _word(self, value: Any, depth: int) -> str:
        """Return a value in a word; the same for equal values in any process."""
        self.values_left -= 1
        if value is None or isinstance(value, _SHOWN):
            return word_of(value)
        if word := shared_word(value):
            return word
        if isinstance(value, torch.Tensor):
            return tensor_word(value)
        if isinstance(value, np.ndarray):
            return array_word(value)
        if isinstance(value, dict):  # not every Mapping: some are files
            pairs = [part for pair in islice(value.items(), MAX_PARTS) for part in pair]
            return self._words(f"{type(value).__name__} of {len(value)}", pairs, depth)
        if isinstance(value, set | frozenset):
            few = value if len(value) <= MAX_PARTS else ()
            words = sorted(self._word(part, depth - 1) for part in few) if depth else []
            return digest(f"{type(value).__name__} of {len(value)}", words)
        if isinstance(value, list | tuple | deque):
            parts = [value[at] for at in _spread(len(value))]
            return self._words(f"{type(value).__name__} of {len(value)}", parts, depth)
        if isinstance(value, partial):
            return self._words("partial", [value.func, value.args, value.keywords], depth)
        return f"a {getattr(value, '__qualname__', type(value).__qualname__)}"

    def _words(self, kind: str, parts: Sequence[Any], depth: int) -> str:
        if not depth or self.values_left <= 0:
            return kind
        return digest(kind, [self._word(part, depth - 1) for part in parts])


def _parts(path: str, value: object) -> list[tuple[str, object]]:
    """Return a value, or the elements of a short list of datasets or transforms, with names."""
    if isinstance(value, list | tuple) and len(value) <= MAX_LISTED:
        return [(f"{path}[{number}]", part) for number, part in enumerate(value)]
    return [(path, value)]


def _holds(value: object) -> bool:
    """Whether its attributes are looked at one by one: a dataset, a transform and the like."""
    if value is None or isinstance(value, _WORDED) or hasattr(value, "__qualname__"):
        return False
    room = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and room not in sys.stdlib_module_names


def shared_word(value: Any) -> str:
    """Return in a word what processes share; empty of what they do not."""
    if isinstance(value, torch.Tensor):
        is_here = value.layout is torch.strided and value.device.type == "cpu"
        return _SHARED + tensor_word(value) if is_here and value.is_shared() else ""  # type: ignore[no-untyped-call]
    if isinstance(value, SynchronizedBase):
        value = value.get_obj()
    if isinstance(value, ctypes._SimpleCData):  # noqa: SLF001  what a Value holds
        return _SHARED + word_of(value.value)
    if isinstance(value, BaseProxy):  # of a manager, which is asked: a small one
        is_small = not hasattr(value, "__len__") or len(value) <= MAX_LISTED
        return _SHARED + word_of(str(value)) if is_small else ""
    if isinstance(value, SharedMemory):
        value = value.buf
    elif not isinstance(value, ctypes.Array | ShareableList):
        return ""
    return digest(f"{_SHARED}of {len(value)}", [repr(value[at]) for at in _spread(len(value))])


def tensor_word(value: torch.Tensor) -> str:
    """Return a digest of some of a tensor, or only what it is like."""
    kind = f"tensor {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    is_plain = value.layout is torch.strided and value.device.type == "cpu"
    if is_plain and value.numel() <= MAX_VALUES:
        value = value.contiguous()
    if not is_plain or value.is_quantized or not value.is_contiguous():
        return kind
    flat = value.detach().reshape(-1)
    parts = flat[list(_spread(flat.numel()))].resolve_conj().resolve_neg()
    return digest(kind, [parts.view(torch.uint8).numpy().tobytes()])


def array_word(value: np.ndarray[Any, Any]) -> str:
    """Return a digest of some of an array, or only what it is like."""
    kind = f"array {value.dtype} {value.shape}"
    if value.dtype.hasobject or not value.flags.c_contiguous:
        return kind
    return digest(kind, [value.reshape(-1)[list(_spread(value.size))].tobytes()])


def _spread(size: int) -> Sequence[int]:
    """Return up to ``MAX_PARTS`` places, the first and the last among them."""
    if size <= MAX_PARTS:
        return range(size)
    return [number * (size - 1) // (MAX_PARTS - 1) for number in range(MAX_PARTS)]


def digest(kind: str, parts: Iterable[str | bytes]) -> str:
    """Return what something is, and a hash of its parts."""
    hasher = xxhash.xxh3_64()
    for part in parts:
        hasher.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
        hasher.update(b"\0")
    return f"{kind} {hasher.hexdigest()[:8]}"
