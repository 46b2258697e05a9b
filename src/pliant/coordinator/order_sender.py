"""Orders of the core on their way to the agents: with which secret, and who need not hear them.

Owns that each generation has its secret, that nobody hears an order that a newer one overtakes at
the same moment, and that what is on its way is not said again.  Decides nothing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from pliant.coordinator.generation_secrets import GenerationSecrets
from pliant.coordinator.held_core import Answered, left_to_tell, newest_reform
from pliant.coordinator.nodes import JobNodes
from pliant.core.commands import Command, Reform
from pliant.core.events import Event, Running
from pliant.core.job.state import Ready
from pliant.core.values import Incarnation, ReplicaId


class OrderSender:
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
