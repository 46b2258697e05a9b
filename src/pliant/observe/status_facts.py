"""Facts that a status tells beside its figures: where replicas are, and what is wrong with them.

Owns, of each fact, what it is as of a record of the log, and the line in which a person reads it:
nodes that do not reach each other, nodes whose agents are silent, replicas that are slow, steps
that were not finite, sites of a placement, and hosts that together are one node.  Knows nothing of
how any of it is found out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pliant.core.errors import ConfigError
from pliant.core.placement import Placement, PlacementRule, site_of
from pliant.core.text import counted, printable
from pliant.core.values import NodeId
from pliant.observe.living_replicas import LivingReplicas
from pliant.observe.log import COMMIT, Record, listed, number, seconds, whole

SHOWN = 8
"""Of hosts or nodes in one line."""


def apart_after(record: Record, before: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return [{nodes, times, since, again_at}] of nodes that do not reach each other; ``again_at``
    null: now.
    """
    at = float(record.get("at") or 0.0)
    since = {tuple(one["nodes"]): one["since"] for one in before}
    found = []
    for pair in listed(record, "pairs"):
        match pair:
            case [[str() as one, str() as other], int() as times, again_s]:
                wait_s = seconds(again_s)
                again_at = None if wait_s is None else at + wait_s
                began = since.get((one, other), at)
                nodes = [one, other]
                found.append({"nodes": nodes, "times": times, "since": began, "again_at": again_at})
            case _:
                pass  # damaged
    return found


def apart_line(values: Mapping[str, Any]) -> str:
    """Say which two nodes do not reach each other, and when one replica tries it again."""
    one, other = values["nodes"]
    at = values["again_at"]
    again = "one replica tries it now" if at is None else f"one replica tries it at {clock(at)}"
    since = clock(values["since"])
    return printable(f"nodes {one} and {other} do not reach each other since {since}; {again}")


