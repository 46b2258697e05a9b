"""Secrets of generations: by which the members of one know each other.

Owns a key that is drawn once, stays in the memory of this process and ends with it; the secrets
follow from it, so that a command sent again carries the same one and nothing has to be kept.  Must
not know what members do with a secret.  Nothing that is written down, shown or handed to the core
may hold one: a command gets it on its way to an agent, and only there.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import replace

from pliant.core.commands import Command, Prepare, Reform
from pliant.core.values import Generation, Incarnation

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
