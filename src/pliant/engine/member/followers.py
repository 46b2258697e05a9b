"""Followers: what worker 0 asks of the other workers of its replica; of one worker there are none.

Owns the port, whose own methods are those of a replica of one.  Must not know how the others are
reached (``replica_workers``).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from pliant.core.errors import EXIT_FAILED
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.values import Generation, Order
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.group import Group
from pliant.engine.comm.rendezvous import Abort

KILLED_S = 30.0
"""How long a worker whose replica has lost another waits to be ended by their agent."""


class StateRefused(GroupBroken):
    """A follower cannot take the state that its place was given."""


class PartDamaged(GroupBroken):
    """A follower cannot load its part of a checkpoint."""


class Followers:
    """Of a replica of one worker: nobody, so nothing costs anything."""

    def await_all(self) -> None:
        """Wait until each has come."""

    def build(self, order: Order, group: Group, secret: bytes, abort: Abort) -> None:
        """Have the groups of all further places connected; on the thread that built ``group``.

        Raises:
            GroupBroken: one cannot be; then ``group`` is given up, too.
        """

    def abandon(self, generation: Generation) -> None:
        """Give up a generation on all of them; any thread may call it, at any time."""

    def lose(self) -> None:
        """A member of the generation is gone, or may be."""

    def commit(self, generation: Generation, member: Member) -> None:
        """Commit the step that was voted for; ``member`` counts it already."""

    def give_up_attempt(self) -> None:
        """Forget the unfinished attempt at a step."""

    def hand_over(
        self, order: Order, resolution: Resolution, member: Member, *, owes_tail: bool
    ) -> None:
        """Give or take state, each place its own."""

    def await_received(self, generation: Generation) -> None:
        """Wait until each holds what it was given.

        Raises:
            StateRefused: one cannot take it.
            PartDamaged: one cannot load it.
            GroupBroken: one has not got it.
        """

    def keep(self, seat: tuple[int, int], member: Member) -> None:
        """Keep the state of this boundary, which must not be lost; ``seat``: rank and members."""

    def ask_kept(self, generation: Generation) -> Callable[[], bool]:
        """Ask each to do its part of all that is to be kept; return what says whether all have."""
        del generation
        return lambda: True

    def enter(self, order: Order, member: Member, sizes: tuple[int, ...]) -> None:
        """Compute in ``order``, of which each replica has so many slots."""

    def look_around(
        self, waiting: Generation, current: Generation
    ) -> tuple[Generation, int | None]:
        """Return in which generation this replica waits for others, and which worker holds it up.

        On the link's thread; ``waiting``: in which worker 0 waits; ``current``: in which it is.
        """
        del current
        return waiting, None


NO_FOLLOWERS = Followers()


def wait_to_be_ended(why: str) -> NoReturn:
    """Wait for the agent to end this process, whose replica is lost; then end it anyway.

    What it could say by itself is not why the replica was lost.
    """
    threading.Event().wait(KILLED_S)
    sys.stderr.write(f"pliant: {why}, and nobody ended this one within {KILLED_S:g} s\n")
    sys.stderr.flush()
    os._exit(EXIT_FAILED)
