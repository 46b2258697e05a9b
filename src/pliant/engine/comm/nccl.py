"""NCCL: what moves the memory of NVIDIA's GPUs between members, by its Python package nccl4py.

Owns each call of that package, and is besides ``engine.device.cuda`` all that knows CUDA.  What is
relied on, call by call: ``docs/decisions/0021-nccl-moves-pieces.md``.  Not measured: no GPU was at
hand.

Members send and receive pieces of bytes, grouped, and add them up themselves: NCCL has no order of
additions that every number of members shares, no complex numbers and no 16-bit integers.  Its own
port is opened by ``unique_id`` at once, on the interface that NCCL_SOCKET_IFNAME names.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from pliant.engine.comm.communicator import Piece
from pliant.engine.comm.device_communicator import DeviceGroup, Library, LibraryError

KIND = "cuda"
"""As torch names the devices whose memory it moves."""

_log = logging.getLogger(__name__)


@cache
def library() -> Library | None:
    """Return NCCL; None without nccl4py, or without a libnccl that it can load."""
    try:
        package = importlib.import_module("nccl.core")
        loaded = package.get_version().libnccl
    except (ImportError, OSError, RuntimeError) as error:
        _log.debug("no NCCL: %s", error)
        return None
    return None if loaded is None else Nccl(package, f"NCCL {loaded.version}")


class Nccl(Library):
    """See the module's text."""

    def __init__(self, package: Any, name: str) -> None:
        super().__init__()
        self.name = name
        self._package = package

    def unique_id(self) -> bytes:
        """See ``Library``; 128 bytes, 8 of them random."""
        with _named_errors():
            return bytes(self._package.get_unique_id())

    def connect(
        self, unique_id: bytes, *, rank: int, size: int, where: torch.device
    ) -> DeviceGroup:
        """See ``Library``."""
        config = self._package.NCCLConfig(blocking=False)
        with _named_errors(), torch.cuda.device(where):
            made = self._package.Communicator.init(
                size, rank, self._package.UniqueId.from_bytes(unique_id), config
            )
        return NcclGroup(self._package, made, where)


class NcclGroup(DeviceGroup):
    """A communicator of NCCL, non-blocking."""

    def __init__(self, package: Any, communicator: Any, where: torch.device) -> None:
        self._package = package
        self._communicator = communicator
        self._where = where

    def is_ready(self) -> bool:
        """See ``DeviceGroup``."""
        with _named_errors():
            state = self._communicator.get_async_error()
        if state.name not in ("Success", "InProgress"):
            raise LibraryError(f"NCCL: {self._package.get_error_string(state)}")
        return bool(state.name == "Success")

    def exchange(self, sends: Sequence[Piece], receives: Sequence[Piece]) -> None:
        """See ``DeviceGroup``."""
        stream = torch.cuda.current_stream(self._where).cuda_stream
        with _named_errors(), torch.cuda.device(self._where), self._package.group():
            for rank, tensor in sends:
                self._communicator.send(_bytes(tensor), rank, stream=stream)
            for rank, tensor in receives:
                self._communicator.recv(_bytes(tensor), rank, stream=stream)

    def revoke(self) -> None:
        """See ``DeviceGroup``; NCCL before 2.29 cannot, and is aborted at once."""
        with _named_errors():
            self._communicator.revoke()

    def abort(self) -> None:
        """See ``DeviceGroup``.  Never destroyed: that waits for members that have aborted."""
        try:
            with torch.cuda.device(self._where):
                self._communicator.abort()
        except Exception as error:  # of a group that nobody uses any more
            _log.warning("NCCL could not be aborted: %s", error)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


@contextmanager
def _named_errors() -> Iterator[None]:
    """Turn what the package raises into a sentence."""
    try:
        yield
    except Exception as error:  # NCCLError and NcclInvalid, of a package that may be missing
        raise LibraryError(f"NCCL: {error}") from error
