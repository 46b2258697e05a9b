"""Device: what a worker's device does in its own way.

Owns the interface.  Each worker has one device, ``here.device``, on which its model is.  Host
memory is ``engine.device.host``; what travels and what is stored goes through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Hasher(Protocol):
    """What ``xxhash`` and ``hashlib`` make."""

    def update(self, data: Any, /) -> None:
        """Take more bytes."""


class Device(ABC):
    """See the module's text."""

    type: str
    """As torch names it: of meshes, autocast and the identity of a run."""

    # --- what is trained here -------------------------------------------------------------

    @abstractmethod
    def check(self, name: str, tensor: torch.Tensor) -> None:
        """Refuse a parameter or buffer that is elsewhere.

        Raises:
            ConfigError: with a sentence for the user.
        """

    @abstractmethod
    def identity(self, threads: int) -> tuple[tuple[str, str], ...]:
        """Return what of this device decides the bits of a result, as (name, value) pairs.

        ``threads``: of torch, on the host.

        Raises:
            ConfigError: the same computation gives other results from one time to the next.
        """

    # --- memory ---------------------------------------------------------------------------

    @abstractmethod
    def lasting(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return flat memory, of any content, that every step reads and writes as a whole.

        Raises:
            OSError: there is no such memory.
        """

    # --- computing ------------------------------------------------------------------------

    def without_autocast(self) -> AbstractContextManager[Any]:
        """Compute in the tensors' own types, whatever the script has set."""
        return torch.autocast(self.type, enabled=False)

    @abstractmethod
    def scalar(self) -> torch.Tensor:
        """Return a zero."""

    @abstractmethod
    def seed(self, number: int) -> None:
        """Seed torch's generators: the host's, and this device's."""

    @abstractmethod
    def generators(self) -> Any:
        """Return where these generators are."""

    @abstractmethod
    def restore_generators(self, states: Any) -> None:
        """Put them where ``generators`` found them."""

    # --- digests --------------------------------------------------------------------------

    @abstractmethod
    def word(self, tensor: torch.Tensor, start: int = 0, stop: int | None = None) -> int:
        """Return 64 bits of some of a tensor's bytes, in logical order; for comparing replicas."""

    @abstractmethod
    def change_word(self, change: torch.Tensor) -> float:
        """Return 32 bits of a flat float64 tensor; equal changes have equal ones."""

    @abstractmethod
    def feed(self, hasher: Hasher, tensor: torch.Tensor) -> None:
        """Hash a tensor's bytes in logical order; the same bytes on every device."""
