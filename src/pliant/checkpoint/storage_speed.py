"""Measuring a storage before one relies on it: how long a save and a restore take under load.

Owns the measurement.  It writes real shares of random tensors below a directory of its own, as so
many members at once, publishes, reads everything back with its digests, and removes it all.
"""

from __future__ import annotations

import statistics
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.read import load, open_checkpoint
from pliant.checkpoint.dcp.shares import publish, write_share
from pliant.checkpoint.store.base import Storage, StorageOptions
from pliant.checkpoint.store.open import open_storage
from pliant.core.errors import ConfigError

_TENSOR_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpeed:
    """One storage under one load; seconds and bytes are lists of one entry per round."""

    place: str
    num_writers: int
    num_bytes: int
    save_s: tuple[float, ...]
    restore_s: tuple[float, ...]

    def summary(self) -> dict[str, float]:
        """Return medians, in seconds and MB/s of all writers together."""
        save_s, restore_s = statistics.median(self.save_s), statistics.median(self.restore_s)
        return {
            "save_s": save_s,
            "save_mb_per_s": self.num_bytes / save_s / 1e6,
            "restore_s": restore_s,
            "restore_mb_per_s": self.num_bytes / restore_s / 1e6,
        }


def measure_storage(
    url: str,
    options: StorageOptions | None = None,
    *,
    num_writers: int = 1,
    num_bytes: int = 256 << 20,
    num_rounds: int = 3,
) -> StorageSpeed:
    """Save and restore at a place; leaves nothing there.

    A restore of what was just written may come from the page cache of this machine.  The writers
    are threads, and ``num_bytes`` those of the state, all shares together.

    Raises:
        ConfigError: a number is less than 1.
    """
    numbers = {"writers": num_writers, "bytes": num_bytes, "rounds": num_rounds}
    for name, value in numbers.items():
        if value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    root = open_storage(url, options)
    scratch = f"bench-{uuid.uuid4().hex[:12]}"
    storage = open_storage(f"{url.rstrip('/')}/{scratch}", options)
    contents = Contents(tensors=_tensors(num_bytes))
    save_s, restore_s = [], []
    try:
        for number in range(1, num_rounds + 1):
            name = layout.name_of(number, 0)
            start_s = time.monotonic()
            _save(storage, name, contents, num_writers)
            saved_s = time.monotonic()
            load(open_checkpoint(storage, name))
            restore_s.append(time.monotonic() - saved_s)
            save_s.append(saved_s - start_s)
            storage.remove(name)
    finally:
        root.remove(scratch)
    return StorageSpeed(
        place=url,
        num_writers=num_writers,
        num_bytes=num_bytes,
        save_s=tuple(save_s),
        restore_s=tuple(restore_s),
    )


def _save(storage: Storage, name: str, contents: Contents, num_writers: int) -> None:
    """Write all shares at once; a failure ends the others at their next piece."""
    failed = threading.Event()

    def write(rank: int) -> None:
        try:
            write_share(
                storage,
                name,
                contents,
                rank=rank,
                num_shares=num_writers,
                generation=1,
                stop=failed.is_set,
            )
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(num_writers) as pool:
        writing = [pool.submit(write, rank) for rank in range(num_writers)]
    for share in writing:
        share.result()
    publish(storage, name, generation=1, num_shares=num_writers, job="bench")


def _tensors(num_bytes: int) -> dict[str, torch.Tensor]:
    """Return random tensors of so many bytes: nothing can compress them."""
    generator = torch.Generator().manual_seed(0)
    starts = range(0, num_bytes, _TENSOR_BYTES)
    sizes = [min(_TENSOR_BYTES, num_bytes - start) for start in starts]
    return {
        f"model.{index}": torch.randint(
            0, 256, (size,), dtype=torch.uint8, generator=generator, device="cpu"
        )
        for index, size in enumerate(sizes)
    }
