"""What people see: one job as a panel, as text, and the tables of events and decisions.

Owns layout, colours and number formats.  Knows nothing of where the values come from: everything
is drawn from the documented shape of ``status --json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from pliant.cli.terminal import ByWidth, plain_table
from pliant.core.text import counted, in_one_line, in_words, printable, printable_values
from pliant.observe import explain
from pliant.observe.audit import Audit
from pliant.observe.explain import Reasoned
from pliant.observe.goodput import Goodput
from pliant.observe.pool_history import Move
from pliant.observe.prose import pause, pool_line
from pliant.observe.status_facts import (
    clock,
    doubts,
    placed_line,
)

STATE_STYLE = {
    "training": "green",
    "finished": "green",
    "starting": "yellow",
    "spare": "yellow",
    "joining": "cyan",
    "waiting": "yellow",
    "leaving": "magenta",
    "stopping": "magenta",
    "suspended": "yellow",
    "stopped": "magenta",
    "failed": "bold red",
    "lost": "bold red",
    "killed": "bold red",
}
DOUBT_STYLE = {"hosts": "dim", "nonfinite": "red"}
KIND_STYLE = {"join": "cyan", "drain": "magenta", "loss": "red", "restore": "green"}
KIND_SIGN = {"join": "+", "drain": "-", "loss": "x", "restore": "^"}

SHOWN_EVENTS = 5

NARROW = 72
"""Columns below which a table of events leaves something out."""

WHAT = 14
"""Columns for what happened, where the table may wrap: a restore names every replica."""

OVER = frozenset({"finished", "failed", "stopped", "suspended", "lost", "killed", "elsewhere"})
"""States of a job that has no replicas and wants none."""

NAME_SHOWN = len("cuda:GPU-8f3a1b2c")
"""Characters of a device's name: so much of a UUID tells it from the others of a host."""

STALLED_S = 10.0
STALLED_STEPS = 10
"""Without a step for so many seconds, and for as many usual steps, a job is said to stand still."""


REFUSED = re.compile(r"(?:ConfigError|UsageError): (.+)")
"""The line that a refused script ends with."""


def job_panel(
    status: dict[str, Any],
    metrics: dict[str, Any] | None = None,
    news: Sequence[str] = (),
    *,
    wrap: bool = False,
) -> RenderableType:
    """Draw one job: progress, figures, replicas, last events.

    News is what happened last and is no resize (yet), newest last.  Wrapped, a long reason takes
    several lines; a live panel cuts it off, and keeps its height.
    """
    status, metrics = printable_values(status), printable_values(metrics or {})
    rows = [_progress(status), _figures(status, metrics)]
    if status["replicas"] or status["state"] not in OVER:
        rows.append(_replicas(status))
    if (stalled := stalled_line(status)) is not None:
        rows.append(Text(stalled, style="bold yellow"))
    rows += [*_pool(status), *_durable(status)]
    if status.get("placed"):
        rows.append(Text(placed_line(status["placed"]), style="dim"))
    rows += [Text(line, style=DOUBT_STYLE.get(fact, "yellow")) for fact, line in doubts(status)]
    for said in explain.lines(status.get("warnings", ())):
        rows.append(Text(said, style="yellow", no_wrap=not wrap, overflow="ellipsis"))
    if status["events"]:
        rows.append(events_table(status["events"][-SHOWN_EVENTS:], wrap=wrap))
    rows.extend(Padding(Text(printable(sentence), style="dim"), (0, 0, 0, 2)) for sentence in news)
    state = status["state"]
    title = Text.assemble(
        (status["job"] or "job", "bold"), "  ", (state, STATE_STYLE.get(state, "")), " "
    )
    return Panel(Group(*rows), title=title, title_align="left", box=box.ROUNDED, padding=(0, 1))


