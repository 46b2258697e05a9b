"""Transport: how the members of a generation, once they have met, exchange tensors.

Owns what is set up behind the rendezvous.  Must not know who decided on the members, nor what is
exchanged.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

import torch

from pliant.core.errors import ConfigError
from pliant.core.values import Exchange
from pliant.engine.comm import nccl
from pliant.engine.comm.communicator import Communicator, SingleCommunicator, WindowSize
from pliant.engine.comm.device_communicator import DeviceCommunicator, Library, LibraryError
from pliant.engine.comm.group import Group
from pliant.engine.comm.rendezvous import Rendezvous, quick_handovers
from pliant.engine.comm.sockets import SocketCommunicator
from pliant.engine.comm.windows import (
    Address,
    Window,
    WindowCache,
    WindowError,
    Windows,
    WindowView,
    neighbourhoods,
)

COLLECTIVE_S = 1800.0
"""Longest wait inside one collective before the group counts as broken, in seconds.  Long, for it
includes a slow member's computing: supervision notices a hang."""

LIBRARIES: dict[str, Callable[[], Library | None]] = {nccl.KIND: nccl.library}
"""By kind of accelerator, what moves its memory between members; None: it is not installed."""

_log = logging.getLogger(__name__)


def library_for(
    devices: Collection[torch.device], exchange: Exchange, *, is_encrypted: bool
) -> Library | None:
    """Return the library that moves the memory of these; None: it goes through the host.

    Raises:
        ConfigError: NCCL was asked for, and cannot be used here.
    """
    if exchange is Exchange.HOST or (is_encrypted and exchange is Exchange.AUTO):
        return None  # what a library sends is not encrypted
    kinds = [device.type for device in devices]
    found = LIBRARIES[kinds[0]]() if len(kinds) == 1 and kinds[0] in LIBRARIES else None
    if exchange is Exchange.NCCL and found is None:
        where = " and ".join(map(str, devices)) or "the host"
        lacks = len(kinds) == 1 and kinds[0] in LIBRARIES
        why = "nccl4py is not installed" if lacks else f"the model is on {where}"
        raise ConfigError(f"exchange nccl needs nccl4py and a model on one CUDA device, and {why}")
    return found


class Transport(ABC):
    """A way to exchange tensors; one per worker, for all its generations."""

    @abstractmethod
    def connect(
        self, rendezvous: Rendezvous, *, lends: WindowSize | None, collective_s: float
    ) -> Communicator:
        """Meet the other members, and return what this one exchanges tensors with.

        Args:
            lends: memory that this member would let the others of its host read in place.
            collective_s: longest wait inside one collective, in seconds.

        Raises:
            GroupBroken: they could not be connected.
            LayoutMismatch: this worker's layout differs from that of rank 0.
        """

    def group(
        self,
        rendezvous: Rendezvous,
        *,
        lends: WindowSize | None = None,
        collective_s: float = COLLECTIVE_S,
    ) -> Group:
        """Return the connected group; see ``connect``."""
        communicator = self.connect(rendezvous, lends=lends, collective_s=collective_s)
        return Group(communicator, collective_s=collective_s)


