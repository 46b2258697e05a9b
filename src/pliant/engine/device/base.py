"""Device: what a worker's device does in its own way.

Owns the interface.  Each worker has one device, ``here.device``, on which its model is.  Host
memory is ``engine.device.host``; what travels and what is stored goes through it.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import torch
import xxhash

from pliant.engine.device import host
from pliant.engine.device.deterministic import Setting

Mark = Any
"""A point in the work that was queued on a device; see ``Device.mark``."""

Check = Callable[[], None]
"""Raises if what is waited for is not wanted any more."""

Part = tuple[torch.Tensor, int, int]
"""A tensor, and its first and last byte that are meant, in logical order; whole elements."""


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

    def settings(self) -> Sequence[Setting]:
        """Return the settings of torch with which this device gives the same bits each time."""
        return ()

    @abstractmethod
    def refuse_graphs(self) -> None:
        """Refuse a backward that this device would replay without the session; does not wait."""

    # --- memory ---------------------------------------------------------------------------

    @abstractmethod
    def lasting(self, numel: int, dtype: torch.dtype, where: torch.device) -> torch.Tensor:
        """Return flat memory, of any content, that every step reads and writes as a whole.

        ``where``: in host memory, or on an accelerator.

        Raises:
            OSError: there is no such memory.
        """

    @abstractmethod
    def staging(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return flat host memory between which and this device copies are fast."""

    @abstractmethod
    def mark(self, where: torch.device) -> Mark:
        """Return a mark behind everything that this thread has queued on a device so far."""

    @abstractmethod
    def behind(self, mark: Mark, where: torch.device) -> AbstractContextManager[Any]:
        """Queue what this thread does within on a stream of its own, behind a mark."""

    @abstractmethod
    def fetch(
        self, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor], mark: Mark = None
    ) -> Callable[[Check], None]:
        """Copy to host memory what the tensors hold at a mark, on any thread.

        Without a mark: what they hold now; what this thread queues from now on may change them.
        Only the call waits, on any thread.  If its argument raises meanwhile, copies may still
        come; then only later fetches of this thread may have the same ``into``.
        """

    @abstractmethod
    def put(self, source: torch.Tensor, into: torch.Tensor) -> Mark:
        """Queue a copy from host memory; ``source`` may be changed once the mark is reached."""

    @abstractmethod
    def sent(self, tensor: torch.Tensor, where: torch.device) -> torch.Tensor:
        """Return on a device what is in host memory, or itself; waits for nothing."""

    @abstractmethod
    def join(self, mark: Mark, used: torch.Tensor) -> None:
        """Let what this thread queues from now on come after a mark; ``used``: what it uses."""

    def use(self, tensors: Iterable[torch.Tensor]) -> None:  # noqa: B027  all are complete
        """Keep the memory of these, once they are gone, until what this thread has queued is done.

        For tensors of another stream: what a hook of a backward was given, and keeps.
        """

    def as_here(self) -> AbstractContextManager[Any]:
        """Return what lets another thread queue its work in line with that of this one."""
        return nullcontext()

    @abstractmethod
    def read(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        """Copy what these tensors hold now; the call returns the copies, in host memory.

        Only the call waits, once for all that was asked for before it.
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

    def words(self, parts: Sequence[Part]) -> Callable[[], list[int]]:
        """Hash these parts as they are now, for comparing replicas; the call returns 64 bits each.

        Only the call waits for the device.
        """
        found = [self.word(tensor, start, stop) for tensor, start, stop in parts]
        return lambda: found

    def word(self, tensor: torch.Tensor, start: int = 0, stop: int | None = None) -> int:
        """Return 64 bits of some of a tensor's bytes, in logical order; for comparing replicas."""
        flat = tensor.detach().contiguous().reshape(-1).resolve_conj().resolve_neg()
        part = host.copy_of(flat.view(torch.uint8)[start:stop])
        return xxhash.xxh3_64_intdigest(cast("Any", part.numpy()))

    def change_word(self, change: torch.Tensor) -> float | torch.Tensor:
        """Return 32 bits of a flat float64 tensor; equal changes have equal ones."""
        return float(zlib.crc32(host.bytes_of(change + 0.0)))  # -0 is 0

    def digest(self, head: bytes, tensor: torch.Tensor) -> Callable[[], str]:
        """Hash bytes and a tensor as it is now, for comparing replicas; the call returns it.

        Only the call waits for the device.
        """
        hasher = xxhash.xxh3_128(head)
        self.feed(hasher, tensor)
        return hasher.hexdigest

    def feed(self, hasher: Hasher, tensor: torch.Tensor) -> None:
        """Hash a tensor's bytes in logical order; the same bytes on every device."""
        hasher.update(host.bytes_of(host.copy_of(tensor.contiguous())))
