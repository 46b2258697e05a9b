"""``pliant ls``, and what is left to say of a run that has ended.

Owns the table of runs and the last words of one.  Knows nothing of how a run is known to live or
to have been killed (``observe.runs``).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pliant.cli import screens
from pliant.cli.arguments import Json, state_directory
from pliant.cli.help import option
from pliant.cli.terminal import PADDING, ByWidth, PlainConsole, draw, plain_table, print_json, say
from pliant.core.errors import EXIT_OK
from pliant.core.text import line_left, printable
from pliant.machine import run_files
from pliant.observe.history import read_history
from pliant.observe.runs import KnownRun, how_to_go_on, known_runs, status_of

SHOWN = 20
"""Ended runs that are listed without ``--all``."""

LAST_LINES = 5
"""Of the output of the replica that printed last."""

TAIL_BYTES = 16 << 10

COLUMNS = ("job", "state", "steps", "replicas", "began", "for", "where", "to go on")

BELOW = ("began", "where", "to go on")
"""What stands under the table where a terminal is too narrow for all of it."""

PLACE_WIDTH = 20
"""Columns that a path has at least, in the table."""

Row = dict[str, Text]
"""The cells of one run, by column."""

AS_WIDE_AS_NEEDED = 1000
"""Columns where no terminal says how many there are: nothing is cut off."""


def ls(
    everything: Annotated[bool, option("--all", f"Also those before the last {SHOWN}.")] = False,
    as_json: Json = False,
) -> int:
    """List your runs on this machine: running, ended, killed, and how each can go on."""
    runs = known_runs(state_directory())
    running = [run for run in runs if run.is_running]
    ended = [run for run in runs if not run.is_running]
    shown = [*running, *(ended if everything else ended[:SHOWN])]
    if as_json:
        return print_json({"runs": [as_values(run, runs) for run in shown]})
    if not shown:
        return say("no run is known here; start one with pliant run")
    return show_runs(shown, runs)


def show_runs(shown: Sequence[KnownRun], runs: Sequence[KnownRun]) -> int:
    """Print a table of runs; on a pipe each is one line, however long."""
    console = PlainConsole()
    if console.is_terminal:
        console.print(runs_table(shown, runs))
        return EXIT_OK
    wide = PlainConsole(width=AS_WIDE_AS_NEEDED)
    with wide.capture() as captured:
        wide.print(runs_table(shown, runs))
    for text in captured.get().splitlines():
        console.print(Text(text.rstrip()), soft_wrap=True)
    return EXIT_OK


def runs_table(
    shown: Sequence[KnownRun], runs: Sequence[KnownRun], *, now_at: float | None = None
) -> RenderableType:
    """Draw runs; ``runs`` are all that are known."""
    at = time.time() if now_at is None else now_at
    rows = [{**_row(run, at), **_place(run, runs)} for run in shown]
    return ByWidth(partial(_runs, rows))


def _runs(rows: Sequence[Row], width: int) -> Iterator[RenderableType]:
    """Yield the table of runs, and some of it below where it is narrow."""
    widths = {name: max(len(name), *(row[name].cell_len for row in rows)) for name in COLUMNS}
    least = {**widths, "where": min(widths["where"], PLACE_WIDTH)}  # a long path may be in pieces
    if sum(least.values()) + PADDING * (len(COLUMNS) - 1) <= width:
        yield _table(rows, widths, COLUMNS)
        return
    yield _table(rows, widths, [name for name in COLUMNS if name not in BELOW])
    for row in rows:
        yield Text.assemble(row["job"], ": ", row["where"], "  ", row["began"])
        if row["to go on"]:  # on a line of its own, to be copied
            yield Text.assemble("  ", row["to go on"])


def _table(rows: Sequence[Row], widths: Mapping[str, int], names: Sequence[str]) -> Table:
    table = plain_table(pad_edge=False)
    for name in names:
        justify: Any = "right" if name in ("steps", "replicas", "for") else "left"
        folds = name == "where" or (name == "job" and "where" not in names)
        least = None if folds else widths[name]
        table.add_column(name, justify=justify, no_wrap=not folds, min_width=least, overflow="fold")
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _row(run: KnownRun, now_at: float) -> Row:
    """Say what a run is and how far it came."""
    outcome = run.outcome
    total = "" if outcome.total_steps is None else f"/{outcome.total_steps}"
    for_s = (now_at if run.ended_at is None else run.ended_at) - run.began_at
    style = screens.STATE_STYLE.get(outcome.state, "")
    return {
        "job": Text(printable(run.job)),
        "state": Text(printable(outcome.state), style=style),
        "steps": Text(f"{outcome.step}{total}"),
        "replicas": Text(str(outcome.num_replicas)),
        "began": Text(moment(run.began_at)),
        "for": Text(screens.duration(max(for_s, 0.0))),
    }


def _place(run: KnownRun, runs: Sequence[KnownRun]) -> Row:
    """Say where a run is, and how to go on with it."""
    where = printable(_short(run.out)) + ("" if run.has_its_files else " (gone)")
    return {"where": Text(where), "to go on": Text(printable(how_to_go_on(run, runs)))}


def as_values(run: KnownRun, runs: Sequence[KnownRun] = ()) -> dict[str, Any]:
    """Return what ``ls --json`` says of a run; fields are only ever added."""
    outcome = run.outcome
    return {
        "job": run.job,
        "state": outcome.state,
        "is_running": run.is_running,
        "step": outcome.step,
        "total_steps": outcome.total_steps,
        "num_replicas": outcome.num_replicas,
        "began_at": run.began_at,
        "ended_at": run.ended_at,
        "lives": run.lives,
        "exit_code": outcome.exit_code,
        "reason": outcome.reason or None,
        "checkpoint": outcome.kept,
        "out": str(run.out),
        "has_its_files": run.has_its_files,
        "go_on": how_to_go_on(run, runs) or None,
    }


def show_ended(run: KnownRun, *, as_json: bool) -> int:
    """Tell of a run that does not answer itself: its end, and what it said last."""
    history = read_history(run_files.event_log(run.out))
    status, said = status_of(run, history.board), last_words(run.out)
    runs = known_runs(state_directory())
    known = next((one for one in runs if one.out == run.out), run)
    go_on = how_to_go_on(known, runs)
    if as_json:
        more = {"ended_at": run.ended_at, "last_words": said, "go_on": go_on or None}
        return print_json({**status, **more})
    draw(screens.job_panel(status, wrap=True))
    for sentence in () if run.is_running else last_sentences(run, said, go_on):
        say(sentence)
    return EXIT_OK


def last_sentences(run: KnownRun, said: dict[str, list[str]], go_on: str) -> Iterator[str]:
    """Yield what there is to say of a run that has ended, below its panel."""
    outcome, at = run.outcome, "" if not run.ended_at else f" at {moment(run.ended_at)}"
    code = "" if outcome.exit_code is None else f" with exit code {outcome.exit_code}"
    reason = " ".join(outcome.reason.split())
    yield f"{outcome.state}{at}{code}" + (f": {reason}" if reason else "")
    for replica, lines in said.items():
        if screens.is_last_word(lines[-1], reason):
            lines = lines[:-1]
        if not lines:
            continue
        yield f"last words of {replica}:"
        yield from (f"  {text}" for text in lines)
    yield f"files: {run.out}"
    if go_on:
        yield f"to go on: {go_on}"


def last_words(out: Path) -> dict[str, list[str]]:
    """Return the last lines that the replica printed which printed last."""
    try:
        logs = [path for path in (out / run_files.LOGS).glob("r*.log") if path.stat().st_size]
        newest = max(logs, key=lambda path: path.stat().st_mtime, default=None)
        if newest is None:
            return {}
        with newest.open("rb") as file:
            file.seek(max(newest.stat().st_size - TAIL_BYTES, 0))
            lines = file.read().decode(errors="replace").rstrip("\n").split("\n")
    except OSError:
        return {}
    return {newest.stem: [line_left(text) for text in deque(lines, LAST_LINES)]}


def moment(at: float) -> str:
    """Format a moment as the local date and time of day, shortly."""
    return datetime.fromtimestamp(at).astimezone().strftime("%b %d %H:%M:%S")


def _short(out: Path) -> str:
    """Return a directory as it is called from here."""
    return str(out.relative_to(Path.cwd())) if out.is_relative_to(Path.cwd()) else str(out)
