"""An accelerator: memory that host code cannot touch, and work that is done later, in streams.

Owns all that depends on that, by torch's own words for any vendor's (``torch.accelerator``,
``torch.Event``, ``torch.Stream``).  Parameters may be on several devices of this kind, and in host
memory.  Must not know a vendor, nor what travels.

Copies to and from the host have a stream of their own per device and thread, so that they wait for
nothing but what they copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import xxhash

from pliant.core.errors import ConfigError
from pliant.core.values import DEVICE, DEVICE_TYPE
from pliant.engine.device import deterministic, graphs, host, memory
from pliant.engine.device.base import Check, Device, Mark, Part
from pliant.engine.device.cpu import Cpu
from pliant.engine.device.numerics import word_of_device

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_STEP = 0x5851F42D4C957F2E
"""Even, so that its multiples plus one are odd."""
_WORD = (1 << 32) - 1

FIRST_LOOK_S, LONGEST_LOOK_S = 2e-5, 1e-3
"""Between two looks for a copy, in seconds: a copy of 1 MB takes the first of them."""

_MULTIPROCESSORS = ("multi_processor_count", "max_compute_units")
"""Of a device's properties: names for how many there are, on which draws and sums depend."""


class Accelerator(Device):
    """See the module's text."""

    def __init__(self, kind: str) -> None:
        self.type = kind
        self._host = Cpu()
        self._generators = torch.get_device_module(kind).default_generators
        self._is_capturing: Callable[[], bool] = getattr(
            torch.get_device_module(kind), "is_current_stream_capturing", lambda: False
        )
        self.wheres: Sequence[torch.device] = ()
        """Those of the model, in order."""
        self._threads = threading.local()
        self._factors: dict[torch.device, torch.Tensor] = {}
        """By device, by what the integers of a tensor are multiplied for a word."""

    def check(self, name: str, tensor: torch.Tensor) -> None:
        """See ``Device``."""
        if tensor.device.type not in (self.type, host.LOCATION):
            raise ConfigError(
                f"{name!r} is on {tensor.device}, and other parameters are on {self.type!r}: "
                "pliant trains on accelerators of one kind"
            )

    def identity(self, threads: int) -> tuple[tuple[str, str], ...]:
        """See ``Device``."""
        said = dict(self._host.identity(threads)) | {DEVICE_TYPE: self.type}
        said[DEVICE] = " and ".join(dict.fromkeys(map(self.model_of, self.wheres)))
        words = dict.fromkeys(map(word_of_device, self.wheres))
        return (*said.items(), (f"{DEVICE}_numerics", " and ".join(words)))

    def model_of(self, where: torch.device) -> str:
        """Return what a device is, as far as torch knows that: which one of its kind it is, not."""
        module = torch.get_device_module(self.type)
        named: str = getattr(module, "get_device_name", lambda where: where.type)(where)
        found = getattr(module, "get_device_properties", lambda where: None)(where)
        numbers = [getattr(found, name) for name in _MULTIPROCESSORS if hasattr(found, name)]
        return f"{named}, {numbers[0]} multiprocessors" if numbers else named

    def settings(self) -> list[deterministic.Setting]:
        """See ``Device``."""
        return deterministic.general()

    def refuse_graphs(self) -> None:
        """See ``Device``."""
        graphs.refuse_captured(is_capturing=self._is_capturing())
        graphs.refuse_replayed(self.wheres)

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

    def behind(self, mark: Mark, where: torch.device) -> AbstractContextManager[Any]:
        """See ``Device``."""
        stream = self._stream_of(where)
        stream.wait_event(mark)
        return stream

    def fetch(
        self, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor], mark: Mark = None
    ) -> Callable[[Check], None]:
        """See ``Device``: without a mark the device waits before it changes the tensors."""
        streams: dict[torch.device, torch.Stream] = {}
        for tensor, target in zip(tensors, into, strict=True):
            where = tensor.device
            if where.type == host.LOCATION:
                target.copy_(tensor)
                continue
            if where not in streams:
                streams[where] = self._stream_of(where)
                streams[where].wait_event(self.mark(where) if mark is None else mark)
            with streams[where]:
                tensor.record_stream(streams[where])
                target.copy_(tensor, non_blocking=True)
        landed = [stream.record_event() for stream in streams.values()]
        if mark is None:
            for where, copied in zip(streams, landed, strict=True):
                torch.accelerator.current_stream(where).wait_event(copied)

        def wait(check: Check) -> None:
            for copied in landed:
                _await(copied, check)

        return wait

    def put(self, source: torch.Tensor, into: torch.Tensor) -> Mark:
        """See ``Device``."""
        stream = self._stream_of(into.device)
        with stream:
            into.record_stream(stream)
            into.copy_(source, non_blocking=True)
        return stream.record_event()

    def sent(self, tensor: torch.Tensor, where: torch.device) -> torch.Tensor:
        """See ``Device``."""
        if where.type == host.LOCATION:
            return tensor
        return tensor.pin_memory().to(where, non_blocking=True)

    def join(self, mark: Mark, used: torch.Tensor) -> None:
        """See ``Device``."""
        torch.accelerator.current_stream(used.device).wait_event(mark)
        self.use([used])

    def use(self, tensors: Iterable[torch.Tensor]) -> None:
        """See ``Device``."""
        for tensor in tensors:
            if not host.is_here(tensor):
                tensor.record_stream(torch.accelerator.current_stream(tensor.device))

    def as_here(self) -> AbstractContextManager[Any]:
        """See ``Device``."""
        stream: AbstractContextManager[Any] = torch.accelerator.current_stream()
        return stream

    def read(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        """See ``Device``."""
        found: list[torch.Tensor] = []
        devices: set[torch.device] = set()
        for tensor in tensors:
            tensor = tensor.detach()
            if host.is_here(tensor):
                found.append(tensor.clone())
                continue
            copy = torch.empty(
                tensor.shape, dtype=tensor.dtype, device=host.LOCATION, pin_memory=True
            )
            found.append(copy.copy_(tensor, non_blocking=True))
            devices.add(tensor.device)
        marks = [self.mark(where) for where in devices]

        def values() -> list[torch.Tensor]:
            for mark in marks:
                if not mark.query():
                    mark.synchronize()
            return found

        return values

    def words(self, parts: Sequence[Part]) -> Callable[[], list[int]]:
        """See ``Device``."""
        there: dict[torch.device, list[torch.Tensor]] = {}
        places: list[tuple[torch.device, int] | int] = []
        for tensor, start, stop in parts:
            if host.is_here(tensor):
                places.append(self.word(tensor, start, stop))
                continue
            of_device = there.setdefault(tensor.device, [])
            places.append((tensor.device, len(of_device)))
            of_device.append(self._sum_of(_lanes(tensor, start, stop)))
        read = self.read([torch.stack(sums) for sums in there.values()])

        def values() -> list[int]:
            found = dict(zip(there, (sums.tolist() for sums in read()), strict=True))
            return [
                place if isinstance(place, int) else found[place[0]][place[1]] for place in places
            ]

        return values

    def digest(self, head: bytes, tensor: torch.Tensor) -> Callable[[], str]:
        """See ``Device``."""
        words = self.words([(tensor, 0, tensor.nbytes)])
        return lambda: xxhash.xxh3_128_hexdigest(head + repr(words()).encode())

    def change_word(self, change: torch.Tensor) -> float | torch.Tensor:
        """See ``Device``: the same on the host and on the device, and without waiting for it."""
        word = self._sum_of(_lanes(change + 0.0, 0, change.nbytes)) >> 32 & _WORD
        return word.double()

    def _sum_of(self, lanes: torch.Tensor) -> torch.Tensor:
        """Return a sum of integers, each times an odd number of its place, modulo 2**64.

        One that differs makes another sum, since no odd number divides 2**64.
        """
        factors = self._factors.get(lanes.device)
        if factors is None or factors.numel() < lanes.numel():
            places = torch.arange(lanes.numel(), dtype=torch.int64, device=lanes.device)
            factors = self._factors[lanes.device] = places * _STEP | 1
        return ((lanes + 1) * factors[: lanes.numel()]).sum()

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


def _await(mark: Mark, check: Check) -> None:
    """Wait for a mark; not in the driver, which would not come back from a device that hangs."""
    pause, pause_s = threading.Event(), FIRST_LOOK_S
    while not mark.query():
        check()
        pause.wait(pause_s)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)


def _lanes(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return bytes of a tensor, in logical order, as integers of its elements' size."""
    flat = tensor.detach().contiguous().reshape(-1).resolve_conj().resolve_neg()
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    size = flat.element_size()
    return flat.view(_INTEGERS[size])[start // size : stop // size].to(torch.int64)
