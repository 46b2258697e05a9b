"""Here: the device of this worker.

Owns which one it is: the one that the model of the session is on, one per process.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pliant.engine.device import host
from pliant.engine.device.accelerator import Accelerator
from pliant.engine.device.base import Device
from pliant.engine.device.cpu import Cpu

device: Device = Cpu()
"""Of this worker."""

NOT_YET = frozenset({"cuda", "hpu", "mps", "mtia", "xpu"})
"""Kinds that a session refuses for now: what decides their bits is in no run's identity yet."""


def choose(tensors: Iterable[torch.Tensor]) -> None:
    """Take the device on which these are, or some of them: the others are in host memory."""
    global device  # one per process, as a worker has one
    kinds = {tensor.device.type for tensor in tensors}
    found = sorted(kinds - {host.LOCATION, "meta"} - NOT_YET)
    if found and device.type != found[0]:
        device = Accelerator(found[0])
    elif not found and device.type != host.LOCATION:
        device = Cpu()
