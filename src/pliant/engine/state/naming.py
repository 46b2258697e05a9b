"""Naming: what each value of a run's state is called, and which of them differ between replicas.

Owns the words for the places of a state (``State.capture``), for sentences that a user reads.
Must not know how states come to differ, how replicas meet, or what follows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import xxhash

from pliant.engine.device import here
from pliant.engine.state.tagged_codec import CodecError, encode

Named = dict[str, str]
"""A short text of each value, by its name; equal texts stand for equal values."""

MAX_CHARACTERS = 60
"""Of a value in a sentence; longer ones are told by a digest."""


def named(state: Mapping[str, Any]) -> Named:
    """Name every value in a part of a state."""
    return {_name(path): _text(value) for path, value in _leaves(state, ())}


def difference(said: Sequence[Mapping[str, str]], replicas: Sequence[str]) -> str | None:
    """Say which value is the first that is not the same on all, and what it is on whom.

    A replica that names nothing does not know, and is left out.
    """
    known = [(who, names) for who, names in zip(replicas, said, strict=True) if names]
    for name in dict.fromkeys(name for _, names in known for name in names):
        who_by_value: dict[str, list[str]] = {}
        for who, names in known:
            who_by_value.setdefault(names.get(name, "not there"), []).append(who)
        if len(who_by_value) > 1:
            parts = [f"{value} on {', '.join(who)}" for value, who in who_by_value.items()]
            return f"{name} differs between replicas ({'; '.join(parts)})"
    return None


def sentence(step: int, what: str) -> str:
    """Return what a user reads of a script that changed something on some replicas only."""
    return (
        f"at step {step} {what}: the script changed it on some replicas only; do it on every "
        "replica alike, not where session.leader is true"
    )


def summary(names: Mapping[str, str]) -> str:
    """Return a digest of them all."""
    return f"{xxhash.xxh3_64_intdigest(repr(sorted(names.items())).encode()):016x}"


def told(path: tuple[Any, ...], digest: int) -> tuple[str, str]:
    """Return the name and the text of a tensor whose bytes have this digest."""
    return _name(path), f"digest {digest:016x}"


def pack(names: Mapping[str, str]) -> bytes:
    """Return what ``unpack`` reads."""
    return json.dumps(names).encode()


def unpack(payload: bytes) -> Named:
    """Return the names that ``pack`` was given."""
    found: Named = json.loads(payload)
    return found


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, (*path, key))
    elif isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        for number, part in enumerate(value):
            yield from _leaves(part, (*path, number))
    else:
        yield path, value


_SIMPLE = {"parameters": "parameter", "buffers": "buffer", "requires_grad": "requires_grad of"}


def _name(path: tuple[Any, ...]) -> str:
    match path:
        case ("parameters" | "buffers" | "requires_grad" as part, name):
            return f"{_SIMPLE[part]} {name!r}"
        case ("training", name):
            what = f"module {name!r}" if name else "the model"
            return f"training of {what} (train() or eval())"
        case ("modules", name, *rest):
            return f"the extra state of module {name!r}{_keys(rest)}"
        case ("optimizers", number, "groups", group, *rest):
            return f"{_last(rest)} of parameter group {group} of optimizer {number}"
        case ("optimizers", number, "state", name, *rest):
            return f"{_last(rest)} of {name!r} in the state of optimizer {number}"
        case ("optimizers", number, _, *rest):
            return f"{_last(rest)} of optimizer {number}"
        case ("schedulers", number, *rest):
            return f"{_last(rest)} of scheduler {number}"
        case ("total",):
            return "the total of steps()"
        case ("fed", name):
            return f"what session.feed({name}=...) was given"
        case ("draws",):
            return "what the sampler draws for this step"
        case ("extra", name, *rest):
            return f"extra_state{_keys([name] * bool(name))}{_keys(rest)}"
        case _:
            return f"state{_keys(path)}"


def _keys(path: Iterable[Any]) -> str:
    return "".join(f"[{key!r}]" for key in path)


def _last(path: Sequence[Any]) -> str:
    return ".".join(str(key) for key in path if key != "values") or "the length"


def _text(value: Any) -> str:
    if torch.is_tensor(value):
        return f"{value.dtype} {tuple(value.shape)} digest {here.device.word(value):016x}"
    try:
        document, tensors = encode(value, shared=False)
    except CodecError:  # it cannot travel anyway, and is refused where it would
        document, tensors = repr(value).encode(), []
    text = "" if tensors else repr(value)
    if 0 < len(text) <= MAX_CHARACTERS:
        return text
    digests = [xxhash.xxh3_64_intdigest(document), *map(here.device.word, tensors)]
    return f"digest {xxhash.xxh3_64_intdigest(repr(digests).encode()):016x}"
