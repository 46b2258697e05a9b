"""Commands of the core on their way to the agents.

Owns three rules.  Each generation has a secret, by which its members know each other.  Nobody hears
an order that a newer one overtakes at the same moment.  What is on its way is not said again.

A secret follows from a key that is drawn once, stays in the memory of this process and ends with
it, so a command that is sent again carries the same secret and nothing has to be kept.  A secret is
never written down, shown or given to the core: a command gets it here.  Decides nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Container, Sequence
from dataclasses import replace

from pliant.coordinator.loop import Answered, newest_reform
from pliant.coordinator.nodes import JobNodes
from pliant.core.commands import Command, Prepare, Reform
from pliant.core.events import Event, Running
from pliant.core.job.state import Ready
from pliant.core.values import Generation, Incarnation, ReplicaId


class Outbox:
    """What one coordinator says to its agents."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes
        self._secrets = GenerationSecrets()
        self._newest: Reform | None = None
        """Of what is carried out at once."""

    def begin(self, answers: Sequence[Answered]) -> None:
        """Note what is carried out at once."""
        self._newest = newest_reform(answers)

    def send(
        self, command: Command, incarnation: Incarnation, living: Container[ReplicaId]
    ) -> None:
        """Send a command to those who have not got a newer one, or are not ``living``, by now."""
        if (told := left_to_tell(command, self._newest, living)) is not None:
            for each in self._secrets.added_to(told, incarnation):
                self._nodes.send(each, incarnation)

    def send_again(self, event: Event | None, ready: Ready) -> None:
        """Send a node that says what it runs what was told there and is not answered."""
        if isinstance(event, Running):
            for command in ready.again:
                if not self._nodes.was_just_told(event.node, command):
                    for each in self._secrets.added_to(command, ready.incarnation):
                        self._nodes.send_to(event.node, each, ready.incarnation)


def left_to_tell(
    command: Command, newest: Reform | None, living: Container[ReplicaId]
) -> Command | None:
    """Return a command without those who get a newer Reform at once; None if that is everybody.

    Whoever hears it abandons what came before, so they would build a group for nothing; and who is
    not among the ``living`` any more by then hears nothing: of 200 that die at once each but the
    last would be told of all deaths before its own.
    """
    if newest is None or command is newest or not isinstance(command, Reform):
        return command
    there = frozenset(newest.to)
    others = tuple(name for name in command.to if name not in there and name in living)
    return replace(command, to=others) if others else None


KEY_BYTES = 32


class GenerationSecrets:
    """The secrets that one coordinator hands out."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(KEY_BYTES)

    def added_to(self, command: Command, incarnation: Incarnation) -> list[Command]:
        """Return what is sent for ``command``; members of the generation that it forms first.

        They get its secret, the same each time; whoever else is told of it, a leaver, gets none.
        """
        if not isinstance(command, Prepare | Reform):
            return [command]
        secret = self._of(incarnation, command.order.generation)
        there = frozenset(command.order.replicas)
        members = tuple(name for name in command.to if name in there)
        others = tuple(name for name in command.to if name not in there)
        told = [replace(command, to=members, secret=secret), replace(command, to=others)]
        return [one for one in told if one.to]

    def _of(self, incarnation: Incarnation, generation: Generation) -> str:
        text = f"generation {generation} of incarnation {incarnation}"
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
