"""Replica workers: the other workers of a replica, as its worker 0 sees them.

Owns telling them what to do, and waiting for what they say.  What follows from that is decided in
``core.membership.follower_answers``.  Must not know steps, state or the coordinator.

    link's thread      abandon ----+
    builder threads    build ------+--> connections --> followers
    main thread        the rest ---+                       |
    one per follower   answers <---------------------------+   (wakes whoever waits)
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.core.membership import follower_answers as rules
from pliant.core.membership.failure.worker_activity import Whereabouts
from pliant.core.membership.follower_answers import (
    Asked,
    FollowersSaid,
    Kept,
    Lost,
    Received,
    Reduced,
    StateNamed,
    Voted,
    Whole,
)
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.values import Generation, Order
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.group import Group
from pliant.engine.comm.rendezvous import Abort
from pliant.engine.member.followers import Followers, PartDamaged, StateRefused, wait_to_be_ended
from pliant.engine.member.inner_channel import (
    AbandonPlace,
    BuildPlace,
    CommitVoted,
    Directive,
    EnterPlace,
    FinishKeeping,
    FollowerCame,
    GiveUpAttempt,
    HandOver,
    InnerConnection,
    InnerListener,
    InnerMessage,
    KeepPart,
    LoseMember,
    MemberStanding,
    WorkerIsAt,
)
from pliant.engine.member.main_thread import ReplicaThreads

LOOK_S = 1.0
"""Between two looks of who waits for followers, in seconds; their answers wake it at once."""

OF_THE_MODEL = ("parameter ", "buffer ")
"""How the names of those traits begin that are the model's."""

_PLACES = "places"
"""Name under which the members of a generation say where their followers are."""


