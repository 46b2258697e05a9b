"""The text form of what a coordinator is told and of what it answers, as scenario files have it.

Owns the words of events, in one table for reading and writing, and those of settings and answers.
A word with a blank, a ``#`` or a quotation mark in it stands in double quotes, as JSON has it.
Knows nothing of who plays a file (``player``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple

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
    SaveNow,
    SkipCalls,
    StartReplica,
    Stop,
    Switch,
    type_name,
)
from pliant.core.errors import ConfigError
from pliant.core.job.state import JobSettings, Ready
from pliant.core.membership.state import Timeouts
from pliant.core.policy.decide import Policy, PolicyBackoff
from pliant.core.values import CheckpointInfo, Lineage, Order, ReplicaId, host_of

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_WORD = re.compile(rf'(?:{_QUOTED.pattern}|[^\s"#])+')
_COMMENT = re.compile(r"#.*")
_PLAIN = re.compile(r"[!$-\[\]-~]+")
"""What need not be quoted: visible ASCII but for the quotation mark, the hash and the backslash."""

_LOOPBACK = ("", "127.0.0.1", "[::1]")
_LIMITS = ("restart_forget_s", "start_wait_s", "start_s", "slow_s", "node_s", "exit_s", "finish_s")

# --- words --------------------------------------------------------------------------------


def words_of(line: str) -> list[str]:
    """Split a line into words, without its comment."""
    words, at = [], 0
    while at < len(line):
        if line[at].isspace():
            at += 1
        elif _COMMENT.match(line, at):
            break
        elif found := _WORD.match(line, at):
            words.append(_QUOTED.sub(lambda quoted: _unquoted(quoted[0]), found[0]))
            at = found.end()
        else:
            raise ConfigError(f"a quotation mark is not closed: {line[at:]:.60}")
    return words


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError as error:
        raise ConfigError(f"{text:.60} is not quoted as in JSON") from error


def _said(words: Iterable[str]) -> str:
    return " ".join(map(_quoted, words))


def _quoted(text: str) -> str:
    """Quote a word, or the value of an option, that would not be read as one."""
    if _PLAIN.fullmatch(text):
        return text
    key, equals, value = text.partition("=")
    if equals and _PLAIN.fullmatch(key):
        return f"{key}={json.dumps(value)}"
    return json.dumps(text)


def options_of(words: Iterable[str]) -> dict[str, str]:
    """Return the words that are ``key=value``."""
    return dict(word.split("=", 1) for word in words if "=" in word)


# --- values -------------------------------------------------------------------------------


class _Form(NamedTuple):
    """How values of one kind are read and written."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]
    default: str = ""
    """What is read where nothing is said."""


def _or_none(form: _Form) -> _Form:
    return _Form(
        lambda text: form.read(text) if text else None,
        lambda value: "" if value is None else form.write(value),
    )


def _found(text: str) -> CheckpointInfo:
    """Read ``name@committed/lineage`` or ``name@committed/lineage/calls``."""
    name, _, rest = text.partition("@")
    committed, lineage, calls = (*map(int, rest.split("/")), 0)[:3]
    return CheckpointInfo(name=name, committed=committed, lineage=Lineage(lineage), calls=calls)


def _found_text(found: CheckpointInfo) -> str:
    calls = f"/{found.calls}" if found.calls else ""
    return f"{found.name}@{found.committed}/{found.lineage}{calls}"


_TEXT = _Form(str, str)
_COUNT = _Form(int, str, "0")
_SECONDS = _Form(float, repr, "0.0")
_YES = _Form(lambda text: text == "yes", lambda value: "yes" if value else "")
_NOT_NO = _Form(lambda text: text != "no", lambda value: "" if value else "no")
_KEEPS = _Form(lambda text: text == "checkpoints", lambda value: "checkpoints" if value else "")
_NAMES = _Form(lambda text: tuple(filter(None, text.split(","))), ",".join)
_LABELS = _Form(
    lambda text: tuple(options_of(text.split(",")).items()),
    lambda labels: ",".join(map("=".join, labels)),
)
_FOUND = _Form(
    lambda text: tuple(_found(one) for one in text.split(",") if one),
    lambda found: ",".join(map(_found_text, found)),
)

# --- events -------------------------------------------------------------------------------