def silent_after(record: Record, before: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return [{node, since}] of nodes whose agents say nothing, as of this record."""
    at, since = float(record.get("at") or 0.0), {one["node"]: one["since"] for one in before}
    names = [node for node in listed(record, "nodes") if isinstance(node, str)]
    return [{"node": node, "since": since.get(node, at)} for node in names]


def silent_line(values: Mapping[str, Any]) -> str:
    """Say which node is silent, and since when."""
    return printable(
        f"nothing is heard of the agent of node {values['node']} since {clock(values['since'])}: "
        "nothing new is started there until it speaks"
    )


def ailing_after(record: Record, before: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return [{node, device, why}] of devices that get no worker, as of this record of a node."""
    node = str(record.get("node"))
    found = [dict(one) for one in before if one["node"] != node]
    for ailment in listed(record, "ailments"):
        match ailment:
            case [str() as device, str() as why]:
                found.append({"node": node, "device": device, "why": why})
            case _:
                pass  # damaged
    return found


def ailing_line(values: Mapping[str, Any]) -> str:
    """Say which device gets no worker, and why."""
    return printable(f"{values['device']} of {values['node']} gets no worker: {values['why']}")


def slow_after(record: Record, before: object) -> list[dict[str, Any]]:
    """Return [{replica, times, since}] of replicas far slower than the others."""
    at = float(record.get("at") or 0.0)
    found = []
    for one in listed(record, "replicas"):
        match one:
            case [str() as name, times, for_s]:
                factor, since_s = number(times), seconds(for_s)
                if factor is not None and since_s is not None:
                    found.append({"replica": name, "times": factor, "since": at - since_s})
            case _:
                pass  # damaged
    return found


def slow_line(values: Mapping[str, Any]) -> str:
    """Say how slow a replica is, and since when."""
    return printable(
        f"{values['replica']} takes {values['times']:g} times as long for a micro-batch as the "
        f"others, since {clock(values['since'])}"
    )


def nonfinite_after(record: Record, before: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return {step, what, steps, skipped} of all so far whose loss or gradient was nan or
    inf; the first two are of the newest.
    """
    if record.get("kind") != COMMIT or not record.get("nonfinite"):
        return before
    known = before or {"steps": 0, "skipped": 0}
    return {
        "step": record.get("step"),
        "what": str(record["nonfinite"]),
        "steps": known["steps"] + 1,
        "skipped": known["skipped"] + bool(record.get("skipped")),
    }


def nonfinite_line(values: Mapping[str, Any]) -> str:
    """Say what was not finite, when last and how often."""
    steps, skipped = counted(values["steps"], "step"), values["skipped"]
    what = f"{values['what']} at step {values['step']}; {steps} like it so far"
    return f"{what}, {skipped} skipped" if skipped else what


def placed(about: Record, living: LivingReplicas) -> dict[str, Any] | None:
    """Return {rule, sites: {site: [replicas]}}; None: they may be anywhere."""
    try:
        rule = PlacementRule.of(str(about.get("placement") or Placement.FREE))
    except ConfigError:  # damaged
        return None
    if rule.how is Placement.FREE:
        return None
    known = {NodeId(node): own for node, own in living.labels.items()}
    sites: dict[str, list[str]] = {}
    for one in living.named.values():
        sites.setdefault(site_of(NodeId(one.node), known, rule.label), []).append(one.name)
    return {"rule": str(rule), "sites": sites}


def placed_line(values: Mapping[str, Any]) -> str:
    """Say where replicas are: ``spread by rack: a: r1, r3; b: r2``."""
    rule = PlacementRule.of(values["rule"])
    sites = (f"{site}: {', '.join(names)}" for site, names in sorted(values["sites"].items()))
    return printable(f"{rule.how} by {rule.label}: " + ("; ".join(sites) or "nobody yet"))


def hosts_after(record: Record, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what is known as of this record: {hosts (of a node), nodes: [[head, parts ...]],
    alone: [hosts], missed: [[two that have not become one node when they were to]], unable:
    [[host, why it can be one with nobody]]}.
    """
    nodes = _sets(record, "nodes")
    pairs = (sorted((host, other)) for host, others in _missed(record) for other in others)
    told = [*([] if before is None else before["missed"]), *pairs]
    heads = {host: hosts[0] for hosts in nodes for host in hosts}
    missed = [[*pair] for pair in dict.fromkeys(map(tuple, told))]
    return {
        "hosts": whole(record.get("hosts"), 1),
        "nodes": nodes,
        "alone": [str(node) for node in listed(record, "alone")],
        "missed": [pair for pair in missed if len({heads.get(one, one) for one in pair}) == 2],
        "unable": [one for one in _sets(record, "unable") if len(one) == 2],
    }


def hosts_without(known: Mapping[str, Any], gone: set[str]) -> dict[str, Any]:
    """Return the same without nodes that are lost; what is left of theirs will say what it is."""
    return {
        **known,
        "nodes": [hosts for hosts in known["nodes"] if gone.isdisjoint(hosts)],
        "alone": [node for node in known["alone"] if node not in gone],
        "missed": [pair for pair in known["missed"] if gone.isdisjoint(pair)],
        "unable": [[host, why] for host, why in known["unable"] if host not in gone],
    }


def hosts_of_node(known: Mapping[str, Any] | None, node: str) -> list[str]:
    """Return the hosts of a node, itself first; none if it has no name."""
    joint = [] if known is None else known["nodes"]
    alone = [node] if node else []
    return next((list(hosts) for hosts in joint if hosts[:1] == [node]), alone)


def hosts_of_replica(status: Mapping[str, Any], name: str) -> list[str]:
    """Return where a replica runs, or one of its workers, by a status; none: it does not."""
    replica, dot, place = name.partition(".")
    hosts: list[str] = next(
        (one.get("hosts") or [] for one in status["replicas"] if one["name"] == replica), []
    )
    if not dot or not hosts:
        return hosts
    each = (status.get("workers_per_replica") or 1) // len(hosts)
    is_place = place.isascii() and place.isdecimal() and each > 0
    return hosts[int(place[:9]) // each :][:1] if is_place else []


def hosts_lines(known: Mapping[str, Any] | None) -> list[str]:
    """Say to a person who is one node, and who waits for others; a coordinator of before says
    nothing of ``missed`` and ``unable``.
    """
    if known is None:
        return []
    known = {"missed": (), "unable": (), **known}
    said = [_waiting(known)] if known["alone"] else []
    if known["nodes"]:
        said.append(_joined(known["nodes"]))
    said += _unable(known)
    return [printable(one) for one in said]


def hosts_news(record: Record) -> str | None:
    """Say what is new in a record; None: nothing that is worth a line."""
    known, said = hosts_after(record, None), []
    if joined := _sets(record, "joined"):
        said.append(_joined(joined))
    missed = {host: others for host, others in _missed(record) if others}
    said += [f"host {host} does not reach {_shown(missed[host])}" for host in missed]
    if known["alone"]:
        said.append(_waiting(known))
    said += _unable(known)
    return "; ".join(said) or None


def _joined(nodes: Sequence[Sequence[str]]) -> str:
    """Say which hosts are host groups, the head of each first."""
    word = "host group" if len(nodes) == 1 else "host groups"
    return f"{word}: {_shown([' with '.join(one) for one in nodes])}"


def _waiting(known: Mapping[str, Any]) -> str:
    """Say for whom hosts wait that are no node, and what helps."""
    alone, hosts = known["alone"], known["hosts"]
    word = "host waits" if len(alone) == 1 else "hosts wait"
    missing = hosts - len(alone)
    apart = [pair for pair in known["missed"] if set(pair) <= set(alone)]
    if missing > 0:
        whom = "another" if missing == 1 else counted(missing, "other")
        more = "another host" if missing == 1 else f"{missing} more hosts"
        helps = f"; let {more} join the job"
    else:
        whom, helps = "each other", f"; {_unreached(apart)}" if apart else ""
    return f"{len(alone)} {word} for {whom}: hostsPerReplica is {hosts} ({_shown(alone)}){helps}"


def _unable(known: Mapping[str, Any]) -> list[str]:
    """Say which hosts can be one with nobody, and why."""
    unable = known["unable"]
    more = [f"{len(unable) - SHOWN} more hosts can neither"] if len(unable) > SHOWN else []
    said = [
        f"host {host} cannot be one with others: {why}; it tries again every few seconds"
        for host, why in unable[:SHOWN]
    ]
    return said + more


def _unreached(apart: Sequence[Sequence[str]]) -> str:
    """Say what keeps hosts from being one node that were told to be, or were, and what to do."""
    pairs = _shown([" and ".join(pair) for pair in apart])
    return (
        f"{pairs} did not reach each other: open the ports above 1023 between them, and look at "
        "what their agents say; they are tried again, after 5 min at most"
    )


def _missed(record: Record) -> list[tuple[str, list[str]]]:
    """Return each host that has said so with those that it was to be one node with, and is not."""
    said = [one for one in listed(record, "missed") if isinstance(one, list) and len(one) == 2]
    return [
        (host, [str(other) for other in others])
        for host, others in said
        if isinstance(host, str) and isinstance(others, list)
    ]


def _sets(record: Record, name: str) -> list[list[str]]:
    return [[str(node) for node in one] for one in listed(record, name) if isinstance(one, list)]


def _shown(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def doubts(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (fact, line) of what is wrong, or may be: hosts that are apart, silent or not there,
    ailing devices, slow replicas, steps that were not finite.
    """
    said = {"apart": apart_line, "silent": silent_line, "ailing": ailing_line}
    for fact, line in said.items():
        yield from ((fact, line(one)) for one in status.get(fact, ()))
    yield from (("hosts", line) for line in hosts_lines(status.get("hosts")))
    yield from (("slow", slow_line(one)) for one in status.get("slow", ()))
    if status.get("nonfinite"):
        yield "nonfinite", nonfinite_line(status["nonfinite"])


def clock(at: float) -> str:
    """Return the time of day."""
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