class SocketTransport(Transport):
    """Sockets, and shared-memory windows between members of one host.

    provide the own window -> meet -> map the others' windows -> tell whose could be mapped:
    members that all could are of one host

    An accelerator's memory is moved by its vendor's library, if all members have that one.
    """

    def __init__(
        self, library: Library | None = None, devices: Collection[torch.device] = ()
    ) -> None:
        """``library``: moves the memory of ``devices``, where gradients are; None: nothing does."""
        self.window_cache = WindowCache()
        """Keeps this worker's window from one generation to the next."""
        self._devices = tuple(devices)
        self._library = library

    def connect(
        self, rendezvous: Rendezvous, *, lends: WindowSize | None, collective_s: float
    ) -> Communicator:
        """See ``Transport``."""
        if rendezvous.size == 1:
            return self._alone(rendezvous.generation, lends)
        window = self._provide_window(rendezvous.generation, lends)
        with quick_handovers():
            return self._connected(rendezvous, window, collective_s)

    def _connected(
        self, rendezvous: Rendezvous, window: Window | None, collective_s: float
    ) -> Communicator:
        name = "" if self._library is None else self._library.name
        offer = {"window": None if window is None else asdict(window.address), "library": name}
        connected = rendezvous.meet(offer)
        communicator = SocketCommunicator(
            rendezvous.generation,
            rank=rendezvous.rank,
            socks=connected.socks,
            collective_s=rendezvous.left_s,
        )
        try:
            abort = rendezvous.abort
            with abort.calling(lambda: communicator.abandon(str(abort.reason))):
                offers = {rank: said["window"] for rank, said in connected.offers.items()}
                self._share_windows(communicator, window, offers)
                names = {said["library"] for said in connected.offers.values()}
                found = self._by_library(communicator, names, rendezvous, collective_s)
            found.check()
            communicator.allow(collective_s)
        except BaseException:
            communicator.close()
            raise
        return found

    def _by_library(
        self,
        sockets: SocketCommunicator,
        names: Collection[str],
        rendezvous: Rendezvous,
        longest_s: float,
    ) -> Communicator:
        """Return what moves an accelerator's memory, too; ``sockets`` unless all members can.

        ``names``: the libraries of the others.

        Raises:
            GroupBroken: this one does not work here; from now on it is not tried again.
        """
        library = self._library
        if library is None or set(names) != {library.name}:
            return sockets
        (where,) = self._devices
        made: DeviceCommunicator | None = None
        try:
            unique_id = library.unique_id() if sockets.rank == 0 else b""
            unique_id, *_ = sockets.share("library", unique_id)
            group = library.connect(unique_id, rank=sockets.rank, size=sockets.size, where=where)
            made = DeviceCommunicator(sockets, library, group, where=where, collective_s=longest_s)
            made.connected(rendezvous.left_s)
        except BaseException as error:
            if made is not None:
                made.end_group()
            if not isinstance(error, LibraryError):
                raise
            self._library = None  # so that the next attempt goes through the host
            raise rendezvous.failed(f"{library.name} cannot be used: {error}") from None
        return made

    def _alone(self, generation: int, lends: WindowSize | None) -> Communicator:
        """Use the window that is there already: new memory would cost page faults."""
        communicator = SingleCommunicator(generation)
        if lends is not None and (window := self.window_cache.existing(lends)) is not None:
            communicator.share_memory(Windows(generation, window, [None]))
        return communicator

    def _provide_window(self, generation: int, lends: WindowSize | None) -> Window | None:
        """Return this worker's window; None if it wants or gets none."""
        if lends is None or not lends.nbytes:
            return None
        try:
            return self.window_cache.provide(lends)
        except OSError as error:
            _log.debug("generation %d: no window: %s", generation, error)
            return None

    def _share_windows(
        self, communicator: Communicator, window: Window | None, offers: dict[int, Any]
    ) -> None:
        """Map the windows of the others; those are used whose members can map each other's."""
        rank, size = communicator.rank, communicator.size
        offers[rank] = None if window is None else asdict(window.address)
        if sum(offers[each] is not None for each in range(size)) < 2:
            return  # so all conclude
        views = self._mapped(communicator, window, offers)
        reached = json.dumps([each for each, view in enumerate(views) if view is not None])
        told = communicator.share("windows", reached.encode())
        hosts = neighbourhoods([frozenset(json.loads(ranks)) for ranks in told])
        (mine,) = (host for host in hosts if rank in host)
        if len(hosts) == size:
            return
        communicator.share_memory(
            Windows(
                communicator.end.generation,
                window,
                [view if each in mine else None for each, view in enumerate(views)],
                rank=rank,
                hosts=hosts,
                sizes=[offers[each]["nbytes"] if offers[each] else 0 for each in range(size)],
            )
        )

    def _mapped(
        self, communicator: Communicator, window: Window | None, offers: dict[int, Any]
    ) -> list[WindowView | None]:
        """Map what can be mapped of the windows that the others have told of."""
        views: list[WindowView | None] = [None] * len(offers)
        if window is None:
            return views
        for rank, where in offers.items():
            if where is None or rank == communicator.rank:
                continue
            try:
                views[rank] = self.window_cache.map(Address(**where))
            except WindowError as error:
                _log.debug("generation %d: not in memory: %s", communicator.end.generation, error)
        return views
