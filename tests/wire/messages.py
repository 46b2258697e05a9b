"""Messages of every type, within the bounds of the codec; for tests of who reads them."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any

from hypothesis import strategies as st

from pliant.core.policy.decide import Policy, PolicyBackoff
from pliant.core.text import MOST_S
from pliant.wire import bounds

SECRET = "0123456789abcdef" * 4

NUMBERS = st.integers(0, 5) | st.integers(0, bounds.MOST)
SECONDS = st.floats(0, MOST_S)
NAMES = st.sampled_from(["here", "there"]) | st.from_regex(bounds.NAME, fullmatch=True)
REPLICAS = st.sampled_from(["r1", "r2", "r3"]) | st.from_regex(bounds.REPLICA, fullmatch=True)

POLICIES = st.builds(
    Policy,
    min_replicas=st.just(1),
    max_replicas=st.none() | st.integers(8, 100),
    start_replicas=st.sampled_from([None, 1]),
    replica_increment_step=st.none(),
    replica_discrete_values=st.sampled_from([None, (1, 4, 8)]),
    backoff=st.sampled_from([None, PolicyBackoff()]),
    scaling_timeout_s=st.floats(0, 1e6),
)


def messages(kinds: Sequence[type]) -> st.SearchStrategy[Any]:
    """Return messages of these types, with fields that the codec lets pass."""
    return st.sampled_from(kinds).flatmap(built)


@cache
def built(kind: type) -> st.SearchStrategy[Any]:
    """Return values of a dataclass."""
    if kind is Policy:
        return POLICIES
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind, **{item.name: _value(item.name, hints[item.name]) for item in fields(kind)}
    )


def _value(name: str, hint: Any) -> st.SearchStrategy[Any]:
    of = typing.get_args(hint)
    match typing.get_origin(hint) or hint:
        case types.UnionType | typing.Union:
            return st.one_of(*(_value(name, one) for one in of))
        case kind if kind is tuple and of[-1] is ...:
            return st.lists(_value(name, of[0]), max_size=3).map(tuple)
        case kind if kind is tuple:
            return st.tuples(*(_value(name, one) for one in of))
        case kind if kind is dict:
            return st.dictionaries(st.text(max_size=5), st.floats(), max_size=3)
        case kind if isinstance(kind, type) and issubclass(kind, Enum):
            return st.sampled_from(list(kind))
        case kind if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__"):
            return built(kind)
        case kind:
            return _plain(name, getattr(kind, "__supertype__", kind))


def _plain(name: str, kind: type) -> st.SearchStrategy[Any]:
    if kind is int:
        return st.integers(0, 20) if name == "devices" else NUMBERS
    if kind is float:
        return st.floats() if name in bounds.MEASURED else SECONDS
    if kind is str and name == "secret":
        return st.sampled_from(["", SECRET])
    if kind is str and name in bounds.REPLICAS:
        return REPLICAS
    if kind is str and name in bounds.NODES | bounds.CHECKPOINTS:
        return NAMES
    if kind is str and name in bounds.LABELS:
        return st.from_regex(bounds.LABEL, fullmatch=True)
    if kind is str:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    return {bool: st.booleans(), type(None): st.none()}[kind]
