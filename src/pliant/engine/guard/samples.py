"""Samples: a few samples of a dataset, in words that two replicas can compare.

Another copy of the data behind the same path is in the sum of every step, and nobody sees it.  Owns
which samples are looked at, when one says nothing (it is another one each time, or something of no
known kind).  Must not know who compares.

Not seen: data that differ elsewhere, and paths, which may differ between hosts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from pliant.core.step import order
from pliant.engine import randomness
from pliant.engine.device import host
from pliant.engine.fingerprint import Look, array_word, digest, tensor_word

NUM_SAMPLES = 4
"""The first, and others by the seed."""

MOST_DRAWS = 8
"""Of each sample: one that is flipped now and then is to be seen as such."""

FEWEST_DRAWS = 2

CHEAP_S = 0.05
"""Once this long was looked, each sample is drawn twice only."""

ENOUGH_S = 0.5
"""Once this long was looked, no further sample is: they come from far away."""

SampleWords = dict[int, str]


def words_of_samples(dataset: Any, seed: int) -> SampleWords:
    """Return a digest of each sample that says something; none if any is another one each time."""
    began_s = time.monotonic()
    words: SampleWords = {}
    with randomness.preserved():
        for number, index in enumerate(_indices(len(dataset), seed)):
            if time.monotonic() > began_s + ENOUGH_S:
                break
            drawn = _drawn(dataset, index, (seed, 0, number), began_s + CHEAP_S)
            if len(drawn) > 1:
                return {}
            if drawn:
                words[index] = drawn.pop()
    return words


def word_of_item(item: object) -> str:
    """Return a digest of what is known of an item; of objects of the script's nothing is."""
    try:
        return _ItemLook().word(item, _ItemLook.depth)
    except Exception:  # of somebody's kind of tensor or array
        return ""


def _indices(size: int, seed: int) -> Iterable[int]:
    others = (order.mix("sample", seed, number) % size for number in range(1, NUM_SAMPLES))
    return dict.fromkeys((0, *others))


def _drawn(dataset: Any, index: int, place: tuple[int, int, int], cheap_s: float) -> set[str]:
    """Return the words of a sample: several if it is another one each time, or none."""
    words: set[str] = set()
    for draw in range(MOST_DRAWS):
        if draw >= FEWEST_DRAWS and time.monotonic() > cheap_s:
            break
        randomness.seed_place("item", *place)
        try:
            words.add(digest("", [_SampleLook().word(dataset[index], _SampleLook.depth)]).strip())
        except Exception:  # the script's own, which is told in the step that needs this sample
            return set()
        if len(words) > 1:
            break
    return words


class _ItemLook(Look):
    """Arrays are looked at as a whole; paths are alike."""

    depth = 100

    def rule(self, value: Any) -> str | None:
        if isinstance(value, PurePath):
            return "text"
        if isinstance(value, str):
            is_path = value.startswith("/") or "://" in value
            return "text" if is_path else digest("text", [value])
        if isinstance(value, torch.Tensor):
            if not host.is_here(value) or value.is_quantized:
                return self.unknown(value)
            return tensor_word(value.contiguous(), most=max(1, value.numel()))
        if isinstance(value, np.ndarray):
            if value.dtype.kind == "U":  # texts, which may be paths
                return self.word(value.tolist(), self.depth)
            return digest(array_word(value), [value.tobytes()])
        if callable(getattr(value, "tobytes", None)) and hasattr(value, "mode"):  # one of Pillow's
            return digest(f"{value.mode} {np.shape(value)}", [value.tobytes()])
        return None


class _SampleLook(_ItemLook):
    """What is of no known kind raises."""

    def unknown(self, value: Any) -> str:
        raise TypeError
