"""Building: how the members of a new generation find each other.

Owns one attempt, from the first knock at the meeting point to a connected group, and giving up
at any moment of it.  Must not know who decided on the members, nor what the group is for.

    reach the host's store -> compare layouts with rank 0 -> listen, say where
        -> wait until everybody has said so -> map the others' windows
        -> use windows if everybody could -> connect, find the connections

Nothing is announced before the layouts agree, so a member whose model differs leaves without the
others noticing; they wait until they are told to give up.
"""

from __future__ import annotations

import itertools
import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch._C._distributed_c10d import Store

from pliant.engine.groups import gloo
from pliant.engine.groups.ending import Abort, GroupBroken, LayoutMismatch, let_go
from pliant.engine.groups.gloo import StoreServer
from pliant.engine.groups.group import Group
from pliant.engine.groups.reaper import REAPER
from pliant.engine.reduce.buckets import Layout, first_difference
from pliant.engine.reduce.windows import (
    Address,
    Window,
    WindowCache,
    WindowError,
    Windows,
    WindowSize,
    WindowView,
)

_log = logging.getLogger(__name__)

MAX_PENDING = 8
"""Abandoned groups that may wait to be destroyed.  With cut sockets it is rarely more than one."""

_KNOCK_S = 0.25
"""Longest wait for one connection to the meeting point, before looking whether to give up."""


