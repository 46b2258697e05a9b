"""What a message may hold at most: names that can name something, numbers that can be counted.

Owns these bounds, once for every message, so that what is read can be computed with, sorted, shown
and written whoever sent it.  Knows nothing of what a message means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from pliant.core.membership.failure.worker_activity import EACH_OTHER
from pliant.core.text import MOST_S

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""Of a node or a checkpoint; host names are such names."""

REPLICA = re.compile(r"r[1-9][0-9]{0,14}")
"""Of a replica: the core orders them by their numbers."""

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
"""Of the key of a label of a node, or its value."""

MOST_LABELS = 16
"""Of one node."""

MOST_DEVICES = 10_000
"""Of one node: commands for more could not wait for it."""

MOST = 1 << 53
"""Any other whole number; JSON carries larger ones badly."""

REPLICAS = frozenset({"replica", "replicas", "to", "leave", "origin", "unreached", "ailing"})
"""Fields that name a replica, or several."""

NODES = frozenset({"node", "others", "head", "parts", "missed"})
"""Fields that name a node, or several."""

WORKERS = frozenset({"held_up_by"})
"""Fields that name a worker of a replica, or all of them as such that wait for each other."""

LABELS = frozenset({"labels"})

CHECKPOINTS = frozenset({"checkpoint", "name"})
"""Fields that name a checkpoint; empty: none."""

MAYBE_EMPTY = CHECKPOINTS | {"head"}
"""Names of nothing, too: the node of most hosts is not several."""

MEASURED = frozenset({"loss", "grad_norm", "values"})
"""Fields that a script computes, and may be any number."""


def name_from(text: str) -> str:
    """Return a name made of any text, for a host that is called what no message may say."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", text)[:253].lstrip("._-")
    return name or "node"


def _names_of(kind: type) -> tuple[str, ...] | None:
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else None


names_of: Callable[[type], tuple[str, ...] | None] = cache(_names_of)
"""Returns the names of the fields of a value of a message; None: it has none."""


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a value of a message; what they hold is what it is.

    Raises:
        TypeError: it has none.
    """
    names = names_of(type(value))
    if names is None:
        raise TypeError(f"{type(value).__name__} is no value of a message")
    return {name: getattr(value, name) for name in names}


def excess(known: Mapping[str, Any]) -> str | None:
    """Name the first field that is out of bounds, and how; None if all is well."""
    for key, value in known.items():
        if (found := _excess(key, value)) is not None:
            return found
    return None


def _excess(key: str, value: Any) -> str | None:
    """Judge one value; by its exact type, as it is of every message and every member."""
    kind = type(value)
    if kind is str:
        return None if _is_name(key, value) else f"{key}: {value!a:.40} is no name"
    if kind is int:
        most = MOST_DEVICES if key == "devices" else MOST
        least = EACH_OTHER if key in WORKERS else 0
        return (
            None if least <= value <= most else f"{key}: {value} is not between {least} and {most}"
        )
    if key in MEASURED:
        return None
    if kind is float:
        return None if 0 <= value <= MOST_S else f"{key}: {value!r} is no number of seconds"
    if kind is tuple or kind is list:
        if key in LABELS and len(value) > MOST_LABELS:
            return f"{key}: {len(value)} are more than {MOST_LABELS}"
        return next(filter(None, (_excess(key, item) for item in value)), None)
    if kind is dict or names_of(kind) is not None:
        found = excess(value if kind is dict else fields_of(value))
        return found and f"{key}.{found}"
    return None  # true, false, none, one of a few words


def _is_name(key: str, text: str) -> bool:
    """Whether a text names what its field names; other texts may be anything."""
    if key in REPLICAS:
        return REPLICA.fullmatch(text) is not None
    if key in LABELS:
        return LABEL.fullmatch(text) is not None
    if key in NODES or key in CHECKPOINTS:
        return NAME.fullmatch(text) is not None or (not text and key in MAYBE_EMPTY)
    return True
