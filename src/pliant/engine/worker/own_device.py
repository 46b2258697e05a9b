"""Own device: the one on which a script puts its model.

Owns which one that is, in a worker, under torchrun, and in a script that runs alone.
"""

from __future__ import annotations

import torch

from pliant.core.errors import ConfigError
from pliant.engine.device import host
from pliant.engine.worker import bootstrap


def device() -> torch.device:
    """Return this process's own device: ``model.to(pliant.device())``.

    The CPU where there is no accelerator, or where the job trains on the CPU.

    Raises:
        ConfigError: this host has more processes of the replica, or of torchrun, than accelerators.
    """
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None or bootstrap.trains_on_cores():
        return torch.device(host.LOCATION)
    number, rank = torch.accelerator.device_count(), bootstrap.local_rank()
    if number == 1:  # each process sees another one, as a part of a GPU
        rank = 0
    if rank >= number:
        raise ConfigError(
            f"process {rank} of this host sees {number} {kind.type} devices, which are those of "
            "others; start fewer, or let it see one of its own"
        )
    return torch.device(kind.type, rank)