class GroupBuild:
    """One try at building the group of a generation."""

    def __init__(
        self,
        *,
        generation: int,
        seats: Sequence[tuple[str, str]],
        replica: str,
        host: str,
        server: StoreServer,
        layout: Layout,
        deadline_s: float = 30.0,
        collective_s: float = 1800.0,
        abort: Abort | None = None,
        window_cache: WindowCache | None = None,
        window_size: WindowSize | None = None,
    ) -> None:
        """Prepare; all members do so with the same but ``replica``, ``server`` and ``layout``.

        Args:
            generation: never used before.
            seats: (replica, endpoint) in rank order; survivors first: rank 0 is the reference
                for the layout.
            host: whose store is the meeting point.
            server: this worker's own; says on which address to listen.
            collective_s: longest wait inside one collective before the group counts as broken.
                Long, for it includes a slow member's computing: supervision notices a hang.
            abort: set it to give up from another thread.
            window_cache: keeps this worker's window; without it no member uses windows.
        """
        self._generation = generation
        self._size = len(seats)
        self._rank = [name for name, _ in seats].index(replica)
        self._meeting = dict(seats)[host]
        self._address = server.address
        self._layout = layout
        self._deadline_s = deadline_s
        self._deadline_at = time.monotonic() + deadline_s
        self._collective_s = collective_s
        self._abort = abort or Abort()
        self._window_cache = window_cache
        self._window_size = window_size
        self._lock = threading.Lock()
        self._outcome: queue.SimpleQueue[Group | Exception | None] = queue.SimpleQueue()
        self._given_up = threading.Event()

    def run(self) -> Group:
        """Connect to the other members; block until done, aborted, or the deadline.

        For a background thread (also fine on the main thread: an abort returns at once).
        Afterwards the members have met, not exchanged anything.

        Raises:
            GroupBroken: it could not be built.
            LayoutMismatch: this worker's layout differs from that of rank 0, who does not notice.
        """
        if self._size == 1:
            return Group.alone(self._generation, self._existing_window())
        self._abort.subscribe(lambda: self._outcome.put(None))
        # Torch blocks where it likes (a store whose process is stopped answers never): the work is
        # done by a thread that is left alone at the deadline; what it then produces is destroyed.
        threading.Thread(target=self._work, name=f"build-g{self._generation}", daemon=True).start()
        try:
            outcome = self._outcome.get(timeout=self._left_s())
        except queue.Empty:
            outcome = None
        if outcome is None:
            outcome = self._give_up()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _give_up(self) -> Group | Exception:
        """Leave the thread alone, unless it has finished in this very moment."""
        with self._lock:
            self._given_up.set()
        while not self._outcome.empty():
            late = self._outcome.get()
            if isinstance(late, Group):
                late.abandon("given up while it was built")
        return self._failed(self._abort.reason or f"not built within {self._deadline_s:g} s")

    def _work(self) -> None:
        outcome: Group | Exception
        try:
            outcome = self._connect()
        except (GroupBroken, LayoutMismatch) as refused:
            let_go(refused)
            outcome = refused
        except Exception as error:  # thread boundary: becomes the caller's error
            outcome = self._failed(gloo.first_line(error))
        with self._lock:
            if not self._given_up.is_set():
                self._outcome.put(outcome)
                return
        if isinstance(outcome, Group):
            outcome.abandon("given up while it was built")

    def _connect(self) -> Group:
        while not REAPER.wait_until_below(MAX_PENDING, deadline_s=_KNOCK_S):
            self._check()
        self._reach()
        store = gloo.open_store(
            self._meeting, f"g{self._generation}", timeout_s=max(1.0, self._left_s())
        )
        if self._rank == 0:
            store.set("layout", json.dumps(self._layout.describe()))
            store.set("digest", self._layout.digest)
        self._compare(store)
        window = self._window()
        where = None if window is None else asdict(window.address)
        device = gloo.Device.open(self._address)
        said = self._exchange(store, "device", [device.listens_at, where])
        peers = [listens_at for listens_at, _ in said]
        windows = self._map_windows(store, window, [address for _, address in said])
        backend = gloo.GlooBackend(
            store,
            rank=self._rank,
            size=self._size,
            device=device,
            peers=[(host, port) for host, port in filter(None, peers)],
            connect_s=max(1.0, self._left_s()),
            collective_s=self._collective_s,
        )
        if self._rank == 0:  # all have read it: they have connected
            store.delete_key("layout")
        return Group(
            generation=self._generation,
            rank=self._rank,
            size=self._size,
            backend=backend,
            store=store,
            collective_s=self._collective_s,
            windows=windows,
        )

    def _existing_window(self) -> Window | None:
        """Return the window that is there already: new memory would cost page faults."""
        if self._window_cache is None or self._window_size is None:
            return None
        return self._window_cache.existing(self._window_size)

    def _window(self) -> Window | None:
        """Return this worker's window; None if it wants or gets none."""
        if self._window_cache is None or self._window_size is None or not self._window_size.nbytes:
            return None
        try:
            return self._window_cache.provide(self._window_size)
        except OSError as error:
            _log.debug("generation %d: no window: %s", self._generation, error)
            return None

    def _map_windows(
        self, store: Store, own: Window | None, said: Sequence[dict[str, Any] | None]
    ) -> Windows | None:
        """Map the windows of the others; use them if every member could map all."""
        addresses = [Address(**where) for where in said if where is not None]
        if own is None or self._window_cache is None or len(addresses) < self._size:
            return None  # so all conclude
        views: list[WindowView | None] = []
        trouble = ""
        try:
            for rank, address in enumerate(addresses):
                views.append(None if rank == self._rank else self._window_cache.map(address))
        except WindowError as error:
            trouble = str(error)
        troubles = [reason for reason in self._exchange(store, "windows", trouble) if reason]
        if troubles:
            _log.debug("generation %d reduces through sockets: %s", self._generation, troubles[0])
            return None
        return Windows(self._generation, own, views)

    def _exchange(self, store: Store, name: str, value: Any) -> list[Any]:
        """Say a JSON value under ``name`` and return everybody's, in rank order."""
        store.set(f"{name}/{self._rank}", json.dumps(value))
        keys = [f"{name}/{rank}" for rank in range(self._size)]
        self._await(store, keys)
        return [json.loads(found) for found in store.multi_get(keys)]

    def _reach(self) -> None:
        """Wait until the host's store answers: TCPStore would retry without looking up."""
        host, port = gloo.parse_endpoint(self._meeting)
        while True:
            self._check()
            try:
                socket.create_connection((host, port), timeout=_KNOCK_S).close()
            except OSError:
                self._given_up.wait(0.02)
            else:
                return

    def _compare(self, store: Store) -> None:
        """Refuse a layout other than that of rank 0, before anybody counts on this member."""
        self._await(store, ["digest"])
        if store.get("digest").decode() == self._layout.digest:
            return
        theirs = json.loads(store.get("layout"))
        raise LayoutMismatch(
            first_difference(self._layout.describe(), theirs)
            or "this worker lays out its gradients in another way than the members"
        )

    def _await(self, store: Store, keys: Sequence[str]) -> None:
        """Look for the keys, eagerly at first: a reform waits in the foreground."""
        for look in itertools.count():
            self._check()
            if store.check(list(keys)):
                return
            self._given_up.wait(0.001 if look < 100 else 0.02)

    def _check(self) -> None:
        if self._abort.reason is not None or self._given_up.is_set():
            raise self._failed(self._abort.reason or "given up")
        if self._left_s() <= 0:
            raise self._failed(f"not built within {self._deadline_s:g} s")

    def _left_s(self) -> float:
        return max(0.0, self._deadline_at - time.monotonic())

    def _failed(self, reason: str) -> GroupBroken:
        return GroupBroken(self._generation, reason)
