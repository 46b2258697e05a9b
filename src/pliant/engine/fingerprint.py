"""Fingerprint: Python values in short words; equal values have equal words in any process.

Owns how a value is walked and how much of it is looked at: objects are entered to a depth, long
lists and large arrays are sampled, and one look has a limit.  Must not know who compares the words,
nor what follows from a difference.

Not seen: what changes between two of the places that are looked at in a large array or list.
"""

from __future__ import annotations

import ctypes
import enum
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

from pliant.engine.device import host
from pliant.engine.local_tensors import local_of

MAX_VALUES = 10_000
"""Values that one look sees, in all: about 20 ms."""

ARRAY_VALUES = 20
"""A tensor or an array takes as long as so many values."""

MAX_PARTS = 256
"""Elements of an array or a container that are looked at."""

MAX_LISTED = 16
"""Elements of a list whose attributes are looked at: datasets, transforms."""

MAX_CHARACTERS = 40
"""Of a value that is shown as it is."""

Words = dict[str, str]
"""A word for each value, by its name."""

SHARED = "shared "
"""How words of what processes share begin."""

SHOWN = (bool, int, float, complex, str, bytes, np.generic, enum.Enum, PurePath, range, slice)
CONTAINERS = (dict, set, frozenset, list, tuple, deque)
WORDED = (*SHOWN, *CONTAINERS, torch.Tensor, np.ndarray, partial, type(None))


class Look:
    """One look at some values; subclasses say what they see of which."""

    depth = 4
    """Objects in objects, and containers in containers."""
    has_names = True
    """What a dict's entries are called is in its word, not only what they are."""

    def __init__(self, passed_over: Iterable[object] = ()) -> None:
        self.found: Words = {}
        self.left = MAX_VALUES
        self.seen = set(map(id, passed_over))

    def enter(self, holder: object, prefix: str, depth: int) -> None:
        """Note the attributes of an object; short ones first, in case that not all are seen."""
        self.seen.add(id(holder))
        own = list(vars(holder).items()) if hasattr(holder, "__dict__") else []
        for name, value in sorted(own, key=lambda item: isinstance(item[1], CONTAINERS)):
            self.note(f"{prefix}{name}", value, depth)

    def note(self, path: str, value: object, depth: int) -> None:
        """Note a value, or the attributes of one that is entered."""
        if self.left <= 0 or id(value) in self.seen:
            return
        if self.enters(value):
            if depth:
                self.enter(value, f"{path}.", depth - 1)
        elif self.enters_list(value):
            for number, part in enumerate(value):  # type: ignore[var-annotated, arg-type]
                self.note(f"{path}[{number}]", part, depth)
        elif (word := self.word(value, self.depth)) and self.left > 0:  # else it was cut short
            self.found[path] = word

    def enters(self, value: object) -> bool:
        """Whether the attributes of an object are noted one by one."""
        return False

    def enters_list(self, value: object) -> bool:
        """Whether elements of a container are noted one by one."""
        return False

    def rule(self, value: Any) -> str | None:
        """Return the word that this look has for a value; None: the usual one."""
        return None

    def unknown(self, value: Any) -> str:
        """Return the word of what is not looked into; empty: it says nothing."""
        return ""

    def parts(self, value: Any) -> Iterable[Any] | None:
        """Return the parts of a value that are in its word; None: it has none."""
        if isinstance(value, dict):  # not every Mapping: some are files
            pairs = sorted(islice(value.items(), MAX_PARTS), key=lambda pair: str(pair[0]))
            return [
                part
                for pair in pairs
                for part in pair[isinstance(pair[0], str) and not self.has_names :]
            ]
        if isinstance(value, set | frozenset):
            return value if len(value) <= MAX_PARTS else ()
        if isinstance(value, list | tuple | deque):
            return [value[at] for at in spread(len(value))]
        if isinstance(value, partial):
            return [value.func, value.args, value.keywords]
        return None

    def word(self, value: Any, depth: int) -> str:
        """Return a value in a word; empty: it says nothing."""
        self.left -= ARRAY_VALUES if isinstance(value, torch.Tensor | np.ndarray) else 1
        if id(value) in self.seen:
            return ""
        word = self.rule(value)
        word = _plain_word(value) if word is None else word
        if word is not None:
            return word
        parts = self.parts(value) if depth and self.left > 0 else None
        if parts is None:
            return self.unknown(value)
        words = [self.word(part, depth - 1) for part in parts]
        if isinstance(value, set | frozenset):
            words.sort()
        return digest(kind_of(value), words) if any(words) or not words else ""


def _plain_word(value: Any) -> str | None:
    if value is None or isinstance(value, SHOWN):
        return shown(value)
    if word := shared_word(value):
        return word
    if isinstance(value, torch.Tensor):
        return tensor_word(value)
    return array_word(value) if isinstance(value, np.ndarray) else None


