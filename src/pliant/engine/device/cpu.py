"""The CPU: everything is in host memory, and complete when a call returns."""

from __future__ import annotations

import zlib
from typing import Any, cast

import torch
import xxhash

from pliant.core.errors import ConfigError
from pliant.core.values import KERNELS, NUMERICS
from pliant.engine.device import host, memory
from pliant.engine.device.base import Device, Hasher
from pliant.engine.device.numerics import word_of_numerics


class Cpu(Device):
    """See the module's text."""

    type = "cpu"

    def check(self, name: str, tensor: torch.Tensor) -> None:
        """See ``Device``."""
        if tensor.device.type != self.type:
            raise ConfigError(
                f"{name!r} is on {tensor.device}: pliant trains on CPU for now; CUDA is a "
                "later capability"
            )

    def identity(self, threads: int) -> tuple[tuple[str, str], ...]:
        """See ``Device``."""
        return (
            ("device_type", self.type),
            (KERNELS, torch.backends.cpu.get_cpu_capability()),  # another set rounds differently
            (NUMERICS, word_of_numerics(threads)),
        )

    def lasting(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """See ``Device``."""
        return memory.lasting(numel, dtype)

    def scalar(self) -> torch.Tensor:
        """See ``Device``."""
        return torch.zeros((), device=self.type)

    def seed(self, number: int) -> None:
        """See ``Device``."""
        # The default generator directly: torch.manual_seed is 70 times slower.
        torch.default_generator.manual_seed(number)

    def generators(self) -> Any:
        """See ``Device``."""
        return torch.get_rng_state()

    def restore_generators(self, states: Any) -> None:
        """See ``Device``."""
        torch.set_rng_state(states)

    def word(self, tensor: torch.Tensor, start: int = 0, stop: int | None = None) -> int:
        """See ``Device``."""
        flat = tensor.detach().contiguous().reshape(-1).resolve_conj().resolve_neg()
        return xxhash.xxh3_64_intdigest(cast("Any", flat.view(torch.uint8)[start:stop].numpy()))

    def change_word(self, change: torch.Tensor) -> float:
        """See ``Device``."""
        return float(zlib.crc32(host.bytes_of(change + 0.0)))  # -0 is 0

    def feed(self, hasher: Hasher, tensor: torch.Tensor) -> None:
        """See ``Device``."""
        hasher.update(host.bytes_of(tensor.contiguous()))