class ReplicaWorkers(Followers):
    """Those of a replica of several workers; on its worker 0."""

    def __init__(
        self,
        directory: Path,
        num_workers: int,
        *,
        traits: Sequence[tuple[str, str]],
        within_s: float,
        stage_of: Callable[[int], int] = lambda place: 0,
    ) -> None:
        """Of worker 0.

        Args:
            directory: in which the workers meet.
            num_workers: of the replica.
            traits: of worker 0, as every other must have.
            within_s: until each is there.
            stage_of: the model that the worker at a place has: others have another one.
        """
        self._traits = dict(traits)
        self.stage_of = stage_of
        self._within_s = within_s
        self._said = FollowersSaid(places=tuple(range(1, num_workers)))
        self._endpoints: dict[int, str] = {}
        self._came: dict[int, FollowerCame] = {}
        self._connections: dict[int, InnerConnection] = {}
        self._changed = threading.Condition()
        self._watch = ReplicaThreads(self._said.places)
        self._is_over = False
        self.lost = threading.Event()
        """One has ended before its time: this process is about to be ended by its agent."""
        self._listener = InnerListener(directory, self._connect)

    # --- connections --------------------------------------------------------------------

    def _connect(self, sock: socket.socket) -> None:
        place = 0

        def heard(message: InnerMessage) -> None:
            nonlocal place
            if isinstance(message, FollowerCame):
                place = message.place
                with self._changed:
                    self._endpoints[place] = message.endpoint
                    self._came[place] = message
                    self._connections[place] = connection
                    self._changed.notify_all()
            elif isinstance(message, WorkerIsAt):
                with self._changed:
                    self._watch.hear(message)
            else:
                self._hear_follower(message)

        def ended() -> None:
            with self._changed:
                if place and not self._is_over:
                    self.lost.set()
                self._changed.notify_all()

        connection = InnerConnection(sock, heard, ended)
        connection.start()

    def _hear_follower(self, message: InnerMessage) -> None:
        with self._changed:
            self._said = rules.hear_answer(self._said, message)  # type: ignore[arg-type]  # followers say nothing else
            self._changed.notify_all()

    def tell(self, directive: Directive) -> None:
        """Say the same to all."""
        with self._changed:
            for connection in self._connections.values():
                connection.send(directive)

    def await_all(self) -> None:
        """Wait until each has come.

        Raises:
            ConfigError: one has not, in time, or it has another model or other settings.
        """
        deadline_s = time.monotonic() + self._within_s
        with self._changed:
            while missing := [p for p in self._said.places if p not in self._endpoints]:
                if time.monotonic() > deadline_s:
                    who = ", ".join(map(str, missing))
                    raise ConfigError(
                        f"worker 0 of this replica has made its pliant.Session, and worker {who} "
                        f"has not within {self._within_s:g} s; every worker runs the same script"
                    )
                self._changed.wait(LOOK_S)
                self._check_lost()
        self._listener.close()
        firsts = {self.stage_of(0): (0, self._traits)}
        for place, came in sorted(self._came.items()):
            theirs = dict(came.traits)
            first, its = firsts.setdefault(self.stage_of(place), (place, theirs))
            _check_traits(its, theirs, place, first)
            _check_traits(_of_session(self._traits), _of_session(theirs), place)

    def end_orderly(self) -> None:
        """Take note that all workers end from now on."""
        with self._changed:
            self._is_over = True

    def _check_lost(self) -> None:
        """Wait to be ended if a follower has gone; the lock is held."""
        if self.lost.is_set():
            self._changed.release()  # others go on until then
            try:
                wait_to_be_ended("another worker of this replica has ended")
            finally:
                self._changed.acquire()

    # --- waiting ------------------------------------------------------------------------

    def _await(
        self,
        kind: Asked,
        generation: Generation,
        step: int | None = None,
        why_not: Callable[[], str | None] = lambda: None,
    ) -> Whole:
        """Wait for an answer of each; ``why_not`` is asked each time something came."""
        with self._changed, self._watch.own.waiting(Whereabouts.REPLICA):
            while (found := rules.conclude(self._said, kind, generation, step)) is None:
                if (reason := why_not()) is not None:
                    raise GroupBroken(generation, reason)
                self._check_lost()
                self._changed.wait(LOOK_S)
            self._said = rules.taken(self._said, kind)
        if isinstance(found, Lost):
            if found.is_refusal:
                raise StateRefused(generation, found.reason)
            if found.is_damage:
                raise PartDamaged(generation, found.reason)
            raise GroupBroken(generation, found.reason, unreached=found.unreached)
        return found

    def await_reduced(self, generation: Generation, step: int) -> None:
        """Wait until all bucket results of a step are complete on each (R14).

        Raises:
            GroupBroken: on one they are not, or the generation was given up.
        """
        self._await(Reduced, generation, step)

    def await_voted(self, generation: Generation, step: int) -> Sequence[Voted]:
        """Return what each says beside its vote.

        Raises:
            GroupBroken: the generation was given up.
        """
        answers = self._await(Voted, generation, step).answers
        return [one for one in answers if isinstance(one, Voted)]

    def await_named(self, generation: Generation) -> dict[str, str]:
        """Return what each names of its state, with the number of the worker.

        Raises:
            GroupBroken: the generation was given up.
        """
        answers = self._await(StateNamed, generation).answers
        said = [one for one in answers if isinstance(one, StateNamed)]
        return {f"{name} of worker {o.place}": text for o in said for name, text in o.names.items()}

    def await_received(self, generation: Generation) -> None:
        """See ``Followers``."""
        self._await(Received, generation)

    # --- telling ------------------------------------------------------------------------

    def build(self, order: Order, group: Group, secret: bytes, abort: Abort) -> None:
        """See ``Followers``."""
        try:
            with abort.calling(lambda: group.abandon(str(abort.reason))):
                self._build(order, group, secret, abort)
        except BaseException:
            self.abandon(order.generation)
            group.abandon("the group of another worker's place was not built")
            raise

    def _build(self, order: Order, group: Group, secret: bytes, abort: Abort) -> None:
        own_row = [self._endpoints[place] for place in self._said.places]
        rows = [json.loads(part) for part in group.share(_PLACES, json.dumps(own_row).encode())]
        for replica, row in zip(order.replicas, rows, strict=True):
            if len(row) != len(own_row):
                numbers = f"{len(row) + 1} workers, this replica {len(own_row) + 1}"
                raise GroupBroken(order.generation, f"{replica} has {numbers}")
        with self._changed:
            if order.generation in self._said.given_up:
                raise GroupBroken(order.generation, "it was given up")
            for column, place in enumerate(self._said.places):
                seats = zip(order.members, rows, strict=True)
                members = tuple(replace(seat, endpoint=row[column]) for seat, row in seats)
                directive = BuildPlace(
                    order=replace(order, members=members),
                    secret=secret_of_place(secret, place).hex(),
                )
                self._connections[place].send(directive)
        with abort.calling(self._wake):
            self._await(rules.Built, order.generation, why_not=lambda: abort.reason)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def abandon(self, generation: Generation) -> None:
        """See ``Followers``."""
        with self._changed:
            if generation in self._said.given_up:
                return
            self._said = rules.give_up(self._said, generation)
            self.tell(AbandonPlace(generation=generation))
            self._changed.notify_all()

    def lose(self) -> None:
        """See ``Followers``."""
        self.tell(LoseMember())

    def commit(self, generation: Generation, member: Member) -> None:
        """See ``Followers``."""
        self.tell(CommitVoted(generation=generation, standing=MemberStanding.of(member)))

    def give_up_attempt(self) -> None:
        """See ``Followers``."""
        self.tell(GiveUpAttempt())

    def hand_over(
        self, order: Order, resolution: Resolution, member: Member, *, owes_tail: bool
    ) -> None:
        """See ``Followers``."""
        self.tell(
            HandOver(
                order=order,
                resolution=resolution,
                owes_tail=owes_tail,
                standing=MemberStanding.of(member),
            )
        )

    def keep(self, seat: tuple[int, int], member: Member) -> None:
        """See ``Followers``."""
        self.tell(KeepPart(seat=seat, standing=MemberStanding.of(member)))

    def ask_kept(self, generation: Generation) -> Callable[[], bool]:
        """See ``Followers``."""
        with self._changed:
            self._said = rules.taken(self._said, Kept)
        self.tell(FinishKeeping(generation=generation))
        return lambda: rules.conclude(self._said, Kept, generation) is not None

    def look_around(
        self, waiting: Generation, current: Generation
    ) -> tuple[Generation, int | None]:
        """See ``Followers``."""
        with self._changed:
            found = self._watch.conclude(waiting, current)
            for place, connection in self._connections.items():
                if (question := self._watch.ask(place)) is not None:
                    connection.send(question)
            return found

    def enter(self, order: Order, member: Member, sizes: tuple[int, ...]) -> None:
        """See ``Followers``."""
        self.tell(EnterPlace(order=order, standing=MemberStanding.of(member), sizes=sizes))


def _of_session(traits: dict[str, str]) -> dict[str, str]:
    """Return those that workers with other stages of the model have alike, too."""
    return {name: said for name, said in traits.items() if not name.startswith(OF_THE_MODEL)}


def _check_traits(own: dict[str, str], theirs: dict[str, str], place: int, other: int = 0) -> None:
    for name in own | theirs:
        here, there = own.get(name, "missing"), theirs.get(name, "missing")
        if here != there:
            raise ConfigError(
                f"{name} is {there} on worker {place} of this replica and {here} on worker "
                f"{other}; every worker makes the same model and the same session, whatever its "
                "RANK"
            )


def secret_of_place(secret: bytes, place: int) -> bytes:
    """Return the secret of one place of a generation: never that of another one."""
    return hmac.digest(secret, f"pliant place {place}".encode(), hashlib.sha256)
