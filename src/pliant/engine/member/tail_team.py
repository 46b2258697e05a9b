"""Tail team: the members of one generation in the tail of a step that they committed together.

Owns who they are as long as that generation lasts, and their exchanges.  Must not know what is
exchanged, nor how a replica recovers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pliant.core.errors import UsageError
from pliant.core.values import Generation
from pliant.engine.comm.communicator import GroupBroken, LeftAlone
from pliant.engine.member.formed import Formed
from pliant.engine.member.runtime import ProtocolRuntime


class TailTeam:
    """See the module's text; an ``EvaluationTeam``."""

    def __init__(
        self,
        runtime: ProtocolRuntime,
        generation: Generation,
        formed: Callable[[], Formed | None],
        recover: Callable[[str], None],
    ) -> None:
        """``formed``: the generation this replica is in now; ``recover``: serve a Reform."""
        self._runtime = runtime
        self._generation = generation
        self._formed = formed
        self._recover = recover

    @property
    def place(self) -> tuple[int, int]:
        """This replica's rank and how many they are; (0, 1) where that generation is over.

        Who commits late enters another generation before its tail, in which others may be ahead.
        """
        formed = self._together()
        return (0, 1) if formed is None else (formed.group.rank, formed.group.size)

    def attend(self) -> None:
        """Serve a Reform that came in a long tail, so that nobody waits for its end."""
        formed = self._formed()
        try:
            if formed is not None:
                self._runtime.check(formed.order.generation)
        except GroupBroken as broken:
            self._recover(broken.reason)

    def exchange(self, name: str, payload: bytes) -> list[bytes] | None:
        """Return what each member gives in this tail; None if the generation is over."""
        formed = self._together()
        if formed is None:
            return None

        try:
            self._runtime.check(self._generation)
            with self._runtime.waits(self._generation):
                return formed.group.share(name, payload)
        except LeftAlone as alone:
            raise UsageError(
                "session.evaluate was called on some replicas only, and the others have gone on; "
                "call it on all of them, not where session.leader is true"
            ) from alone
        except GroupBroken as broken:
            self._recover(broken.reason)
            return None

    def gather_names(self, names: Mapping[str, str]) -> dict[str, str]:
        """Return them: of several workers see ``engine.several_workers``."""
        return dict(names)

    def _together(self) -> Formed | None:
        formed = self._formed()
        is_over = formed is None or formed.order.generation != self._generation
        return None if is_over else formed
