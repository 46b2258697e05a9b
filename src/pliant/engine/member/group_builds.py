"""Group builds: the groups that a worker builds, has built, and is in.

Owns one thread for each generation that is being built, and giving groups up.  Must not know which
generations are wanted (the caller says so, under its lock), commands, or steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pliant.core.values import Exchange, Generation, Order, ReplicaId
from pliant.engine import probe
from pliant.engine.comm.communicator import GroupBroken, WindowSize
from pliant.engine.comm.group import Group
from pliant.engine.comm.mesh import Port
from pliant.engine.comm.rendezvous import Abort, Rendezvous
from pliant.engine.comm.transport import SocketTransport, Transport, library_for
from pliant.engine.member.followers import NO_FOLLOWERS, Followers
from pliant.engine.reduce.buckets import Layout
from pliant.machine.tls import TlsContexts

OnBuilt = Callable[[Order, Group | None, str, tuple[ReplicaId, ...]], None]
"""Gets the connected group, or None and why there is none and who could not be reached; on the
thread that built it."""


class GroupBuilds:
    """See the module's text; all methods are called under the lock of whoever owns this."""

    def __init__(
        self,
        replica: ReplicaId,
        address: str,
        layout: Layout,
        window_size_for: Callable[[Order], WindowSize],
        on_built: OnBuilt,
        committed: Callable[[], int],
        tls: TlsContexts | None = None,
        followers: Followers = NO_FOLLOWERS,
        exchange: Exchange = Exchange.AUTO,
    ) -> None:
        """``committed``: how many steps, for the fault points; ``followers``: the other workers
        of this replica, each with a group of its own in every generation.

        Raises:
            ConfigError: the exchange that was asked for is not possible here.
        """
        self._followers = followers
        self._replica = replica
        self._layout = layout
        self._window_size_for = window_size_for
        self._on_built = on_built
        self._committed = committed
        self._transport: Transport = SocketTransport(
            library_for(layout.accelerators, exchange, is_encrypted=tls is not None),
            layout.accelerators,
        )
        self._tls = tls
        self._port = Port(address)
        self.endpoint = self._port.endpoint
        """Where this worker is reached while a generation is met."""
        self._secrets: dict[Generation, bytes] = {}
        self._aborts: dict[Generation, Abort] = {}
        self._groups: dict[Generation, Group] = {}
        self._entered: Group | None = None

    def learn(self, generation: Generation, secret: str) -> None:
        """Keep the secret of a generation until its build starts; those of older ones go."""
        self._secrets = {known: kept for known, kept in self._secrets.items() if known > generation}
        self._secrets[generation] = bytes.fromhex(secret)

    def start(self, order: Order) -> None:
        """Connect the members of ``order`` on a thread of its own."""
        abort = self._aborts[order.generation] = Abort()
        threading.Thread(
            target=self._build,
            args=(order, abort, self._secrets.pop(order.generation, b"")),
            name=f"build-g{order.generation}",
            daemon=True,
        ).start()

    def _build(self, order: Order, abort: Abort, secret: bytes) -> None:
        try:
            probe.at("build", self._committed())
            rendezvous = Rendezvous(
                generation=order.generation,
                seats=[(seat.replica, seat.endpoint) for seat in order.members],
                replica=self._replica,
                secret=secret,
                port=self._port,
                layout=self._layout,
                abort=abort,
                tls=None if self._tls is None else self._tls.renewed(),
            )
            group = self._transport.group(rendezvous, lends=self._window_size_for(order))
            self._followers.build(order, group, secret, abort)
            probe.at("prepared", self._committed())
        except Exception as error:  # a thread boundary: silence would cost the others a deadline
            reason = error.reason if isinstance(error, GroupBroken) else str(error)
            unreached = error.unreached if isinstance(error, GroupBroken) else ()
            self._on_built(order, None, reason, tuple(map(ReplicaId, unreached)))
        else:
            self._on_built(order, group, "", ())

    def keep(self, order: Order, group: Group | None) -> None:
        """Take note that a build has ended; ``group`` waits to be entered."""
        self._aborts.pop(order.generation, None)
        if group is not None:
            self._groups[order.generation] = group

    def connected(self, order: Order) -> Group:
        """Return the group that waits to be entered; GroupBroken if it was given up meanwhile."""
        if order.generation not in self._groups:
            raise GroupBroken(order.generation, "it was given up")
        return self._groups[order.generation]

    def enter(self, order: Order) -> None:
        """Be in a generation, whose group was connected."""
        self._entered = self._groups.pop(order.generation)

    def break_connected(self, generation: Generation, reason: str) -> None:
        """Give up a group that was to be entered and has failed."""
        if generation in self._groups:
            self._followers.abandon(generation)
            self._groups.pop(generation).abandon(reason)

    def abandon(self, generation: Generation) -> None:
        """Give up a generation, whether it is being built, connected or entered."""
        reason = f"generation {generation} was given up"
        self._followers.abandon(generation)
        if generation in self._aborts:
            self._aborts.pop(generation).set(reason)
        self.break_connected(generation, reason)
        if self._entered is not None and self._entered.generation == generation:
            self._entered.abandon(reason)

    def abandon_all(self, reason: str) -> None:
        """Give up everything; ``reason`` is for the group that was entered."""
        for generation in [*self._aborts, *self._groups]:
            self.abandon(generation)
        if self._entered is not None:
            self._followers.abandon(Generation(self._entered.generation))
            self._entered.abandon(reason)
