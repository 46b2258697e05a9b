"""The CPU: everything is in host memory, and complete when a call returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pliant.core.errors import ConfigError
from pliant.core.values import DEVICE_TYPE, KERNELS, NUMERICS
from pliant.engine.device import memory
from pliant.engine.device.base import Check, Device, Mark
from pliant.engine.device.numerics import word_of_numerics


class Cpu(Device):
    """See the module's text."""

    type = "cpu"

    def check(self, name: str, tensor: torch.Tensor) -> None:
        """See ``Device``."""
        if tensor.device.type != self.type:
            raise ConfigError(
                f"{name!r} is on {tensor.device}, where tensors have no values; give it memory "
                "before the session is made, with to_empty(), and set its values"
            )

    def identity(self, threads: int) -> tuple[tuple[str, str], ...]:
        """See ``Device``."""
        return (
            (DEVICE_TYPE, self.type),
            (KERNELS, torch.backends.cpu.get_cpu_capability()),  # another set rounds differently
            (NUMERICS, word_of_numerics(threads)),
        )

    def refuse_graphs(self) -> None:
        """There are none."""

    def lasting(self, numel: int, dtype: torch.dtype, where: torch.device) -> torch.Tensor:
        """See ``Device``."""
        del where
        return memory.lasting(numel, dtype)

    def staging(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """See ``Device``."""
        return memory.lasting(numel, dtype)

    def mark(self, where: torch.device) -> None:
        """All is complete."""

    def behind(self, mark: Mark, where: torch.device) -> AbstractContextManager[Any]:
        """All is complete."""
        return nullcontext()

    def fetch(
        self, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor], mark: Mark = None
    ) -> Callable[[Check], None]:
        """See ``Device``."""
        del mark
        for tensor, target in zip(tensors, into, strict=True):
            target.copy_(tensor)
        return lambda check: None

    def put(self, source: torch.Tensor, into: torch.Tensor) -> None:
        """See ``Device``."""
        into.copy_(source)

    def sent(self, tensor: torch.Tensor, where: torch.device) -> torch.Tensor:
        """See ``Device``."""
        del where
        return tensor

    def join(self, mark: Mark, used: torch.Tensor) -> None:
        """All is complete."""

    def read(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        """See ``Device``."""
        found = [tensor.detach().clone() for tensor in tensors]
        return lambda: found

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
