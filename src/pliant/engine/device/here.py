"""Here: the device of this worker.

Owns which one it is: the one that the model of the session is on, one per process.  And what a
session needs of an accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from pliant.core.errors import ConfigError
from pliant.engine.device import host
from pliant.engine.device.accelerator import Accelerator
from pliant.engine.device.base import Device
from pliant.engine.device.cpu import Cpu
from pliant.engine.device.cuda import Cuda

device: Device = Cpu()
"""Of this worker."""

_NEEDS: dict[str, Callable[[str], object]] = {
    "float64": lambda kind: torch.zeros(1, dtype=torch.float64, device=kind),
    "streams": lambda kind: torch.Stream(torch.device(kind)).record_event(),
    "generators": lambda kind: torch.get_device_module(kind).default_generators,
    "pinned memory": lambda kind: torch.empty(1, device=host.LOCATION, pin_memory=True),
}


def choose(tensors: Iterable[torch.Tensor]) -> None:
    """Take the device on which these are, or some of them: the others are in host memory.

    Raises:
        ConfigError: torch has not all that is needed of such a device.
    """
    global device  # one per process, as a worker has one
    wheres = {tensor.device for tensor in tensors} - {torch.device("meta")}
    found = sorted((one for one in wheres if one.type != host.LOCATION), key=str)
    if not found:
        device = device if isinstance(device, Cpu) else Cpu()
        return
    kind = found[0].type
    if not isinstance(device, Accelerator) or device.type != kind:
        refuse_kind(kind)
        device = Cuda(kind) if kind == Cuda.KIND else Accelerator(kind)
    device.wheres = [one for one in found if one.type == kind]


def refuse_kind(kind: str) -> None:
    """Refuse a kind of accelerator that lacks what a session needs, with what torch says of it."""
    for what, make in _NEEDS.items():
        try:
            make(kind)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except (AttributeError, RuntimeError, TypeError) as error:
            said = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"a session needs {what} of an accelerator, and {kind!r} has none: train on the "
                f"CPU, or on another kind; torch says: {said}"
            ) from error
