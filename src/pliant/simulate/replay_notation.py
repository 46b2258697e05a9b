"""The text form of what a coordinator is told, as scenario files have it, read.

Owns the words of events, of a policy and of limits; ``replay_wording`` writes them.  A word with a
blank, a ``#`` or a quotation mark in it stands in double quotes, as JSON has it.  Knows nothing of
who plays a file (``replay_player``).
"""

from __future__ import annotations

import json
import re
from typing import Any

from pliant.core.errors import ConfigError
from pliant.core.events import (
    Broken,
    Busy,
    DiedTogether,
    DrainRequested,
    Event,
    Exited,
    ExitKind,
    Finished,
    KillRequested,
    NodeFailed,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeSilent,
    Offered,
    PolicySet,
    Prepared,
    Progressed,
    PublishAsked,
    Reclaimed,
    Refused,
    Registered,
    Running,
    Saved,
    Scaled,
    Spare,
    StopRequested,
    SuspendRequested,
    Switched,
    Ticked,
    Unrestorable,
)
from pliant.core.policy.decide import Policy, PolicyBackoff
from pliant.core.values import CheckpointInfo, Generation, Incarnation, Lineage, NodeId, ReplicaId

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_WORD = re.compile(rf'(?:{_QUOTED.pattern}|[^\s"#])+')
_COMMENT = re.compile(r"#.*")


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


# --- events -----------------------------------------------------------------------------


def parse(words: list[str]) -> list[Event]:
    """Read the events of one line, without its ``at`` and time."""
    verb, *rest = words
    names = [ReplicaId(word) for word in rest if "=" not in word]
    options = options_of(rest)
    match verb:
        case "prepared" | "switched" | "broken" | "refused" | "finished" | "progressed":
            return _worker_events(verb, names, options)
        case "spare":
            return [_spare(name, options) for name in names]
        case "registered":
            return [_registered(name, options) for name in names]
        case "unrestorable" | "publish-asked" | "saved":
            return [_about_checkpoint(verb, names[0], options)]
        case "busy":
            return [Busy(replica=name, max_s=float(options["max_s"])) for name in names]
        case "node" | "running" | "node-silent" | "node-leaving" | "node-lost" | "node-failed":
            return [_of_node(verb, NodeId(rest[0]), rest[1:], options)]
        case "died":
            return [DiedTogether(replicas=tuple(map(ReplicaId, rest)))]
        case "exit":
            detail = " ".join(rest[2:])
            return [Exited(replica=ReplicaId(rest[0]), kind=ExitKind(rest[1]), detail=detail)]
        case "tick":
            return [Ticked()]
        case _:
            return [_request(verb, rest, names, options)]


def _of_node(verb: str, node: NodeId, rest: list[str], options: dict[str, str]) -> Event:
    runs = tuple(ReplicaId(name) for name in options.get("runs", "").split(",") if name)
    match verb:
        case "node":
            devices, said = int(options["devices"]), options.get("labels", "")
            labels = tuple(options_of(said.split(",")).items())
            return NodeJoined(node=node, devices=devices, replicas=runs, labels=labels)
        case "running":
            return Running(node=node, replicas=runs)
        case "node-silent":
            return NodeSilent(node=node, others=tuple(map(NodeId, rest)))
        case "node-leaving":
            return NodeLeaving(node=node, notice_s=float(options["notice_s"]))
        case "node-lost":
            others = tuple(NodeId(word) for word in rest if "=" not in word)
            return NodeLost(node=node, others=others, has_left=options.get("left") == "yes")
        case _:
            return NodeFailed(node=node, reason=" ".join(rest))


def _request(verb: str, rest: list[str], names: list[ReplicaId], options: dict[str, str]) -> Event:
    match verb:
        case "scale":
            return Scaled(target=int(rest[0]))
        case "drain":
            notice_s = float(options.get("notice_s", "30"))
            return DrainRequested(replica=names[0], notice_s=notice_s)
        case "kill":
            return KillRequested(replica=names[0])
        case "stop":
            return StopRequested(at_once=options.get("now") == "yes")
        case "suspend":
            return SuspendRequested(reason=options.get("reason", ""))
        case "set":
            said = " ".join(f"{name}={value}" for name, value in options.items())
            return PolicySet(policy=policy_of(options), said=said)
        case "offer":
            given = options.get("notice_s")
            return Offered(
                replicas=int(rest[0]),
                notice_s=None if given is None else float(given),
                reason=options.get("reason", ""),
                leave=tuple(
                    ReplicaId(name) for name in options.get("leave", "").split(",") if name
                ),
            )
        case "reclaim":
            return Reclaimed(replicas=tuple(names), notice_s=float(options["notice_s"]))
        case _:
            raise ConfigError(f"unknown scenario event: {verb} {' '.join(rest)}")