def kind_of(value: Any) -> str:
    """Return what a value is, and of how many parts."""
    if isinstance(value, CONTAINERS):
        return f"{type(value).__name__} of {len(value)}"
    return "partial" if isinstance(value, partial) else type(value).__qualname__


def shown(value: object) -> str:
    """Return a plain value as it is shown, or a digest of a long one."""
    text = repr(value)
    return text if len(text) <= MAX_CHARACTERS else digest(type(value).__name__, [text])


def digest(kind: str, parts: Iterable[str | bytes]) -> str:
    """Return what something is, and a hash of its parts."""
    hasher = xxhash.xxh3_64()
    for part in parts:
        hasher.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
        hasher.update(b"\0")
    return f"{kind} {hasher.hexdigest()[:8]}"


def spread(size: int) -> Sequence[int]:
    """Return up to ``MAX_PARTS`` places, the first and the last among them."""
    if size <= MAX_PARTS:
        return range(size)
    return [number * (size - 1) // (MAX_PARTS - 1) for number in range(MAX_PARTS)]


def tensor_word(value: torch.Tensor, most: int = MAX_PARTS) -> str:
    """Return a digest of about ``most`` numbers of a tensor, or only what it is like."""
    kind = f"tensor {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    is_plain = host.is_here(value)
    if is_plain and value.numel() <= MAX_VALUES:
        value = value.contiguous()
    if not is_plain or value.is_quantized or not value.is_contiguous():
        return kind
    few = value.detach().reshape(-1)[:: max(1, value.numel() // most)].contiguous()
    return digest(kind, [bytes(host.bytes_of(few.resolve_conj().resolve_neg()))])


def array_word(value: np.ndarray[Any, Any]) -> str:
    """Return a digest of some of an array, or only what it is like."""
    kind = f"array {value.dtype} {value.shape}"
    if value.dtype.hasobject or not value.flags.c_contiguous:
        return kind
    return digest(kind, [value.reshape(-1)[:: max(1, value.size // MAX_PARTS)].tobytes()])


def shared_word(value: Any) -> str:
    """Return in a word what processes share; empty of what they do not."""
    if isinstance(value, torch.Tensor):
        is_here = host.is_here(value)
        return SHARED + tensor_word(value) if is_here and value.is_shared() else ""  # type: ignore[no-untyped-call]
    if isinstance(value, SynchronizedBase):
        value = value.get_obj()
    if isinstance(value, ctypes._SimpleCData):  # noqa: SLF001  what a Value holds
        return SHARED + shown(value.value)
    if isinstance(value, BaseProxy):  # of a manager, which is asked: a small one
        is_small = not hasattr(value, "__len__") or len(value) <= MAX_LISTED
        return SHARED + shown(str(value)) if is_small else ""
    if isinstance(value, SharedMemory):
        value = value.buf
    elif not isinstance(value, ctypes.Array | ShareableList):
        return ""
    return digest(f"{SHARED}of {len(value)}", [repr(value[at]) for at in spread(len(value))])


def walk(
    value: Any,
    path: str = "",
    *,
    opaque: tuple[type, ...] = (torch.Tensor, torch.nn.Module),
    objects: bool = True,
    keys: bool = False,
    depth: int = 200,
) -> Iterator[tuple[str, Any]]:
    """Iterate over a value and its parts, each with where it is, holders before what they hold.

    ``opaque`` is not entered, nor are attributes of ``objects`` where that is false; ``keys``:
    those of mappings are parts as well.
    """
    waiting = [(path, value, depth)]
    seen: set[int] = set()
    while waiting:
        path, value, depth = waiting.pop()
        yield path, value
        if isinstance(value, opaque) or id(value) in seen or not depth:
            continue
        if isinstance(value, Mapping):
            parts = [(f"{path}[{key!r}]", part) for key, part in value.items()]
            parts += [(path, key) for key in value] if keys else []
        elif isinstance(value, list | tuple | set | frozenset | deque):
            parts = [(f"{path}[{number}]", part) for number, part in enumerate(value)]
        elif objects and hasattr(value, "__dict__"):
            parts = [(f"{path}.{name}", part) for name, part in vars(value).items()]
        else:
            continue
        seen.add(id(value))
        waiting += [(at, part, depth - 1) for at, part in reversed(parts)]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Iterate over the tensors in a container, and in containers in it."""
    for _, part in walk(value, objects=False):
        if isinstance(part, torch.Tensor):
            yield part


def memory_of(tensor: torch.Tensor) -> int:
    """Return where a tensor lies; 0: nothing of it does here, or not in one piece."""
    here = local_of(tensor)
    is_here = here.layout is torch.strided and here.numel() > 0
    return host.storage_of(here) if is_here else 0
