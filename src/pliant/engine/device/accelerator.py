"""An accelerator: memory that host code cannot touch, and work that is done later, in streams.

Owns all that depends on that, by torch's own words for any vendor's (``torch.accelerator``,
``torch.Event``, ``torch.Stream``).  Parameters may be on several devices of this kind, and in host
memory.  Must not know a vendor, nor what travels.

Copies to and from the host have a stream of their own per device and thread, so that they wait for
nothing but what they copy.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from pliant.core.errors import ConfigError
from pliant.engine.device import host, memory
from pliant.engine.device.base import Device, Mark
from pliant.engine.device.cpu import Cpu


class Accelerator(Device):
    """See the module's text."""

    def __init__(self, kind: str) -> None:
        self.type = kind
        self._host = Cpu()
        self._generators = torch.get_device_module(kind).default_generators
        self._threads = threading.local()

    def check(self, name: str, tensor: torch.Tensor) -> None:
        """See ``Device``."""
        if tensor.device.type not in (self.type, host.LOCATION):
            raise ConfigError(
                f"{name!r} is on {tensor.device}, and other parameters are on {self.type!r}: "
                "pliant trains on accelerators of one kind"
            )

    def identity(self, threads: int) -> tuple[tuple[str, str], ...]:
        """See ``Device``."""
        return tuple(
            (name, self.type if name == "device_type" else value)
            for name, value in self._host.identity(threads)
        )

    def lasting(self, numel: int, dtype: torch.dtype, where: torch.device) -> torch.Tensor:
        """See ``Device``."""
        if where.type == host.LOCATION:
            return memory.lasting(numel, dtype)
        return torch.empty(numel, dtype=dtype, device=where)

    def staging(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """See ``Device``."""
        return torch.empty(numel, dtype=dtype, device=host.LOCATION, pin_memory=True)

    def mark(self, where: torch.device) -> Mark:
        """See ``Device``."""
        if where.type == host.LOCATION:
            return None
        event = torch.Event(where)
        event.record(torch.accelerator.current_stream(where))
        return event

    def fetch(
        self, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor], mark: Mark
    ) -> None:
        """See ``Device``."""
        stream = self._stream_of(tensors[0].device)
        stream.wait_event(mark)
        with stream:
            for tensor, target in zip(tensors, into, strict=True):
                tensor.record_stream(stream)
                target.copy_(tensor, non_blocking=True)
        stream.synchronize()

    def put(self, source: torch.Tensor, into: torch.Tensor) -> Mark:
        """See ``Device``."""
        stream = self._stream_of(into.device)
        with stream:
            into.record_stream(stream)
            into.copy_(source, non_blocking=True)
        return stream.record_event()

    def join(self, mark: Mark, used: torch.Tensor) -> None:
        """See ``Device``."""
        torch.accelerator.current_stream(used.device).wait_event(mark)

    def _stream_of(self, where: torch.device) -> torch.Stream:
        """Return this thread's stream for copies."""
        streams = self._threads.__dict__
        if (name := str(where)) not in streams:
            streams[name] = torch.Stream(where)
        found: torch.Stream = streams[name]
        return found

    def scalar(self) -> torch.Tensor:
        """See ``Device``."""
        return torch.zeros((), device=self.type)

    def seed(self, number: int) -> None:
        """See ``Device``."""
        self._host.seed(number)
        for generator in self._generators:
            generator.manual_seed(number)

    def generators(self) -> Any:
        """See ``Device``."""
        return self._host.generators(), [one.get_state() for one in self._generators]

    def restore_generators(self, states: Any) -> None:
        """See ``Device``."""
        of_host, of_devices = states
        self._host.restore_generators(of_host)
        for generator, state in zip(self._generators, of_devices, strict=True):
            generator.set_state(state)
