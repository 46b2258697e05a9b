"""Slots: into how many micro-batches the batch of a trainer is cut.

Owns the rule and its sentences, which are the same for every trainer.
"""

from __future__ import annotations

import logging
from typing import Any

from pliant.core.errors import ConfigError
from pliant.engine.worker.bootstrap import worker_context

_log = logging.getLogger(__name__)


def batch_size_of(loader: Any) -> int:
    """Return the samples of a batch of a training loader.

    Raises:
        ConfigError: it does not say.
    """
    size: int | None = getattr(loader, "batch_size", None)
    if size is None:
        raise ConfigError(
            "the training loader does not say its batch_size, of which a session makes micro-"
            "batches; pass a DataLoader with a batch_size"
        )
    return size


def slots_of(batch: int, slots: int | None, *, accumulated: int, option: str) -> int:
    """Return the micro-batches of a step of ``batch`` samples.

    Args:
        batch: samples of a step, over all replicas.
        slots: as many as a script asks for; None: as many as the trainer accumulates.
        accumulated: batches that the trainer accumulates.
        option: by which a script says that.

    Raises:
        ConfigError: they do not cut the batch evenly.
    """
    slots = accumulated if slots is None else slots
    if slots < 1 or slots % accumulated or batch % slots:
        raise ConfigError(
            f"slots={slots} does not cut the batch of {batch} samples evenly; it must be a "
            f"multiple of {option}={accumulated} that divides {batch}"
        )
    if slots == 1 and worker_context() is not None:
        _log.warning(
            "a step of this trainer is one micro-batch, so one replica computes and others cannot "
            "help: cut its batch with slots=%d, or set %s",
            batch,
            option,
        )
    return slots
