"""What docs/reference/screens.md shows: the screens, drawn by the code that draws them for people.

``recorded.jsonl`` is the event log of a real run, without its machine and with less of what no
screen shows: ``pliant run --start 2 --max 4 --name gpt train_gpt.py --checkpoint DIR``, then
``pliant scale 3``, ``pliant kill r2`` and ``pliant suspend``.  The pool is a real driver.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from tests.observe.whole_log import explained_of
from tests.pool.test_driver import World, some

from pliant.cli import screens
from pliant.cli.run_list import last_sentences, last_words, runs_table
from pliant.cli.terminal import PlainConsole
from pliant.cli.top import pool_panel
from pliant.cli.view import LiveView
from pliant.machine import run_files
from pliant.observe.log import Record
from pliant.observe.run_index import RunOutcome
from pliant.observe.runs import KnownRun, how_to_go_on, status_of
from pliant.observe.status import Board, board_of
from pliant.pool.admin import PoolAdmin
from pliant.pool.pool_status import board_of as pool_status

PAGE = """\
# What the screens show

Made by `python -m tools.make_pages` from `tests/cli/captures.py`; change that. Everything here is
drawn by the code that draws it on a terminal, 100 columns wide and without its colours. The job
`gpt` is a real run, of which the event log is kept: two replicas, a third one asked for, one of the
three killed, suspended. The pool is asked as jobs and people ask it; the other runs of `pliant ls`
are examples. Times are UTC.
"""

WIDTH = 100
RECORDED = Path(__file__).with_name("recorded.jsonl")
OUT = Path("runs/gpt")

LOST_S = 41214.0
"""In the recorded run: r2 is dead, and the others train on without it."""

AGAIN_S = 41222.0
"""They are three again."""

NOW_AT = 1795407612.0
"""When the runs and the pool are looked at."""


def recorded(until_s: float = float("inf")) -> list[Record]:
    """Return the records of the run until a moment of its monotonic clock."""
    records = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return [record for record in records if record["mono"] < until_s]


def running() -> str:
    """``pliant status`` while it trains: after a join, a kill and its replacement."""
    status = board_of(recorded(AGAIN_S)).as_json(idle_s=0.4)
    return drawn(screens.job_panel(status, wrap=True))


def panel() -> str:
    """Return the live panel of ``pliant run`` soon after the kill."""
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=True, width=WIDTH, height=40, color_system=None)
    with LiveView(console, show=None) as view:
        for record in recorded(LOST_S):
            view.record(record)
    shown = out.getvalue()
    return trimmed(shown[shown.rindex("╭") : shown.rindex("╯") + 1])


def ended() -> str:
    """``pliant status --job gpt`` of the run that was suspended."""
    board = board_of(recorded())
    run = known(board)
    with TemporaryDirectory() as there:
        logs = Path(there) / run_files.LOGS
        logs.mkdir()
        (logs / "r4.log").write_text("3,241,472 parameters\n")
        said = last_words(Path(there))
    sentences = last_sentences(run, said, how_to_go_on(run, [run]))
    status = status_of(run, board)
    return drawn(screens.job_panel(status, wrap=True), *map(Text, sentences))


def runs() -> str:
    """``pliant ls``: one run of each state that there is."""
    gpt = known(board_of(recorded()))
    trains = RunOutcome(state="training", step=612, total_steps=3000, num_replicas=4)
    done = RunOutcome(state="finished", step=200, total_steps=200, num_replicas=2, exit_code=0)
    killed = RunOutcome(state="killed", step=840, total_steps=2000, num_replicas=3, kept=800)
    plain = RunOutcome(state="killed", step=25, total_steps=2000, num_replicas=3)
    began = partial(KnownRun, began_at=NOW_AT - 7500.0)
    shown = [
        began(job="lm", out=Path("runs/lm"), outcome=trains),
        gpt,
        began(job="bert", out=Path("runs/bert"), outcome=killed, ended_at=NOW_AT - 3600.0),
        began(job="small", out=Path("runs/small"), outcome=plain, ended_at=NOW_AT - 7000.0),
        began(job="tiny", out=Path("runs/tiny"), outcome=done, ended_at=NOW_AT - 7455.0),
    ]
    return drawn(runs_table(shown, shown, now_at=NOW_AT))


def pool() -> str:
    """``pliant top``: a job that has what it can, somebody who waits, a device out of use."""

    async def scene(directory: Path) -> dict[str, Any]:
        world = World(directory)
        world.walls = itertools.count(int(NOW_AT) - 60, 3)
        try:
            await world.driver.begin()
            await PoolAdmin(world.driver).cordon(3, by="root", reason="its fan is loud")
            job = {"min_replicas": 2, "ask_replicas": 4, "num_slots": 8}
            offer = await world.report("small", wanted=job)
            held: dict[str, Any] = {"holds": offer.devices, "follows": offer, "is_running": True}
            await world.report("small", wanted=job, **held)
            await world.report("ada", wanted=some(2))
            return pool_status(world.driver)
        finally:
            await world.pushes.close()
            world.log.close()

    with TemporaryDirectory() as there:
        return drawn(pool_panel(asyncio.run(scene(Path(there))), now_at=NOW_AT))


def explained() -> str:
    """``pliant explain``: what was decided in the run, and why."""
    found = explained_of(recorded())
    return drawn(screens.decisions_table(found.decisions)) + f"\n\n{found.interval}"


def known(board: Board) -> KnownRun:
    """Return the recorded run as it is known once it has ended."""
    last = recorded()[-1]["at"]
    began_at, outcome = float(board.about["at"]), RunOutcome.of(board)
    return KnownRun(job="gpt", out=OUT, began_at=began_at, outcome=outcome, ended_at=last)


def drawn(*parts: RenderableType) -> str:
    """Return what is printed of these."""
    out = io.StringIO()
    console = PlainConsole(file=out, width=WIDTH, color_system=None)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))
    return trimmed(out.getvalue())


def trimmed(text: str) -> str:
    """Return lines without what is blank at their ends."""
    return "\n".join(line.rstrip() for line in text.splitlines())


@contextmanager
def universal_time() -> Iterator[None]:
    """Have moments told in one time zone, wherever the page is made."""
    before = os.environ.get("TZ")
    try:
        os.environ["TZ"] = "UTC"
        time.tzset()
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


SCREENS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    (
        "A job that trains",
        "`pliant status`, after the job was asked to grow (`r3 join`), lost a replica (`r2 loss`) "
        "and replaced it (`r4 join`): each line says at which step, why, how much longer than a "
        "normal step the training paused, how many committed steps were lost, and how long a "
        "joiner took from its start until it trained.",
        running,
    ),
    (
        "The panel of a run",
        "What stays at the bottom of the terminal of `pliant run` while output scrolls above it, "
        "here just after `r2` was killed: two replicas train on, `r4` is about to join, the price "
        "of the loss (`...`) is known once three steps were made at the new size, and the last "
        "lines are the news.",
        panel,
    ),
    (
        "A job that has ended",
        "`pliant status --job gpt`, after `pliant suspend`: how far it came, which checkpoint "
        "holds it, what was printed last, and the command that goes on.",
        ended,
    ),
    (
        "Your runs",
        "`pliant ls` has the running ones first; `for` is how long a run lasted or has lasted, "
        "and a killed run without a command to go on has kept no checkpoint.",
        runs,
    ),
    (
        "A pool",
        "`pliant top` (and, once, `pliant pool status`): the first line counts the devices, the "
        "second has each of them, in the colour of its claim and with `x` if it is handed out no "
        "more; each claim has its minimum and maximum under `asks` and why it has no more.",
        pool,
    ),
    (
        "Why a job has its size",
        "`pliant explain`: the last decisions with their reasons, what would bring another answer, "
        "and how often there is a checkpoint.",
        explained,
    ),
)
"""Each screen: its title, what it shows, and what draws it."""


def page() -> str:
    """Return docs/reference/screens.md."""
    with universal_time():
        parts = [
            f"## {title}\n\n{fill(said, 130, break_on_hyphens=False)}\n\n```text\n{draw()}\n```\n"
            for title, said, draw in SCREENS
        ]
    return "\n".join([PAGE, *parts])
