"""One short line of English per record worth telling; the same words in every view.

Owns the wording of terminal lines and of the status' recent events.  Knows nothing of colours,
columns or how often anybody looks.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pliant.core.text import counted, in_one_line
from pliant.observe import status_facts
from pliant.observe.log import Record, listed, worker_of
from pliant.observe.timeline import Resize, ResizeKind

JOB_ENDS = "the job ends"
"""Why replicas are ended that the job's own end takes along; its sentence says it for all."""

PROGRESS_S = 10.0
"""Between two lines of progress where no panel shows it, in seconds."""

SHOWN_REPLICAS = 8
"""Of those that have other numbers of micro-batches than before."""

STOPPING = "stopping at the next step boundary"

AGAIN = "Ctrl-C again ends the job at once, and saves nothing more"

THE_SCRIPT = "the script "
"""How a detail begins that is a sentence of its own, and no exception."""

NOTED = re.compile(
    r"node \S+ (leaves, and|starts nothing more until) |the checkpoint that was asked for "
)
"""How a note begins that tells what becomes of a state which nobody else has, why nobody joins, or
that what was asked for may not come."""

EXITS = {
    "finished": "finished",
    "left": "left",
    "usage": "stopped: pliant cannot run this script; see the error below",
    "script": "ended",
    "early": "ended without reaching the end of its steps",
    "corrupt": "had another state than most replicas and is replaced",
    "short": "ended",
    "taken": "could not have its device",
    "device": "could not go on with its device",
}


def line(record: Record) -> str | None:
    """Say what a record tells a person; None for what only machines need."""
    say = _SAY.get(str(record.get("kind")))
    said = None if say is None else say(record, worker_of(record))
    return None if said is None else in_one_line(said)


def resize_line(resize: Resize) -> str:
    """Say what one resize was and what it cost."""
    verb = {
        ResizeKind.JOIN: "joined",
        ResizeKind.DRAIN: "drained",
        ResizeKind.LOSS: "lost",
        ResizeKind.RESTORE: "restored",
    }[resize.kind]
    costs = []
    if resize.pause_s is not None:
        costs.append(f"pause {pause(resize.pause_s)}")
    if resize.kind is ResizeKind.JOIN and resize.ready_s is not None:
        costs.append(f"ready after {resize.ready_s:.1f} s")
    if resize.steps_lost:
        again = "to repeat" if resize.kind is ResizeKind.RESTORE else "lost"
        costs.append(f"{counted(resize.steps_lost, 'step')} {again}")
    cost = f" ({', '.join(costs)})" if costs else ""
    why = f": {resize.reason}" if resize.reason else ""
    return in_one_line(
        f"{', '.join(resize.replicas)} {verb} at step {resize.step}, generation"
        f" {resize.generation}, now {counted(resize.num_replicas, 'replica')}{cost}{why}"
    )


def pause(pause_s: float) -> str:
    """Format a pause; one shorter than a normal step varies shows as none."""
    return "none" if pause_s < 0.0005 else f"{pause_s:.3f} s"


def kept_by(names: list[str]) -> str:
    """``; a keeps what it has``, ``; a, b keep what they have``; empty of nobody."""
    keep = "keeps what it has" if len(names) == 1 else "keep what they have"
    return f"; {', '.join(names)} {keep}" if names else ""


def quota_of(team: str, quota: int | None) -> str:
    """Say what a team has."""
    return f"team {team} has {'no quota' if quota is None else f'a quota of {quota}'}"


def _exited(record: Record, who: str) -> str:
    how, detail = str(record.get("exited_kind") or ""), str(record.get("detail") or "")
    if how == "signal":
        is_sentence = detail and not detail.lower().startswith("sig")  # SIGKILL, signal 34
        return f"{who} was ended{': ' if is_sentence else ' by '}{detail or 'a signal'}"
    said = EXITS.get(how, how or "ended")
    if how in ("taken", "corrupt", "short", "device"):
        return f"{who} {said}: {detail}"
    if how != "script" or not detail:
        return f"{who} {said}"
    return f"{who} {said}: {detail}" if detail.startswith(THE_SCRIPT) else f"{who} raised {detail}"


def _names(names: object) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) else str(names)


def _seconds(value: object) -> str:
    return f"{value:g} s" if isinstance(value, int | float) else "no"


def _saved(record: Record, who: str) -> str:
    seconds = record.get("seconds")
    took = f" ({seconds:.1f} s)" if isinstance(seconds, int | float) else ""
    return f"checkpoint {record.get('checkpoint')} is durable{took}"


def _slots_moved(record: Record, who: str) -> str | None:
    """Say who computes how many micro-batches from now on, and how long each takes for one."""
    fields = (listed(record, name) for name in ("replicas", "sizes", "paces_us"))
    each = [
        f"{name} {size}" + (f" ({pace / 1e3:.3g} ms each)" if pace else "")
        for name, size, pace in zip(*fields, strict=False)
        if isinstance(size, int) and isinstance(pace, int)
    ]
    more = f", and {len(each) - SHOWN_REPLICAS} more" if len(each) > SHOWN_REPLICAS else ""
    named = ", ".join(each[:SHOWN_REPLICAS])
    return f"micro-batches from step {record.get('step')} on: {named}{more}" if each else None


def _save_failed(record: Record, who: str) -> str:
    wait_s = record.get("retry_s")
    is_tried_again = isinstance(wait_s, int | float) and wait_s > 0
    again = f"; trying again in {wait_s:g} s" if is_tried_again else ""
    return f"no checkpoint after step {record.get('committed')}: {record.get('reason')}{again}"