def events_table(events: Sequence[dict[str, Any]], *, wrap: bool = False) -> RenderableType:
    """Draw resizes: what, why, pause, steps lost, time until ready.

    Where it is narrow, the reason has the room of what matters less: how long a joiner took, and
    that no step was lost.
    """
    shown = printable_values(list(events))
    return ByWidth(lambda width: [_events(shown, wrap=wrap, is_narrow=width < NARROW)])


def _events(events: Sequence[dict[str, Any]], *, wrap: bool, is_narrow: bool) -> Table:
    table = plain_table(
        Column("at step", justify="right", no_wrap=True),
        Column("what", no_wrap=not wrap, max_width=WHAT if wrap else None),
        Column("why", ratio=1, overflow="ellipsis", no_wrap=not wrap),
        Column("pause", justify="right", no_wrap=True),
        expand=True,
    )
    has_lost = not is_narrow or any(event["steps_lost"] for event in events)
    for name, is_shown in (("lost", has_lost), ("ready after", not is_narrow)):
        if is_shown:
            table.add_column(name, justify="right", no_wrap=True)
    for event in events:
        kind, paused, ready = event["kind"], event["pause_s"], event["ready_s"]
        what = f"{KIND_SIGN[kind]} {', '.join(event['replicas'])} {kind}"
        row: list[RenderableType] = [
            str(event["step"]),
            Text(what, style=KIND_STYLE[kind]),
            Text(event["reason"]),
            "..." if paused is None else pause(paused),
        ]
        row += [counted(event["steps_lost"], "step")] if has_lost else []
        row += ["" if is_narrow or ready is None else f"{ready:.1f} s"]
        table.add_row(*row[: len(table.columns)])
    return table


def decisions_table(decisions: Iterable[Reasoned]) -> Table:
    """Draw decisions with their reasons, and what would bring another answer.

    That is said of the last of several that would change with the same.
    """
    table = plain_table(Column("when", no_wrap=True), Column("replicas", justify="right"), "why")
    shown = list(decisions)
    after = [*(decision.would_change for decision in shown[1:]), None]
    for decision, changes_after in zip(shown, after, strict=True):
        why = Text(printable(decision.reason))
        if decision.would_change and decision.would_change != changes_after:
            why.append(f"\nchanges with {printable(decision.would_change)}", style="dim")
        if decision.looks_again_at is not None:
            why.append(f"\nlooks again at {clock(decision.looks_again_at)}", style="dim")
        table.add_row(clock(decision.at), str(decision.target_replicas), why)
    return table


def moves_table(moves: Sequence[Move]) -> Table:
    """Draw who took what from whom in a pool, and why."""
    table = plain_table()
    for name in ("when", "who", "what", "for", "why"):
        is_long = name in ("what", "why")
        table.add_column(name, no_wrap=not is_long, overflow="fold" if is_long else "ellipsis")
    for move in moves:
        row = (move.claim, move.what, move.for_, move.reason)
        table.add_row(clock(move.at), *(Text(printable(part)) for part in row))
    return table


def step_line(status: dict[str, Any], metrics: dict[str, Any] | None = None) -> str:
    """Say in one plain line how far the job is."""
    parts = [f"step {status['step']}" + _of(status["total_steps"])]
    parts += [in_one_line(f"{name} {value}") for name, value in _numbers(status, metrics or {})]
    present = sum(replica["state"] == "training" for replica in status["replicas"])
    parts += [counted(present, "replica")] if present else []  # none at the end
    return "  ".join(parts)


def is_last_word(text: str, reason: str | None) -> bool:
    """Whether a line of output is the refusal of a script that its job has ended with."""
    found = REFUSED.fullmatch(text)
    return found is not None and found[1] in " ".join((reason or "").split())


def stalled_line(status: dict[str, Any]) -> str | None:
    """Say for how long no step was committed, if that is unusual."""
    idle_s, usual_s = status.get("idle_s"), status["median_step_s"]
    if idle_s is None or idle_s < max(STALLED_S, STALLED_STEPS * (usual_s or 0.0)):
        return None
    usually = "" if usual_s is None else f" (usually {usual_s:.2g} s)"
    awaited = ", ".join(status.get("waits_for") or ())
    whom = f"; the others wait for {awaited}" if awaited else ""
    return f"no step for {duration(idle_s)}{usually}{whom}"


