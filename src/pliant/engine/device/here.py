"""Here: the device of this worker.

Owns which one it is: one per process, as a worker has one device.
"""

from __future__ import annotations

from pliant.engine.device.base import Device
from pliant.engine.device.cpu import Cpu

device: Device = Cpu()
"""Of this worker."""
