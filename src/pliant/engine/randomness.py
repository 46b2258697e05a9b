"""Random numbers: every place where some are drawn has a seed of its own.

Owns the seeding of torch, numpy and ``random`` from coordinates, so that what is
drawn depends on where in the data and in the step it is drawn, never on which process does it,
how often, or what was drawn before.  Must not know datasets, slots' content or replicas.

    item        before each ``__getitem__``          (seed, epoch, position)
    collate     ``collate_fn`` and ``__getitems__``  (seed, step, slot)
    slot        its forward and backward             (seed, step, slot)
    head, tail  the script's code around the slots   (seed, step)
    evaluate    each batch of an evaluation          (seed, ..., batch)
    draws       a sampler's draws of an epoch        (seed, epoch)
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch

from pliant.core.errors import ConfigError
from pliant.core.step import order
from pliant.engine.device import here
from pliant.engine.worker.refusals_alone import tell_in_a_sentence

Place = Literal["item", "collate", "slot", "head", "tail", "evaluate", "draws"]

_chosen = 0


def seed(value: int) -> None:
    """Seed torch, numpy and ``random``; a Session that follows takes ``value`` as its seed.

    Call it before the model is built: ``pliant.seed(1)``.
    """
    global _chosen  # the generators it seeds are global too
    tell_in_a_sentence()
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"seed must be an integer of at least 0, got {value!r}")
    _chosen = value
    torch.manual_seed(value)
    np.random.seed(value % (1 << 32))
    random.seed(value)


def chosen_seed() -> int:
    """Return what was last given to ``seed``; 0 if it was never called."""
    return _chosen


@contextmanager
def preserved() -> Iterator[None]:
    """Leave the three generators as they were before the block."""
    states = here.device.generators(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        here.device.restore_generators(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def state_of(generator: Any) -> Any:
    """Return the state of one of ``GENERATORS``; None: it has none, as the system's."""
    match generator:
        case torch.Generator():
            return generator.get_state()
        case np.random.Generator():
            return generator.bit_generator.state
        case np.random.RandomState():
            return generator.get_state(legacy=True)
        case random.SystemRandom():
            return None
        case _:
            return generator.getstate()


def seed_place(place: Place, *coordinates: int) -> None:
    """Seed the three generators for what is drawn at these coordinates of a place."""
    number = order.mix(place, *coordinates)
    here.device.seed(number)
    np.random.seed(number)
    random.seed(number)