def duration(value_s: float) -> str:
    """Format seconds for people: ``42 s``, ``3:07 min``, ``1:05:00 h``."""
    whole = round(value_s)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02} h"
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"


def _progress(status: dict[str, Any]) -> RenderableType:
    total = status["total_steps"]
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_row(
        Text(f"step {status['step']}" + _of(total), style="bold"),
        ProgressBar(total=total or 1, completed=status["step"] if total else 0),
        Text(f"generation {status['generation']}", style="dim"),
    )
    return grid


def _figures(status: dict[str, Any], metrics: dict[str, Any]) -> RenderableType:
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, value in _numbers(status, metrics):
        text.append(f"{name} ", style="dim").append(f"{value}   ")
    if not text:
        is_alone = status["state"] == "starting" and not (status["replicas"] or status["decision"])
        whom = "an agent to join" if is_alone and status["pool"] is None else "the first step"
        uncounted = "steps are not known: the script does not call pliant.elastic_event"
        is_begun = status["state"] == "training"
        text.append(uncounted if is_begun else f"waiting for {whom}", style="dim")
    return text


def _replicas(status: dict[str, Any]) -> RenderableType:
    present = sum(replica["state"] == "training" for replica in status["replicas"])
    wanted = status["target_replicas"]
    bounds = f" ({status['min_replicas']} to {status['max_replicas']})"
    text = Text()
    text.append("replicas ", style="dim")
    text.append(f"{present}" + (f" of {wanted} wanted" if wanted is not None else ""))
    text.append(bounds if status["max_replicas"] is not None else "", style="dim")
    if (workers := status.get("workers_per_replica") or 1) > 1:
        text.append(f", of {workers} workers each", style="dim")
    text.append("   ")
    on = [_hosts_of(replica) for replica in status["replicas"]]
    has_hosts = len({host for hosts in on for host in hosts}) > 1
    for replica, hosts in zip(status["replicas"], on, strict=True):
        state = replica["state"]
        text.append(replica["name"], style="bold")
        text.append(f" {state}", style=STATE_STYLE.get(state, ""))
        if device := replica.get("device_name", "")[:NAME_SHOWN]:
            text.append(f" {device}", style="dim")
        if has_hosts and hosts:
            text.append(f" on {in_words(hosts)}", style="dim")
        text.append("   ")
    return text


def _hosts_of(replica: dict[str, Any]) -> list[str]:
    """Return the hosts of a replica; a coordinator of before says its node alone."""
    node = replica.get("node")
    return list(map(str, replica.get("hosts") or ([node] if node else [])))


def _pool(status: dict[str, Any]) -> list[RenderableType]:
    """Say where the job stands in its pool; nothing if it is in none."""
    place = status.get("pool")
    if place is None:
        return []
    standing = f"   priority {place['priority']}, team {place['team']}"
    devices = ", ".join(map(str, place["devices"])) or "none"
    held = Text.assemble(("devices ", "dim"), devices, (standing, "dim"))
    return [held, Text(pool_line(place), style="red" if place["silence"] else "dim")]


def _durable(status: dict[str, Any]) -> list[RenderableType]:
    """Say what of the run would survive the loss of every process; nothing if it keeps none."""
    kept, failure = status.get("checkpoint"), status.get("checkpoint_failure")
    if kept is None and failure is None:
        return []
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("checkpoint ", style="dim")
    text.append("none yet" if kept is None else f"{kept['name']} at {clock(kept['at'])}")
    if failure is not None:
        text.append(f"   failing: {failure['reason']}", style="red")
    return [text]