class _Option(NamedTuple):
    """``key=value``; it is written unless the value is what is read where nothing is said."""

    key: str
    read: Callable[[str], dict[str, Any]]
    """Returns fields of the event."""

    write: Callable[[Any], str]
    """Takes the event."""

    default: str
    is_always: bool = False
    """Whether it is written in any case."""


def _option(
    key: str, form: _Form, default: str | None = None, *, of: str = "", is_always: bool = False
) -> _Option:
    """Return the option of one field: that of its name, unless it is ``of`` another."""
    name, default = of or key, form.default if default is None else default
    return _Option(
        key,
        lambda text: {name: form.read(text)},
        lambda event: form.write(getattr(event, name)),
        default,
        is_always,
    )


def _counts(*names: str) -> tuple[_Option, ...]:
    return tuple(_option(name, _COUNT) for name in names)


def _always(key: str, form: _Form, default: str | None = None) -> _Option:
    return _option(key, form, default, is_always=True)


def _checkpoint(*fields_of_it: str) -> _Option:
    """Return what says the name of a checkpoint, and these fields of it."""

    def read(text: str) -> dict[str, Any]:
        found = _found(text)
        return {"checkpoint": found.name, **{one: getattr(found, one) for one in fields_of_it}}

    def write(event: Any) -> str:
        told = {one: getattr(event, one) for one in fields_of_it}
        return _found_text(CheckpointInfo(name=event.checkpoint, **told))

    return _Option("checkpoint", read, write, "")


def _read_identity(text: str) -> dict[str, Any]:
    named = json.loads(text)
    return {"identity": tuple(named.items())} if named else {}


def _is_seed(event: events.Spare) -> bool:
    return [name for name, _ in event.identity] == ["seed"]


def _host(event: events.Spare) -> str:
    host = host_of(event.endpoint)
    return "" if host in (*_LOOPBACK, event.replica) else host


def _read_looked(text: str) -> dict[str, Any]:
    looked, _, asked_by = text.partition("/")
    return {"looked": int(looked), "asked_by": int(asked_by or 1)} if text else {}


_DEVICES = _always("devices", _COUNT)
_NOTICE = _always("notice_s", _SECONDS)
_REASON = _option("reason", _TEXT)
_BROKEN = _always("reason", _TEXT, "reset")
_UNREACHED = _option("unreached", _NAMES)
_RUNS = _option("runs", _NAMES, of="replicas")
_LINEAGE = _option("lineage", _COUNT, "1")

_OF_SPARE = (
    *_counts("calls"),
    _option("slots", _COUNT, "8", of="num_slots"),
    _Option("host", lambda text: {"endpoint": f"{text}:1"} if text else {}, _host, ""),
    _option("layout", _TEXT, "same"),
    _Option(
        "seed",
        lambda text: {"identity": (("seed", text),)},
        lambda event: event.identity[0][1] if _is_seed(event) else "1",
        "1",
    ),
    _Option(
        "identity",
        _read_identity,
        lambda event: "{}" if _is_seed(event) else json.dumps(dict(event.identity)),
        "{}",
    ),
    _option("keeps", _KEEPS, of="is_durable"),
    _option("sees", _FOUND, of="checkpoints"),
    _Option("looked", _read_looked, lambda e: f"{e.looked}/{e.asked_by}" * bool(e.looked), ""),
)
_OF_REGISTERED = (
    _always("asked_by", _COUNT),
    _LINEAGE,
    _option("state", _NOT_NO, of="has_state"),
    *_counts("committed", "calls", "current", "prepared", "ordered"),
    *(_option(name, _YES) for name in ("broken", "leaving", "finished")),
)
_OF_PROGRESSED = (
    *_counts("committed", "calls", "waiting"),
    _option("spoken_for", _YES, of="is_spoken_for"),
    *_counts("slow"),
    _option("held_up_by", _or_none(_COUNT)),
)
_OF_REFUSED = (_BROKEN, _option("joiner", _YES), *_counts("calls"), _UNREACHED)
_OF_UNRESTORABLE = (
    _always("generation", _COUNT),
    _always("checkpoint", _TEXT),
    _always("reason", _TEXT, "damaged"),
)


class _Verb(NamedTuple):
    """How one kind of event is told."""

    kind: Any
    first: dict[str, _Form]
    """Fields that are a word each."""

    last: str = ""
    """The field that has the words left: ``replica`` is told of each, a text has them joined."""

    options: tuple[_Option, ...] = ()


