"""Sample words: a few samples of a dataset, in digests that two replicas can compare.

Another copy of the data behind the same path is in the sum of every step, and nobody sees it.  Owns
which samples are looked at, when one says nothing (it is another one each time, or something of no
known kind), and how what loader processes fetched gets to the session.  Must not know who compares.

Not seen: data that differ elsewhere, and paths, which may differ between hosts.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import time
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import xxhash

from pliant.core.step import seeds
from pliant.engine.data import randomness

NUM_SAMPLES = 4
"""The first, and others by the seed."""

MOST_DRAWS = 8
"""Of each sample: one that is flipped now and then is to be seen as such."""

FEWEST_DRAWS = 2

CHEAP_S = 0.05
"""Once this long was looked, each sample is drawn twice only."""

ENOUGH_S = 0.5
"""Once this long was looked, no further sample is: they come from far away."""

WAIT_S = 10.0
"""Longest wait for what the first loader process fetches, in seconds."""

Words = dict[int, str]

_VARIES = ""


def words_of_samples(dataset: Any, seed: int) -> Words:
    """Return a digest of each sample that says something; none if any is another one each time."""
    began_s = time.monotonic()
    words: Words = {}
    with randomness.preserved():
        for number, index in enumerate(_indices(len(dataset), seed)):
            if time.monotonic() > began_s + ENOUGH_S:
                break
            word = _drawn(dataset, index, (seed, 0, number), began_s + CHEAP_S)
            if word == _VARIES:
                return {}
            if word is not None:
                words[index] = word
    return words


class SampleReport:
    """A pipe from the first loader process, which looks, to the session."""

    def __init__(self) -> None:
        self._reads, self._writes = -1, -1

    def open(self) -> None:
        """Make it; before loader processes start, which have both ends then."""
        self._reads, self._writes = os.pipe()

    def begun(self) -> None:
        """They have started: only they write."""
        self._writes = _closed(self._writes)

    def write(self, words: Words) -> None:
        """In a loader process, once: say what was found; nothing: it is not the first one."""
        with contextlib.suppress(OSError):  # the session has closed, or its process has ended
            if words and self._writes >= 0:
                os.write(self._writes, json.dumps(words).encode() + b"\n")
        self.close()

    def read(self) -> Words:
        """Return what the first loader process says; nothing if it takes too long.  Once."""
        deadline_s = time.monotonic() + WAIT_S
        text, said = b"", select.poll()  # select takes no descriptor above 1,023
        if self._reads >= 0:
            said.register(self._reads, select.POLLIN)
        while self._reads >= 0 and not text.endswith(b"\n"):
            left_s = max(0.0, deadline_s - time.monotonic())
            if not said.poll(left_s * 1000):
                break
            if not (part := os.read(self._reads, 1 << 12)):
                break
            text += part
        self.close()
        return {int(k): v for k, v in json.loads(text).items()} if text.endswith(b"\n") else {}

    def close(self) -> None:
        """Give both ends back."""
        self._reads, self._writes = _closed(self._reads), _closed(self._writes)


def _closed(descriptor: int) -> int:
    if descriptor >= 0:
        os.close(descriptor)
    return -1


def _indices(size: int, seed: int) -> Iterable[int]:
    others = (seeds.mix("sample", seed, number) % size for number in range(1, NUM_SAMPLES))
    return dict.fromkeys((0, *others))


def _drawn(dataset: Any, index: int, place: tuple[int, int, int], cheap_s: float) -> str | None:
    """Return the word of a sample; ``_VARIES``: it is another one each time; None: no word."""
    words = set()
    for draw in range(MOST_DRAWS):
        if draw >= FEWEST_DRAWS and time.monotonic() > cheap_s:
            break
        randomness.seed_place("item", *place)
        hasher = xxhash.xxh3_128()
        try:
            _add(hasher, dataset[index])
        except Exception:  # the script's own, which is told in the step that needs this sample
            return None
        words.add(hasher.hexdigest()[:16])
        if len(words) > 1:
            return _VARIES
    return words.pop()


class _UnknownError(Exception):
    """A sample holds something of which no digest can be made."""


def _add(hasher: Any, value: Any) -> None:
    """Add a part of a sample to its digest, and the parts of that."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "U":
        value = value.tolist()  # texts, which may be paths
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            _add_bytes(hasher, "key", str(key).encode("utf-8", "surrogatepass"))
            _add(hasher, value[key])
    elif isinstance(value, list | tuple):
        hasher.update(f"{len(value)} parts".encode())
        for part in value:
            _add(hasher, part)
    elif isinstance(value, torch.Tensor | np.ndarray | np.generic) or _is_picture(value):
        _add_bytes(hasher, *_of_array(value))
    else:
        _add_bytes(hasher, *_of_plain(value))


def _is_picture(value: Any) -> bool:
    """Whether it is one of Pillow's, which need not be installed."""
    return callable(getattr(value, "tobytes", None)) and hasattr(value, "mode")


def _of_array(value: Any) -> tuple[str, Any]:
    """Return what many numbers are like, and their bytes."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise _UnknownError
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return f"{value.dtype} {list(value.shape)}", flat.view(torch.uint8).numpy()
    if getattr(value, "dtype", None) is not None and value.dtype.hasobject:
        raise _UnknownError
    return f"{getattr(value, 'dtype', '')} {np.shape(value)}", value.tobytes()


def _of_plain(value: object) -> tuple[str, bytes]:
    """Return what one value is, and its bytes; paths are alike."""
    match value:
        case PurePath():
            return "text", b""
        case str():
            is_path = value.startswith("/") or "://" in value
            return "text", b"" if is_path else value.encode("utf-8", "surrogatepass")
        case bytes() | bytearray():
            return "bytes", bytes(value)
        case float():
            return "number", b"nan" if math.isnan(value) else value.hex().encode()
        case None | bool() | int() | complex():
            return "number", repr(value).encode()
        case _:
            raise _UnknownError


def _add_bytes(hasher: Any, kind: str, parts: Any) -> None:
    hasher.update(f"{kind} {len(parts)} ".encode())
    hasher.update(parts)
