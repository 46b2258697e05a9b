"""What would have happened under another policy: the same core, told the same, decides otherwise.

Owns the comparison with the recorded run, and where it stops being certain: with the first command
that differs, as what workers said from then on they said in answer to other commands.  Up to there
what another policy says of the size is as sure as the record.  Decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pliant.core.commands import Command
from pliant.core.errors import ConfigError
from pliant.core.events import Event, PolicySet, Ticked
from pliant.core.job import controller
from pliant.core.job.state import Job, JobSettings, Ready
from pliant.core.policy.decide import Decision, Policy
from pliant.core.values import Register
from pliant.simulate.replay import Break, Step, Turn
from pliant.simulate.replay_wording import render_command
from pliant.spec.load import parse_policy
from pliant.spec.policy import document_of, merged, start_that_fits

Change = Callable[[Policy], Policy]


def change_of(fields: Mapping[str, Any]) -> Change:
    """Return what sets these fields of a policy, by the names that people use."""

    def change(policy: Policy) -> Policy:
        wanted = parse_policy(merged(document_of(policy), fields))
        return start_that_fits(wanted, policy.start_replicas)

    return change


@dataclass(frozen=True, slots=True, kw_only=True)
class Otherwise:
    """One thing that a core was told, and what it answers under the other policy."""

    turn: Turn
    """What happened then; with a tick of the other core's own, what came next."""

    now_s: float
    event: Event | None
    ready: Ready
    job: Job
    settings: JobSettings

    is_own: bool = False
    """The other core had a moment to wait for that the recorded one had not."""

    decided: Decision | None = None
    """What the other core has decided, if that is news and not what was decided then."""

    difference: str | None = None
    """The first command that differs; nothing is certain from here on."""


def what_if(steps: Iterable[Step], change: Change) -> Iterator[Otherwise]:
    """Yield what the core answers under a changed policy, up to the first command that differs.

    Raises:
        ConfigError: the changed policy contradicts itself.
    """
    other: _Other | None = None
    for step in steps:
        if isinstance(step, Break):
            if not step.is_certain:
                other = None
            continue
        if step.ready is None or step.difference is not None:
            other = None
            continue
        if other is None or step.event is None:
            other = _beginning(step, change)
        for answer in other.answers(step):
            yield answer
            if answer.difference is not None:
                return


def _beginning(turn: Turn, change: Change) -> _Other:
    settings = replace(turn.settings, policy=change(turn.settings.policy))
    if turn.before is not None:
        job = replace(
            turn.before,
            policy=_changed(turn.before.policy, change),
            policy_given=_changed(turn.before.policy_given, change),
        )
    else:
        register = _changed_register(turn.register, change)
        job, _ = controller.begin(now_s=turn.now_s, settings=settings, register=register)
    return _Other(settings=settings, job=job, change=change)


def _changed(policy: Policy | None, change: Change) -> Policy | None:
    return None if policy is None else change(policy)


def _changed_register(register: Register | None, change: Change) -> Register | None:
    if register is None:
        return None
    return replace(
        register,
        policy=_changed(register.policy, change),
        policy_given=_changed(register.policy_given, change),
    )


@dataclass(slots=True, kw_only=True)
class _Other:
    """The core under the other policy."""

    settings: JobSettings
    job: Job
    change: Change

    def answers(self, turn: Turn) -> Iterator[Otherwise]:
        """Hear what the recorded core heard, after what this one has waited for by itself."""
        if turn.event is None or turn.ready is None:
            return
        then_s = turn.now_s if turn.before is None else controller.next_deadline_s(turn.before)
        while (due_s := controller.next_deadline_s(self.job)) < min(turn.now_s, then_s):
            ready = self._step(Ticked(), due_s)
            yield self._answer(turn, Ticked(), ready, (), now_s=due_s)
            if controller.next_deadline_s(self.job) <= due_s:
                break  # it is due at once, and comes with what follows
        event = turn.event
        if isinstance(event, PolicySet):
            event = replace(event, policy=self.change(event.policy))
        ready = self._step(event, turn.now_s)
        yield self._answer(turn, event, ready, turn.ready.commands, now_s=turn.now_s)

    def _step(self, event: Event, now_s: float) -> Ready:
        try:
            self.job, ready = controller.step(self.job, event, now_s=now_s, settings=self.settings)
        except Exception as error:  # of a log that others may have written
            raise ConfigError(f"under this policy the core does not take {event!r:.100}") from error
        return ready

    def _answer(
        self,
        turn: Turn,
        event: Event,
        ready: Ready,
        recorded: tuple[Command, ...],
        *,
        now_s: float,
    ) -> Otherwise:
        decision = ready.decision
        is_own = now_s != turn.now_s
        then = None if is_own or turn.ready is None else turn.ready.decision
        is_news = decision is not None and (
            then is None
            or (decision.target_replicas, decision.reason) != (then.target_replicas, then.reason)
        )
        return Otherwise(
            turn=turn,
            now_s=now_s,
            event=event,
            ready=ready,
            job=self.job,
            settings=self.settings,
            is_own=is_own,
            decided=decision if is_news else None,
            difference=_first_difference(ready.commands, recorded),
        )


def _first_difference(now: tuple[Command, ...], then: tuple[Command, ...]) -> str | None:
    for one, other in zip(now, then, strict=False):
        if one != other:
            return f"{render_command(one)}, where the run had {render_command(other)}"
    if len(now) > len(then):
        return f"{render_command(now[len(then)])}, where the run had nothing"
    if len(then) > len(now):
        return f"nothing, where the run had {render_command(then[len(now)])}"
    return None
