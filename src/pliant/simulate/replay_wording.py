"""The text form of what a coordinator is told and of what it answers, as scenario files have it.

Owns how it is written; ``replay_notation`` reads what is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, assert_never

from pliant.core import events
from pliant.core.commands import (
    Command,
    Dismiss,
    EndJob,
    EndReplica,
    ListCheckpoints,
    Prepare,
    Publish,
    Reform,
    Release,
    RollCall,
    SkipCalls,
    StartReplica,
    Stop,
    Switch,
)
from pliant.core.job.state import JobSettings, Ready
from pliant.core.membership.state import Timeouts
from pliant.core.policy.decide import Policy, PolicyBackoff
from pliant.core.values import CheckpointInfo, Order, ReplicaId, host_of
from pliant.simulate.replay_notation import SHORT

_PLAIN = re.compile(r"[!$-\[\]-~]+")
"""What need not be quoted: visible ASCII but for the quotation mark, the hash and the backslash."""
_LOOPBACK = ("127.0.0.1", "[::1]")
_LIMITS = ("restart_forget_s", "start_wait_s", "start_s", "slow_s", "node_s", "exit_s", "finish_s")

# --- answers ------------------------------------------------------------------------------


def render(ready: Ready) -> list[str]:
    """Write what a step of the controller answered, one line each."""
    lines: list[str] = []
    joiners = set(ready.register.joiners) if ready.register else set()
    lines += [render_command(command, frozenset(joiners)) for command in ready.commands]
    lines += [_again(command) for command in ready.again]
    if ready.decision is not None and ready.decision.is_waiting:
        lines.append(f"wait until {ready.decision.earliest_s:g}: {ready.decision.reason}")
    if ready.declined is not None:
        lines.append(f"declined: {ready.declined.reason}")
    return lines


def _again(command: Command) -> str:
    to = getattr(command, "to", None)
    whom = "" if to is None else f" to {','.join(to)}"
    return f"again{whom}: {render_command(command)}"


def render_command(command: Command, joiners: frozenset[str] = frozenset()) -> str:
    """Write one command as scenario files show it."""
    match command:
        case StartReplica(replica=replica, node=node):
            return f"start {replica} on {node}"
        case EndReplica(replica=replica, reason=reason):
            return f"end {replica}: {reason}"
        case Prepare(to=to, order=order) | Switch(to=to, order=order) | Reform(to=to, order=order):
            return f"{type(command).__name__.lower()} {_order(order, to, joiners)}"
        case SkipCalls(to=to, calls=calls):
            return f"fall-through {','.join(to)} calls={calls}"
        case ListCheckpoints(to=to):
            return f"look {','.join(to)}"
        case Dismiss(to=to, reason=reason):
            return f"dismiss {','.join(to)}: {reason}"
        case Release(to=to):
            return f"release {','.join(to)}"
        case Stop(to=to):
            return f"stop {','.join(to)}"
        case RollCall(to=to):
            return f"roll-call {','.join(to)}"
        case Publish(to=to, checkpoint=checkpoint):
            return f"publish {checkpoint} by {','.join(to)}"
        case EndJob(exit_code=exit_code, reason=reason):
            return f"exit {exit_code}: {reason}"


def _order(order: Order, to: tuple[ReplicaId, ...], joiners: frozenset[str]) -> str:
    seats = [f"{name}{'*' * (name in joiners)}" for name in order.replicas]
    seats += [f"-{name}" for name in to if name not in order.replicas]
    origin = f" origin={order.origin}" if order.origin else ""
    restore = ""
    if order.restore is not None:
        what = order.restore
        restore = f" restore={what.checkpoint}@{what.committed}/{what.lineage}"
    return f"{order.generation} {','.join(seats)}{origin}{restore}{' hold' * order.hold}"


# --- what is told -------------------------------------------------------------------------


def line_of(event: events.Event) -> str:
    """Write an event as scenario files have it; of where a worker is reached only the host."""
    match event:
        case events.Ticked():
            return "tick"
        case _ if isinstance(event, events.WorkerEvent):
            return _said(_worker_words(event))
        case _ if isinstance(event, events.PeopleEvent):
            return _said(_request_words(event))
        case _:
            return _said(_agent_words(event))


def _agent_words(event: events.AgentEvent) -> Iterator[str]:
    match event:
        case events.NodeJoined(node=node, devices=devices, replicas=replicas, labels=labels):
            yield from ("node", node, f"devices={devices}")
            yield from _named(runs=replicas)
            yield from _options(labels=",".join(map("=".join, labels)))
        case events.Running(node=node, replicas=replicas):
            yield from ("running", node)
            yield from _named(runs=replicas)
        case events.NodeLost(node=node, others=others):
            yield from ("node-lost", node, *others)
            yield from _options(left=event.has_left)
        case events.NodeSilent(node=node, others=others):
            yield from ("node-silent", node, *others)
        case events.NodeLeaving(node=node, notice_s=notice_s):
            yield from ("node-leaving", node, f"notice_s={notice_s!r}")
        case events.NodeFailed(node=node, reason=reason):
            yield from ("node-failed", node, reason)
        case events.DiedTogether(replicas=replicas):
            yield from ("died", *replicas)
        case events.Exited(replica=replica, kind=kind, detail=detail):
            yield from ("exit", replica, kind.value)
            yield from [detail] if detail else []
        case _:
            assert_never(event)


def _worker_words(event: events.WorkerEvent) -> Iterator[str]:
    name = event.replica
    match event:
        case events.Spare():
            yield from ("spare", name, *_spare(event))
        case events.Registered():
            yield from ("registered", name, *_registered(event))
        case events.Prepared(generation=generation):
            yield from ("prepared", str(generation), name)
        case events.Switched(generation=generation, step=step):
            yield from ("switched", str(generation), name, *_options(step=step))
        case events.Broken(generation=generation, reason=reason, unreached=unreached):
            yield from ("broken", str(generation), name, f"reason={reason}")
            yield from _named(unreached=unreached)
        case events.Refused(generation=generation, reason=reason):
            yield from ("refused", str(generation), name, f"reason={reason}")
            yield from _options(joiner=event.joiner, calls=event.calls)
            yield from _named(unreached=event.unreached)
        case events.Progressed(generation=generation):
            yield from ("progressed", str(generation), name)
            yield from _options(
                committed=event.committed,
                calls=event.calls,
                waiting=event.waiting,
                spoken_for=event.is_spoken_for,
                slow=event.slow,
            )
            if event.held_up_by is not None:
                yield f"held_up_by={event.held_up_by}"
        case events.Busy(max_s=max_s):
            yield from ("busy", name, f"max_s={max_s!r}")
        case events.Finished(committed=committed):
            yield from ("finished", str(committed), name)
            yield from [] if event.lineage == 1 else [f"lineage={event.lineage}"]
        case events.PublishAsked() | events.Saved() | events.Unrestorable():
            yield from _about_checkpoint(event)
        case _:
            assert_never(event)


def _about_checkpoint(
    event: events.PublishAsked | events.Saved | events.Unrestorable,
) -> Iterator[str]:
    match event:
        case events.Unrestorable(replica=name, generation=generation, checkpoint=checkpoint):
            yield from ("unrestorable", name, f"generation={generation}")
            yield from (f"checkpoint={checkpoint}", f"reason={event.reason}")
        case events.PublishAsked(replica=name, checkpoint=checkpoint):
            yield from ("publish-asked", name)
            yield f"checkpoint={checkpoint}@{event.committed}/{event.lineage}"
        case events.Saved(replica=name, checkpoint=checkpoint):
            found = CheckpointInfo(
                name=checkpoint,
                committed=event.committed,
                lineage=event.lineage,
                calls=event.calls,
            )
            yield from ("saved", name, f"checkpoint={_found(found)}")
            yield from _options(seconds=event.seconds)
        case _:
            assert_never(event)


def _spare(event: events.Spare, *, calls: str = "calls") -> Iterator[str]:
    yield from _options(**{calls: event.calls})
    if event.num_slots != 8:
        yield f"slots={event.num_slots}"
    if (host := host_of(event.endpoint)) not in ("", event.replica, *_LOOPBACK):
        yield f"host={host}"
    if event.layout != "same":
        yield f"layout={event.layout}"
    if [name for name, _ in event.identity] != ["seed"]:
        yield f"identity={json.dumps(dict(event.identity))}"
    elif event.identity[0][1] != "1":
        yield f"seed={event.identity[0][1]}"
    if event.is_durable:
        yield "keeps=checkpoints"
    if event.checkpoints:
        yield f"sees={','.join(map(_found, event.checkpoints))}"
    if event.looked:
        yield f"looked={event.looked}/{event.asked_by}"


def _registered(event: events.Registered) -> Iterator[str]:
    yield f"asked_by={event.asked_by}"
    if event.lineage != 1:
        yield f"lineage={event.lineage}"
    if not event.has_state:
        yield "state=no"
    yield from _options(
        committed=event.committed,
        calls=event.calls,
        current=event.current,
        prepared=event.prepared,
        ordered=event.ordered,
        broken=event.broken,
        leaving=event.leaving,
        finished=event.finished,
    )
    if event.spare is None:
        yield "spare=no"
    else:
        if event.spare.calls != event.calls:
            yield f"spare_calls={event.spare.calls}"
        yield from _spare(event.spare, calls="")


def _request_words(event: events.PeopleEvent) -> Iterator[str]:
    match event:
        case events.Scaled(target=target):
            yield from ("scale", str(target))
        case events.PolicySet(policy=policy):
            yield from ("set", *policy_words(policy))
        case events.DrainRequested(replica=name, notice_s=notice_s):
            yield from ("drain", name, f"notice_s={notice_s!r}")
        case events.KillRequested(replica=name):
            yield from ("kill", name)
        case events.StopRequested(at_once=at_once):
            yield from ("stop", *_options(now=at_once))
        case events.SuspendRequested(reason=reason):
            yield from ("suspend", *_options(reason=reason))
        case events.Offered(replicas=number, notice_s=notice_s, reason=reason):
            yield from ("offer", str(number))
            yield from [] if notice_s is None else [f"notice_s={notice_s!r}"]
            yield from _options(reason=reason)
            yield from _named(leave=event.leave)
        case events.Reclaimed(replicas=replicas, notice_s=notice_s):
            yield from ("reclaim", *replicas, f"notice_s={notice_s!r}")
        case _:
            assert_never(event)


def policy_words(policy: Policy) -> Iterator[str]:
    """Write the fields of a policy that have not their default."""
    words = {name: word for word, name in SHORT.items()}
    usual = Policy()
    for one in fields(Policy):
        value = getattr(policy, one.name)
        if value != getattr(usual, one.name):
            yield f"{words.get(one.name, one.name)}={_policy_value(value)}"


def _policy_value(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case tuple():
            return ",".join(map(str, value))
        case PolicyBackoff():
            numbers = (value.initial_s, value.factor, value.max_s, value.reset_after_s)
            return ",".join(map(repr, numbers))
        case _:
            return repr(value)


def settings_lines(settings: JobSettings) -> Iterator[str]:
    """Write the lines with which a scenario begins; what has its default is not said."""
    usual = JobSettings()
    if words := list(policy_words(settings.policy)):
        yield _said(["policy", *words])
    if settings.placement != usual.placement:
        yield f"placement {settings.placement}"
    if settings.nodes_may_come:
        yield "nodes come"
    if settings.restart_budget != usual.restart_budget:
        yield f"budget {settings.restart_budget}"
    waits = [f"{one.name}={getattr(settings.timeouts, one.name)!r}" for one in fields(Timeouts)]
    said = [f"{one.name}={getattr(usual.timeouts, one.name)!r}" for one in fields(Timeouts)]
    if changed := [word for word in waits if word not in said]:
        yield _said(["waits", *changed])
    limits = [name for name in _LIMITS if getattr(settings, name) != getattr(usual, name)]
    if limits:
        yield _said(["limits", *(f"{name}={getattr(settings, name)!r}" for name in limits)])


def _found(found: CheckpointInfo) -> str:
    calls = f"/{found.calls}" if found.calls else ""
    return f"{found.name}@{found.committed}/{found.lineage}{calls}"


def _options(**values: Any) -> Iterator[str]:
    """Write what is not nothing."""
    for name, value in values.items():
        if name and value:
            yield f"{name}={'yes' if value is True else value}"


def _named(**names: tuple[ReplicaId, ...]) -> Iterator[str]:
    for option, them in names.items():
        if them:
            yield f"{option}={','.join(them)}"


def _said(words: Iterable[str]) -> str:
    return " ".join(map(_word, words))


def _word(text: str) -> str:
    """Quote a word, or the value of an option, that would not be read as one."""
    if _PLAIN.fullmatch(text):
        return text
    key, equals, value = text.partition("=")
    if equals and _PLAIN.fullmatch(key):
        return f"{key}={json.dumps(value)}"
    return json.dumps(text)
