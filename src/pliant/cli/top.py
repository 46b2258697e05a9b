"""``pliant top``: a pool, or a job, as it is now, again and again.

Owns the layout of a pool.  Knows nothing of where values come from: everything is drawn from the
documented shape of ``pool status --json``.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from pliant.cli.screens import duration
from pliant.cli.terminal import ByWidth, plain_table
from pliant.core.text import counted, printable_values

STATE_STYLE = {
    "running": "green",
    "starting": "yellow",
    "waiting": "yellow",
    "shrinking": "magenta",
    "suspending": "magenta",
    "suspended": "yellow",
    "ending": "magenta",
}

PALETTE = ("cyan", "green", "magenta", "blue", "yellow", "bright_red", "bright_cyan")
"""Colours of claims, in the order of the table; the first again after the last."""

REFRESH_S = 0.5
"""Between two looks, in seconds."""

NOTES_SHOWN = 8
"""Devices out of use of which it is said why."""

RUNS_SHOWN = 6
"""Devices of a claim that are named, those with numbers in a row as one."""

DEVICES_SHOWN = 256
"""Devices that are drawn one by one."""

NARROW = 92
"""Columns below which reasons stand under the table of claims: beside it they had 10 of 80."""


def pool_panel(status: dict[str, Any], *, now_at: float | None = None) -> RenderableType:
    """Draw a pool: its devices, who has them, who waits and why, what teams use."""
    now_at, status = time.time() if now_at is None else now_at, printable_values(status)
    claims = status["claims"]
    colours = {claim["name"]: PALETTE[index % len(PALETTE)] for index, claim in enumerate(claims)}
    rows: list[RenderableType] = [_figures(status), _devices(status, colours)]
    rows += [Text(), ByWidth(partial(_claims, status, colours, now_at))] if claims else []
    if len(status["teams"]) > 1 or any(team["quota"] is not None for team in status["teams"]):
        rows += [Text(), _teams(status["teams"])]
    title = Text.assemble("pool ", (status["pool"], "bold"), " ")
    return Panel(Group(*rows), title=title, title_align="left", box=box.ROUNDED, padding=(0, 1))


def live(
    ask: Callable[[], dict[str, Any]],
    draw: Callable[[dict[str, Any]], RenderableType],
    console: Console,
) -> None:
    """Draw what is answered until Ctrl-C."""
    pause = threading.Event()
    live_view = Live(console=console, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), live_view as screen:
        while True:
            screen.update(draw(ask()), refresh=True)
            pause.wait(REFRESH_S)


def _figures(status: dict[str, Any]) -> RenderableType:
    text = Text()
    text.append(f"{status['in_use']} of {counted(status['limit'], 'device')} in use", style="bold")
    text.append(f"   {status['free']} idle")
    if (rest := status["limit"] - status["in_use"] - status["free"]) > 0:
        text.append(f"   {rest} out of use", style="red")
    for (model, size), number in Counter(map(_model_of, status["devices"])).items():
        text.append(f"   {number} x {model}{size}" if model else "", style="dim")
    if status["recovering"]:
        names = ", ".join(status["recovering"])
        text.append(f"   started anew, waits for {names} to say what they hold", style="yellow")
    if status["failure"]:
        text.append(f"   the state cannot be written: {status['failure']}", style="bold red")
    return text


def _model_of(device: dict[str, Any]) -> tuple[str, str]:
    """Return what a device is, and how large; of a pool of before it is not known."""
    size = device.get("memory_bytes")
    return device.get("model") or "", f", {size / (1 << 30):.0f} GB" if size else ""


def _devices(status: dict[str, Any], colours: dict[str, str]) -> RenderableType:
    """Draw one cell for each device, in the colour of who has it."""
    text = Text()
    for device in status["devices"][:DEVICES_SHOWN]:
        name = device.get("name")
        number, claim = f"{name or device['device']:>3} ", device["claim"]
        if claim is not None:
            style = f"black on {colours[claim]}" if claim in colours else "reverse"
            text.append(number, style=f"{style} dim" if device["is_leaving"] else style)
        elif device["is_blocked"]:
            text.append(number, style="black on red")
        else:
            text.append(number, style="dim")
        is_out = device["is_cordoned"] or device["is_drained"]
        text.append("x " if is_out else "  ", style="red")
    if (hidden := len(status["devices"]) - DEVICES_SHOWN) > 0:
        text.append(f"and {hidden} more", style="dim")
    for device in [one for one in status["devices"] if one.get("note")][:NOTES_SHOWN]:
        how = "drained" if device["is_drained"] else "cordoned"
        text.append(
            f"\n  {device['name'] or device['device']} is {how} {device['note']}", style="dim"
        )
    return text


def _claims(
    status: dict[str, Any], colours: dict[str, str], now_at: float, width: int
) -> Iterator[RenderableType]:
    """Yield the table of claims, and their reasons below it where it is narrow."""
    is_narrow, claims = width < NARROW, status["claims"]
    names = {device["device"]: device.get("name") for device in status["devices"]}
    table = plain_table(expand=not is_narrow)
    for name in ("claim", "team", "priority", "state"):
        table.add_column(name, no_wrap=True)
    table.add_column("has", justify="right", no_wrap=True)
    table.add_column("which", max_width=16, overflow="fold")
    table.add_column("asks", justify="right", no_wrap=True)
    table.add_column("since", justify="right", no_wrap=True)
    if not is_narrow:
        table.add_column("why", ratio=1, overflow="fold")
    for claim in claims:
        low, high, state = claim["min"], claim["ask"], claim["state"]
        left = "" if claim["leave_s"] is None else f" {claim['leave_s']:.0f} s"
        table.add_row(
            Text(claim["name"], style=colours[claim["name"]]),
            Text(claim["team"]),
            Text(claim["priority"]),
            Text(f"{state}{left}", style=STATE_STYLE.get(state, "")),
            str(len(claim["devices"])),
            Text(_which(claim["devices"], names)),
            str(high) if low >= high else f"{low}-{high}",
            duration(max(0.0, now_at - claim["since"])),
            *([] if is_narrow else [Text(claim["reason"])]),
        )
    yield table
    for claim in claims if is_narrow else []:
        if claim["reason"]:
            colour = colours[claim["name"]]
            yield Text.assemble((claim["name"], colour), f": {claim['reason']}")


def _which(devices: list[int], names: dict[int, str | None]) -> str:
    """Say which devices these are: ``0-3, 6``, or ``cuda:0, cuda:1``."""
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and runs[-1][-1] == device - 1 and not names.get(device):
            runs[-1].append(device)
        else:
            runs.append([device])
    said = [
        names.get(run[0]) or (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
        for run in runs[:RUNS_SHOWN]
    ]
    return ", ".join(said) + ", ..." * (len(runs) > RUNS_SHOWN)


def _teams(teams: list[dict[str, Any]]) -> RenderableType:
    table = plain_table()
    for name in ("team", "uses", "quota", "borrows at most", "reclaims from"):
        table.add_column(name, no_wrap=True, justify="left" if name == "team" else "right")
    for team in teams:
        quota, limit = team["quota"], team["borrow_limit"]
        table.add_row(
            Text(team["team"]),
            str(team["share"]),
            "none" if quota is None else str(quota),
            "all" if limit is None else str(limit),
            team["reclaim_from"].replace("_", " "),
        )
    return table