_NODE = {"node": _TEXT}
_GENERATION = {"generation": _COUNT}
_EXIT = {"replica": _TEXT, "kind": _Form(events.ExitKind, str)}
_TEXTS = ("reason", "detail")

_VERBS = {
    "tick": _Verb(events.Ticked, {}),
    "node": _Verb(events.NodeJoined, _NODE, "", (_DEVICES, _RUNS, _option("labels", _LABELS))),
    "running": _Verb(events.Running, _NODE, "", (_RUNS, _option("ailing", _NAMES))),
    "node-lost": _Verb(events.NodeLost, _NODE, "others", (_option("left", _YES, of="has_left"),)),
    "node-silent": _Verb(events.NodeSilent, _NODE, "others"),
    "node-leaving": _Verb(events.NodeLeaving, _NODE, "", (_NOTICE, _REASON)),
    "node-failed": _Verb(events.NodeFailed, _NODE, "reason"),
    "died": _Verb(events.DiedTogether, {}, "replicas"),
    "exit": _Verb(events.Exited, _EXIT, "detail"),
    "spare": _Verb(events.Spare, {}, "replica", _OF_SPARE),
    "registered": _Verb(events.Registered, {}, "replica", _OF_REGISTERED),
    "prepared": _Verb(events.Prepared, _GENERATION, "replica"),
    "switched": _Verb(events.Switched, _GENERATION, "replica", _counts("step")),
    "broken": _Verb(events.Broken, _GENERATION, "replica", (_BROKEN, _UNREACHED)),
    "refused": _Verb(events.Refused, _GENERATION, "replica", _OF_REFUSED),
    "progressed": _Verb(events.Progressed, _GENERATION, "replica", _OF_PROGRESSED),
    "busy": _Verb(events.Busy, {}, "replica", (_always("max_s", _SECONDS),)),
    "finished": _Verb(events.Finished, {"committed": _COUNT}, "replica", (_LINEAGE,)),
    "unrestorable": _Verb(events.Unrestorable, {}, "replica", _OF_UNRESTORABLE),
    "publish-asked": _Verb(
        events.PublishAsked, {}, "replica", (_checkpoint("committed", "lineage"),)
    ),
    "saved": _Verb(
        events.Saved,
        {},
        "replica",
        (_checkpoint("committed", "lineage", "calls"), _option("seconds", _SECONDS)),
    ),
    "scale": _Verb(events.Scaled, {"target": _COUNT}),
    "drain": _Verb(events.DrainRequested, {}, "replica", (_always("notice_s", _SECONDS, "30"),)),
    "kill": _Verb(events.KillRequested, {}, "replica"),
    "stop": _Verb(
        events.StopRequested,
        {},
        "",
        (_option("now", _YES, of="at_once"), _option("pressed", _YES, of="is_pressed")),
    ),
    "checkpoint": _Verb(events.CheckpointRequested, {}),
    "suspend": _Verb(
        events.SuspendRequested, {}, "", (_REASON, _option("notice_s", _or_none(_SECONDS)))
    ),
    "offer": _Verb(
        events.Offered,
        {"replicas": _COUNT},
        "",
        (_option("notice_s", _or_none(_SECONDS)), _REASON, _option("leave", _NAMES)),
    ),
    "reclaim": _Verb(events.Reclaimed, {}, "replicas", (_NOTICE,)),
}
"""But for ``set``, whose options are the fields of a policy."""

_BY_KIND = {verb.kind: (word, verb) for word, verb in _VERBS.items()}


def parse(words: list[str]) -> list[events.Event]:
    """Read the events of one line, without its ``at`` and time."""
    word, *rest = words
    options = options_of(rest)
    if word == "set":
        said = " ".join(f"{name}={value}" for name, value in options.items())
        return [events.PolicySet(policy=policy_of(options), said=said)]
    if (verb := _VERBS.get(word)) is None:
        raise ConfigError(f"unknown scenario event: {' '.join(words)}")
    names = rest if verb.last in _TEXTS else [one for one in rest if "=" not in one]
    values = {name: form.read(names.pop(0)) for name, form in verb.first.items()}
    values |= _read_options(verb.options, options)
    if verb.last == "replica":
        return [_of_replica(verb.kind, name, values, options) for name in names]
    if verb.last:
        values[verb.last] = " ".join(names) if verb.last in _TEXTS else tuple(names)
    return [verb.kind(**values)]


