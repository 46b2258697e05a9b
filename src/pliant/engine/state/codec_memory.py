"""Codec memory: what the last document of a value was made of, so that the next one costs less.

Owns how a part of a value is recognised as the same as before.  Must not know how it is encoded.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

LARGE = 16
"""Entries from which on a dict is worth a look whether it is the one from before."""

ValuePath = tuple[Any, ...]
"""``(name,)``, or a step from another path: ``(path, key)``, ``(path, key, "key")`` to the key.

Training waits for a document, and few paths are ever read.
"""


@dataclass(frozen=True, slots=True)
class Known:
    """One dict of a value, as it was encoded."""

    frozen: _Frozen
    form: Any
    before: int
    """Tensors met before it, and with it."""
    after: int


class Memory:
    """What the last document of a value was made of.

    Between two checkpoints most of a state is the same objects, changed in place.  A large dict of
    plain values and tensors that holds the same ones as before, after the same tensors as before,
    has the same form.  Keeps no tensor alive.
    """

    def __init__(self) -> None:
        self.form: Any = None
        """The last document, parsed; what is the same as before is the same object."""
        self._known: dict[ValuePath, Known] = {}
        self._tensors: list[weakref.ref[torch.Tensor]] = []

    def remember(
        self, form: Any, known: dict[ValuePath, Known], tensors: list[torch.Tensor]
    ) -> None:
        """Remember a document instead of the one before."""
        self.form = form
        self._known = known
        self._tensors = list(map(weakref.ref, tensors))

    def recall(
        self, value: Any, path: ValuePath, tensors: list[torch.Tensor]
    ) -> tuple[Known, list[torch.Tensor]] | None:
        """Return how ``value`` was encoded, and the tensors that are new in it.

        ``None`` if anything in it or before it is different.
        """
        known = self._known.get(path)
        if (
            known is None
            or known.before != len(tensors)
            or not all(ref() is tensor for ref, tensor in zip(self._tensors, tensors, strict=False))
            or not _is_same(value, known.frozen)
        ):
            return None
        new = [ref() for ref in self._tensors[known.before : known.after]]
        return known, [tensor for tensor in new if tensor is not None]


_Frozen = Any
"""A dict as ``(keys, frozen values)``, a tensor as a weak reference, a plain value as itself."""

_PLAIN = (bool, int, str, type(None))
"""Not floats: some are equal and have other bits."""


class UnfitError(Exception):
    """Something that is neither plain, nor a tensor, nor a dict of such with names for keys."""


def freeze(value: Any) -> _Frozen:
    """Return what a value can be compared with later, though it is changed meanwhile."""
    if type(value) is dict and all(type(key) is str for key in value):
        return tuple(value), tuple(map(freeze, value.values()))
    if isinstance(value, torch.Tensor):
        return weakref.ref(value)
    if type(value) in _PLAIN:
        return value
    raise UnfitError


def _is_same(value: Any, frozen: _Frozen) -> bool:
    kind = type(frozen)
    if kind is tuple:
        keys, values = frozen
        return (
            type(value) is dict
            and tuple(value) == keys
            and all(map(_is_same, value.values(), values))
        )
    if kind is weakref.ref:
        return frozen() is value
    return type(value) is kind and bool(value == frozen)
