"""What the core says to all that is heard at one moment, once that may be carried out (R2).

Owns what is heard together: what there is, then the time that has passed, and after a Reform what
has come while it was recorded, so that the survivors of many that die one after the other hear of
one generation.  Sends nothing and logs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pliant.coordinator.held_core import Answered, HeldCore, newest_reform
from pliant.coordinator.inbox import Inbox, Incoming
from pliant.coordinator.nodes import JobNodes
from pliant.coordinator.register import HeldRegister
from pliant.core.events import DiedTogether, NodeLost, NodeSilent, Ticked

MOST_OVERTAKEN = 3
"""How often a Reform may be overtaken by one that comes of what was heard while it was written."""


@dataclass(slots=True)
class HeardTogether:
    """What is heard together; whoever asks is answered, if only that there is no answer."""

    taken: list[Incoming] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)
    """To ``taken``, one by one; the end of the job is the last."""

    later: list[Incoming] = field(default_factory=list)
    """What waits until the Reform is sent that comes of it."""

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for an answer."""
        return any(one.is_asked for one in self.taken)

    def answer_all(self) -> None:
        """Tell who asked what the core has said."""
        for one, answered in zip(self.taken, self.answers, strict=False):
            one.answer(answered.ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointAnswers:
    """Asks the core of one job."""

    core: HeldCore
    register: HeldRegister
    nodes: JobNodes
    inbox: Inbox
    now_s: Callable[[], float]

    async def to(self, batch: Sequence[Incoming], heard: HeardTogether) -> None:
        """Have the core answer these, and what comes while a Reform is recorded.

        Raises:
            ConflictError: another coordinator has taken over.
            PermanentError: the register cannot be written.
        """
        for looks_left in range(MOST_OVERTAKEN, -1, -1):
            said, least = [one.event for one in (*heard.later, *batch)], 1 if heard.later else 2
            dead = self.core.died_together(said, least=least)
            if len(dead) >= least:
                heard.later += batch
                batch = [Incoming(DiedTogether(replicas=dead))]
            elif heard.later:  # nothing overtakes what was said before it
                heard.later += batch
                return
            heard.taken += batch
            found = await self._recorded(batch, is_all=not heard.later)
            heard.answers += found
            heard.taken += [Incoming(Ticked())] * (len(heard.answers) - len(heard.taken))
            has_ended = len(heard.taken) > len(heard.answers)
            if has_ended or not looks_left or newest_reform(found) is None:
                return
            if not await self.inbox.has_more():
                return
            batch = self.inbox.taken()

    async def _recorded(self, batch: Sequence[Incoming], *, is_all: bool) -> list[Answered]:
        """Return what the core says, once the register has it.

        With one write for all: it takes milliseconds, and a thousand agents may join at once.
        Unless this ``is_all`` that was said by now, nobody is silent yet, or late.
        """
        now_s, events = self.now_s(), [one.event for one in batch]
        lost = self.nodes.forget_silent(now_s) if is_all else []
        if lost:
            events.append(NodeLost(node=lost[0], others=tuple(lost[1:])))
        silent = self.nodes.fallen_silent(now_s) if is_all else []
        if silent:
            events.append(NodeSilent(node=silent[0], others=tuple(silent[1:])))
        answers = self.core.answers(events, now_s, is_all=is_all)
        written = [one.ready.register for one in answers if one.ready.register is not None]
        if written:
            await self.register.write(written[-1])
        return answers