def _read_options(known: Iterable[_Option], options: dict[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for one in known:
        values |= one.read(options.get(one.key, one.default))
    return values


def _of_replica(
    kind: Any, name: str, values: dict[str, Any], options: dict[str, str]
) -> events.Event:
    if kind is events.Spare:
        values = {"endpoint": f"{name}:1", **values}
    elif kind is events.Registered:
        own = {**options, "calls": options.get("spare_calls", options.get("calls", "0"))}
        spare = _of_replica(events.Spare, name, _read_options(_OF_SPARE, own), own)
        values = {**values, "spare": None if options.get("spare") == "no" else spare}
    event: events.Event = kind(replica=name, **values)
    return event


def line_of(event: events.Event) -> str:
    """Write an event as scenario files have it; of where a worker is reached only the host."""
    if isinstance(event, events.PolicySet):
        return _said(["set", *policy_words(event.policy)])
    word, verb = _BY_KIND[type(event)]
    words = [word, *(form.write(getattr(event, name)) for name, form in verb.first.items())]
    if verb.last:
        last = getattr(event, verb.last)
        words += filter(None, [last]) if isinstance(last, str) else last
    words += _written_options(verb.options, event)
    if isinstance(event, events.Registered):
        words += _spare_words(event)
    return _said(words)


def _written_options(known: Iterable[_Option], event: events.Event) -> Iterator[str]:
    for one in known:
        text = one.write(event)
        if one.is_always or text != one.default:
            yield f"{one.key}={text}"


def _spare_words(event: events.Registered) -> Iterator[str]:
    """Write the spare that a worker is: it has seen as many calls unless it says otherwise."""
    if event.spare is None:
        yield "spare=no"
        return
    if event.spare.calls != event.calls:
        yield f"spare_calls={event.spare.calls}"
    yield from _written_options(_OF_SPARE[1:], event.spare)


# --- settings -----------------------------------------------------------------------------

SHORT = {
    **{name: f"{name}_replicas" for name in ("min", "max", "start")},
    "step": "replica_increment_step",
    "sizes": "replica_discrete_values",
}
"""Fields of a policy that have shorter words here."""


def policy_of(options: dict[str, str]) -> Policy:
    """Read ``min=2 sizes=2,4 scaling_timeout_s=30 backoff=10,2,60,600``."""
    values: dict[str, Any] = {}
    for word, text in options.items():
        name = SHORT.get(word, word)
        if name == "replica_discrete_values":
            values[name] = tuple(map(int, text.split(",")))
        elif name == "backoff":
            initial_s, factor, max_s, reset_s = map(float, text.split(","))
            values[name] = PolicyBackoff(
                initial_s=initial_s, factor=factor, max_s=max_s, reset_after_s=reset_s
            )
        elif name == "amortization":
            values[name] = text == "yes"
        else:
            is_real = name.endswith("_s") or name == "min_marginal_efficiency"
            values[name] = float(text) if is_real else int(text)
    return Policy(**values)


def policy_words(policy: Policy) -> Iterator[str]:
    """Write the fields of a policy that have not their default."""
    words = {name: word for word, name in SHORT.items()}
    for name in _unusual(policy, Policy()):
        yield f"{words.get(name, name)}={_policy_value(getattr(policy, name))}"


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
    limits = [name for name in _LIMITS if name in _unusual(settings, usual)]
    waits = _unusual(settings.timeouts, usual.timeouts)
    for word, of, names in (("waits", settings.timeouts, waits), ("limits", settings, limits)):
        if names:
            yield _said([word, *(f"{name}={getattr(of, name)!r}" for name in names)])


def _unusual(value: JobSettings | Timeouts | Policy, usual: Any) -> list[str]:
    """Return the fields in which a value differs from another."""
    names = [one.name for one in fields(value)]
    return [name for name in names if getattr(value, name) != getattr(usual, name)]


# --- answers ------------------------------------------------------------------------------


def render(ready: Ready) -> list[str]:
    """Write what a step of the controller answered, one line each."""
    joiners = frozenset(ready.register.joiners if ready.register else ())
    lines = [render_command(command, joiners) for command in ready.commands]
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
        case Release(to=to) | Stop(to=to) | RollCall(to=to):
            return f"{type_name(type(command)).replace('_', '-')} {','.join(to)}"
        case SaveNow(to=to, after=after):
            return f"save {','.join(to)} after={after}"
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
