"""How the workers of a whole job exchange: a benchmark's hook, where pliant has no option.

Must not know what is measured.  Called in a worker, before its session begins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch._C._distributed_c10d import FileStore

from benchmarks.gloo_baseline import GlooReduction, GlooTransport
from pliant.engine.comm.communicator import Communicator, WindowSize
from pliant.engine.comm.rendezvous import Rendezvous
from pliant.engine.comm.transport import SocketTransport, Transport
from pliant.engine.member import formed, group_builds

WINDOWS, SOCKETS = "windows", "sockets"
GLOO, GLOO_WINDOWS = "gloo", "gloo windows"
"""The exchange as it was before pliant had sockets of its own, without and with shared memory."""

TRANSPORTS = (WINDOWS, SOCKETS, GLOO_WINDOWS, GLOO)


def use(transport: str, folder: Path) -> None:
    """Have this worker's groups exchange so; gloo meets through a file in ``folder``."""
    make: Callable[..., Transport] = SocketTransport
    if transport in (GLOO, GLOO_WINDOWS):
        make = partial(GlooTransport, FileStore(str(folder / "groups"), -1))
        cast("Any", formed).Reduction = GlooReduction
    if transport in (SOCKETS, GLOO):
        make = partial(_WithoutWindows, make)
    cast("Any", group_builds).SocketTransport = make


class _WithoutWindows(Transport):
    def __init__(self, make: Callable[..., Transport], *given: Any) -> None:
        self._transport = make(*given)

    def connect(
        self, rendezvous: Rendezvous, *, lends: WindowSize | None, collective_s: float
    ) -> Communicator:
        return self._transport.connect(rendezvous, lends=None, collective_s=collective_s)