def _worker_events(verb: str, words: list[ReplicaId], options: dict[str, str]) -> list[Event]:
    """Read ``verb NUMBER r1 r2 key=value``; the number is a generation, or a count for finished."""
    number = int(words[0])
    generation, names = Generation(number), words[1:]
    reason = options.get("reason", "reset")
    unreached = tuple(ReplicaId(n) for n in options.get("unreached", "").split(",") if n)
    match verb:
        case "prepared":
            return [Prepared(replica=name, generation=generation) for name in names]
        case "switched":
            count = int(options.get("step", "0"))
            return [Switched(replica=name, generation=generation, step=count) for name in names]
        case "broken":
            return [
                Broken(replica=name, generation=generation, reason=reason, unreached=unreached)
                for name in names
            ]
        case "refused":
            return [
                Refused(
                    replica=name,
                    generation=generation,
                    reason=reason,
                    joiner=options.get("joiner") == "yes",
                    calls=int(options.get("calls", "0")),
                    unreached=unreached,
                )
                for name in names
            ]
        case "progressed":
            return [
                Progressed(
                    replica=name,
                    generation=generation,
                    committed=int(options.get("committed", "0")),
                    calls=int(options.get("calls", "0")),
                    waiting=Generation(int(options.get("waiting", "0"))),
                    held_up_by=int(options["held_up_by"]) if "held_up_by" in options else None,
                    is_spoken_for=options.get("spoken_for") == "yes",
                    slow=int(options.get("slow", "0")),
                )
                for name in names
            ]
        case _:
            lineage = Lineage(int(options.get("lineage", "1")))
            return [Finished(replica=name, committed=number, lineage=lineage) for name in names]


def _spare(name: ReplicaId, options: dict[str, str], *, calls: str = "calls") -> Spare:
    named = json.loads(options.get("identity", "{}"))
    looked, _, asked_by = options.get("looked", "0/0").partition("/")
    return Spare(
        replica=name,
        calls=int(options.get(calls, "0")),
        num_slots=int(options.get("slots", "8")),
        layout=options.get("layout", "same"),
        endpoint=f"{options.get('host', name)}:1",
        identity=tuple(named.items()) or (("seed", options.get("seed", "1")),),
        is_durable=options.get("keeps") == "checkpoints",
        checkpoints=tuple(_found(text) for text in options.get("sees", "").split(",") if text),
        looked=int(looked),
        asked_by=Incarnation(int(asked_by or 1)),
    )


def _found(text: str) -> CheckpointInfo:
    """Read ``name@committed/lineage`` or ``name@committed/lineage/calls``."""
    name, _, rest = text.partition("@")
    committed, lineage, calls = (*map(int, rest.split("/")), 0)[:3]
    return CheckpointInfo(name=name, committed=committed, lineage=Lineage(lineage), calls=calls)


def _registered(name: ReplicaId, options: dict[str, str]) -> Registered:
    """Read where a worker stands: with state, in ``current``, unless something else is said."""
    has_state = options.get("state") != "no"
    calls = "spare_calls" if "spare_calls" in options else "calls"
    return Registered(
        replica=name,
        asked_by=Incarnation(int(options.get("asked_by", "0"))),
        lineage=Lineage(int(options.get("lineage", "1"))),
        committed=int(options.get("committed", "0")),
        calls=int(options.get("calls", "0")),
        has_state=has_state,
        current=Generation(int(options.get("current", "0"))),
        prepared=Generation(int(options.get("prepared", "0"))),
        ordered=Generation(int(options.get("ordered", "0"))),
        broken=options.get("broken") == "yes",
        leaving=options.get("leaving") == "yes",
        finished=options.get("finished") == "yes",
        spare=None if options.get("spare") == "no" else _spare(name, options, calls=calls),
    )


def _about_checkpoint(verb: str, name: ReplicaId, options: dict[str, str]) -> Event:
    if verb == "unrestorable":
        return Unrestorable(
            replica=name,
            generation=Generation(int(options["generation"])),
            checkpoint=options["checkpoint"],
            reason=options.get("reason", "damaged"),
        )
    found = _found(options["checkpoint"])
    if verb == "publish-asked":
        return PublishAsked(
            replica=name, lineage=found.lineage, committed=found.committed, checkpoint=found.name
        )
    return Saved(
        replica=name,
        lineage=found.lineage,
        committed=found.committed,
        checkpoint=found.name,
        calls=found.calls,
        seconds=float(options.get("seconds", "0")),
    )


def options_of(words: list[str]) -> dict[str, str]:
    """Return the words that are ``key=value``."""
    return dict(word.split("=", 1) for word in words if "=" in word)


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