def pool_line(values: Record) -> str:
    """Say where a job stands in its pool."""
    name, reason = f"pool {values.get('pool')}", str(values.get("reason") or "")
    held = values.get("devices")
    devices = held if isinstance(held, list) else []
    if values.get("silence"):
        kept = f"the job keeps device{'s' * (len(devices) > 1)} {_names(devices)}"
        return f"{values['silence']}; {kept if devices else 'the job waits'}"
    because = f": {reason}" if reason else ""
    match values.get("admission"):
        case "waiting":
            again = " again" if values.get("is_suspended") else ""
            return f"waiting for {name}{again}{because}"
        case "suspending":
            return f"{name} needs every device of the job{because}"
        case _:
            has = counted(values.get("offered"), "device")
            return f"{name} offers {has} of {values.get('wanted')} wanted{because}"


SET_ASIDE = re.compile(r"node .+ is (set aside for|no longer set aside)")
"""What the core notes of a node on which nothing could be started, for a cause of its host."""


def _note(record: Record, who: str) -> str | None:
    """Say what a worker noted; what the core notes its events tell, but for some."""
    text = str(record.get("text"))
    if who:
        return f"{who}: {text}"
    return text if NOTED.match(text) or SET_ASIDE.match(text) else None


def _declined(record: Record, who: str) -> str:
    """Say what was asked for, and why it was refused."""
    request = record.get("request")
    asked = request if isinstance(request, dict) else {}
    kind, name = str(asked.get("kind")), asked.get("replica")
    what = {
        "scaled": f"scale to {asked.get('target')}",
        "policy_set": "change the policy",
        "checkpoint_requested": "save a checkpoint now",
        "drain_requested": f"drain {name}",
        "kill_requested": f"kill {name}",
        "stop_requested": "stop",
        "suspend_requested": "suspend",
    }
    reason = str(record.get("reason")).removeprefix(f"{name} is not drained: ")  # as said before
    return f"refused to {what.get(kind, 'do so')}: {reason}"


_SAY: dict[str, Callable[[Record, str], str | None]] = {
    "coordinator_started": lambda r, who: "another coordinator goes on with what runs",
    "start_replica": lambda r, who: f"{who} is starting on {r.get('node') or 'this node'}",
    "spare": lambda r, who: f"{who} is ready to join",
    "refused": lambda r, who: f"{who} cannot join: {r.get('reason')}" if r.get("joiner") else None,
    "dismiss": lambda r, who: f"{_names(r.get('to'))} must leave: {r.get('reason')}",
    "scaled": lambda r, who: f"asked for {counted(r.get('target'), 'replica')}",
    "policy_set": lambda r, who: f"asked for another policy: {r.get('said') or 'no word of it'}",
    "checkpoint_requested": lambda r, who: "asked for a checkpoint now",
    "drain_requested": lambda r, who: f"asked to drain {who}, {_seconds(r.get('notice_s'))} notice",
    "kill_requested": lambda r, who: f"asked to kill {who}",
    "stop_requested": lambda r, who: "ending at once" if r.get("at_once") else STOPPING,
    "interrupted": lambda r, who: AGAIN,
    "declined": _declined,
    "suspend_requested": lambda r, who: f"{STOPPING}, with a checkpoint",
    "pool": lambda r, who: pool_line(r),
    "resumed": lambda r, who: f"the run {r.get('sentence')}",
    "saved": _saved,
    "save_failed": _save_failed,
    "unrestorable": lambda r, who: (
        f"checkpoint {r.get('checkpoint')} is skipped: {r.get('reason')}"
    ),
    "slots_moved": _slots_moved,
    "end_replica": lambda r, who: (
        None if r.get("reason") == JOB_ENDS else f"{who} is ended: {r.get('reason')}"
    ),
    "exited": _exited,
    "node_leaving": lambda r, who: (
        f"node {r.get('node')} is to leave{f', {why}' if (why := r.get('reason')) else ''}: its"
        f" replicas have {_seconds(r.get('notice_s'))}"
    ),
    "node_silent": lambda r, who: (
        f"nothing is heard of the agent of node {r.get('node')}"
        + (f" and of {counted(len(others), 'other')}" if (others := r.get("others")) else "")
        + ": nothing new is started there"
    ),
    "nodes_silent": lambda r, who: (
        f"heard again: the agent of {_names(names)}" if (names := r.get("heard")) else None
    ),
    "devices_ailing": lambda r, who: (
        "; ".join(map(status_facts.ailing_line, status_facts.ailing_after(r, ())))
        or f"all devices of {r.get('node')} are healthy again"
    ),
    "joint_nodes": lambda r, who: status_facts.hosts_news(r),
    "node_failed": lambda r, who: f"node {r.get('node')} takes no part: {r.get('reason')}",
    "node_refused": lambda r, who: f"node {r.get('node')} is not taken: {r.get('reason')}",
    "node_lost": lambda r, who: (
        f"node {r.get('node')} {'has left' if r.get('has_left') else 'is lost'}"
        + (f", and {counted(len(others), 'other')}" if (others := r.get("others")) else "")
    ),
    "job_ended": lambda r, who: (  # what the core decided may yet come to another end
        f"the job ends with exit code {r.get('exit_code')}: {r.get('reason')}"
    ),
    "note": _note,
}