def _numbers(status: dict[str, Any], metrics: dict[str, Any]) -> list[tuple[str, str]]:
    found = [] if status["loss"] is None else [("loss", f"{status['loss']:.4g}")]
    found += [
        (name, f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in metrics.items()
        if name != "loss"
    ]
    if status["samples_per_s"] is not None:
        found.append(("samples/s", f"{status['samples_per_s']:.1f}"))
    if status["median_step_s"] is not None:
        found.append(("step time", f"{status['median_step_s']:.3f} s"))
    if status["eta_s"] is not None:
        found.append(("ETA", duration(status["eta_s"])))
    return found


def _of(total: int | None) -> str:
    return "" if total is None else f"/{total}"


def audit_text(audit: Audit, spent: Goodput, directory: object) -> Text:
    """Say what an audit found, and where the time went."""
    text, what, unused = Text(), "draw" if audit.sampler else "sample", ""
    if audit.unused_samples:
        few = counted(audit.unused_samples, what)
        unused = f", {few} in no gradient (no step.backward, or one of weight 0)"
    if audit.exactly_once:
        verb, style = ("handed out", "yellow") if unused else ("counted", "green")
        text.append(f"every {what} {verb} exactly once{unused}", style=f"bold {style}")
        if audit.sampler:
            text.append(
                f"\n{printable(audit.sampler)} gave the order: it may draw a sample several times, "
                "or not at all"
            )
    elif audit.problems:
        text.append(f"{counted(len(audit.problems), 'problem')} found{unused}", style="bold red")
    else:
        few = counted(audit.uncovered_steps, "step")
        said = f"not proved: of {few} not all was recorded here; no problem in the rest{unused}"
        text.append(said, style="bold yellow")
    text.append(
        f"\n{counted(audit.committed_steps, 'committed step')},"
        f" {counted(audit.committed_samples, what)},"
        f" {counted(audit.epochs, 'epoch')} begun; {audit.duplicates} equal repeats;"
        f" {counted(audit.uncommitted, 'micro-batch')} computed but not committed"
        + (
            f"; {counted(audit.superseded, 'step')} repeated after a restore"
            * bool(audit.superseded)
        )
        + (
            f"; {counted(audit.condensed_steps, 'step')} audited while the run went on"
            * bool(audit.condensed_steps)
        )
        + "\nnot covered: what the script carries from one micro-batch to the next (pliant check)"
        + f"; {counted(audit.first_step, 'step')} of another directory" * bool(audit.first_step)
        + f"\n{spent.goodput:.1f} samples/s over {duration(spent.wall_s)}: start"
        f" {spent.start_s:.1f} s, downtime {spent.downtime_s:.2f} s,"
        f" {spent.productive:.1%} productive"
        + " (of what is left of the event log)" * spent.is_partial
        + f"\n{directory}"
    )
    for sentence in audit.uncovered:
        text.append(f"\n- {printable(sentence)}", style="yellow")
    for problem in audit.problems:
        text.append(f"\n- {printable(problem)}", style="red")
    return text


def demo_report(report: dict[str, Any], out: Path) -> list[RenderableType]:
    """Say what the demo did to its run, and whether the outcome is the same."""
    same = ("yes", "bold green") if report["bit_identical"] else ("NO", "bold red")
    once, audits = "yes" if report["samples_exactly_once"] else "NO", report["audit"]
    num_samples = audits[0]["committed_samples"]
    return [
        Text(),
        Text("What happened to the elastic run", style="bold"),
        events_table(report["events"], wrap=True),
        Text(),
        Text.assemble(
            "final state bit-identical to the undisturbed run: ",
            same,
            f"  (digest {report['state_digest']}, {report['steps']} steps)",
        ),
        Text(f"every sample exactly once, in order: {once}  ({num_samples} samples audited)"),
        Text(f"steps lost: {report['steps_lost']}"),
        *(Text(f"- {problem}", style="red") for audit in audits for problem in audit["problems"]),
        Text(f"report: {out / 'report.json'}  ({report['wall_s']:.0f} s in all)"),
    ]
