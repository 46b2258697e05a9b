"""Whatever others wrote reaches people as plain text, through every command and every view.

Each text below once crashed a view, moved its cursor or changed its colours.  And who prints what
happens neither ends with its reader nor waits for it.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

import pytest
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from tests.observe.story import Story
from tests.observe.whole_log import explained_of

import pliant.cli
from pliant import client
from pliant.cli import pool_commands, terminal
from pliant.cli.main import code_of
from pliant.cli.screens import decisions_table, job_panel, moves_table, step_line
from pliant.cli.terminal import PlainConsole, complain, patient_output
from pliant.cli.top import pool_panel
from pliant.cli.view import JsonView, LiveView, PlainView
from pliant.http.client import Caller
from pliant.machine.registry import Handle
from pliant.observe.pool_history import moves_of
from pliant.observe.status import board_of

HOSTILE = [
    "nothing in [/data/a]",
    "[red]no[/red] [bold",
    "\x1b[2J\x1b[H\x1b]0;owned\x07",
    "\x9b2J",
    "a\rb\x08c\x00\x7f",
    "\u202eexe.txt",
    "\udc80",
    "two\nlines",
    ":smile: https://x \\[",
]
OURS = re.compile("\x1b\\[[0-9;?]*[a-zA-Z]")
"""The control sequences of our own styles, where there are any."""

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")

every_text = pytest.mark.parametrize("text", HOSTILE, ids=ascii)


def story(text: str) -> Story:
    """A run in which everything that others say is this text."""
    story = Story().started(out=text, url=text).decided(2, text, would_change=text)
    story.write("start_replica", replica="r1", node=text)
    story.write("start_replica", replica="r2", node=text)
    story.write("worker", replica="r1", node=text, pid=1)
    story.spare("r1", "r2").planned().switch("r1", "r2").steps(12)
    story.write("metrics", replica="r1", step=1, values={text: 1.5})
    story.write("note", replica="r1", text=text)
    story.write("usage", replica="r1", sentence=text)
    story.write("traceback", replica="r1", text=f"Traceback\n{text}")
    story.write("exited", replica="r2", exited_kind="script", detail=text)
    story.write("refused", replica="r2", joiner=True, reason=text)
    story.write("dismiss", to=[text], reason=text)
    story.write("unrestorable", replica="r1", checkpoint=text, reason=text)
    story.write("saved", replica="r1", checkpoint=text, committed=1, seconds=0.1)
    story.write("save_failed", replica="r1", committed=1, reason=text, retry_s=1.0)
    story.write("interval_chosen", replica="r1", reason=text)
    story.write("node_lost", node=text)
    story.write("node_joined", node=text, devices=1, replicas=[])
    story.write("policy_set", said=text)
    story.reform("r1").steps(12)
    place = {"pool": text, "team": text, "priority": text, "admission": "running", "devices": [1]}
    story.write("pool", **place, offered=1, wanted=1, reason=text, is_suspended=False, silence="")
    story.write("end_replica", replica="r1", reason=text)
    story.write("end_job", exit_code=1, reason=text)
    return story


def of_pool(text: str) -> dict[str, Any]:
    """A pool in which every name and reason is this text."""
    claim: dict[str, Any] = {
        "name": text,
        "team": text,
        "priority": text,
        "state": "running",
        "devices": [0],
    }
    claim |= {"min": 1, "ask": 2, "leave_s": None, "since": 1.0, "reason": text}
    device = {"device": 0, "claim": text, "is_leaving": False, "is_blocked": False}
    device |= {"is_cordoned": False, "is_drained": False}
    team = {"team": text, "quota": 1, "borrow_limit": None, "reclaim_from": text, "share": 1}
    figures = {"in_use": 1, "limit": 1, "size": 2, "free": 0, "pool": text}
    said = {"recovering": [text], "failure": text}
    return {**figures, **said, "devices": [device], "claims": [claim], "teams": [team, team]}


def drawn(picture: RenderableType) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    PlainConsole(file=out, force_terminal=True, width=200, color_system="truecolor").print(picture)
    out.flush()
    data: bytes = out.buffer.getvalue()
    return data.decode()


def assert_plain(printed: str, text: str) -> None:
    assert not STEERING.search(OURS.sub("", printed))
    assert not {"\x1b[2J", "\x1b[H"} & set(OURS.findall(printed))
    assert "[/data/a]" in printed or "[/data/a]" not in text


@pytest.mark.parametrize(
    ("closed", "out", "err"),
    [
        (">&-", "", "error\n"),
        ("2>&-", "said\nerror\n", ""),
        ("<&-", "said\n", "error\n"),
        ("<&- >&- 2>&-", "", ""),
    ],
)
def test_streams_that_are_closed_at_the_start_lead_nowhere(closed: str, out: str, err: str) -> None:
    """A file of the run once got such a number, or there was nothing to print to."""
    program = (
        "import os, sys; from pliant.cli.terminal import open_closed_streams as ready; ready();"
        "print('said', flush=True); print('error', file=sys.stderr); assert os.dup(0) > 2"
    )
    words = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, program]

    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, out, err)


@every_text
def test_every_picture_shows_it_as_it_is(text: str) -> None:
    records = story(text).records
    status = board_of(records).as_json()
    moves = moves_of(
        [
            {"kind": "gone", "at": 1.0, "name": text, "reason": text},
            {"kind": "team_removed", "at": 1.0, "name": text},
        ]
    )

    assert_plain(drawn(job_panel(status, {text: text}, [text])), text)
    assert_plain(drawn(step_line(status, {text: 1.5})), text)
    assert_plain(drawn(decisions_table(explained_of(records).decisions)), text)
    assert_plain(drawn(moves_table(moves)), text)
    assert_plain(drawn(pool_panel(of_pool(text), now_at=2.0)), text)


@every_text
@pytest.mark.parametrize("view", [PlainView, LiveView, JsonView])
def test_every_view_follows_a_job_that_says_it(
    text: str, view: type[LiveView | PlainView | JsonView], capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    console = PlainConsole(file=out, width=200, force_terminal=view is LiveView)

    with view(console, show="all") as following:
        for record in story(text).records:
            following.record(record)
        following.output("r1", text)

    out.flush()
    printed = out.buffer.getvalue().decode()
    assert "cannot be drawn" not in printed
    assert_plain(printed.replace("\r", "") + capsys.readouterr().out, text)


@every_text
def test_every_command_about_a_run_prints_it_as_it_is(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    lines = [json.dumps(record) + "\n" for record in story(text).records]
    (run / "events.jsonl").write_text("".join(lines))
    (run / "logs" / "r1.log").write_bytes(text.encode(errors="surrogateescape") + b"\n")

    for command in ("status", "explain", "logs"):
        assert code_of([command, "--out", str(run)]) == 0
    assert code_of(["explain", "--pool", "p", "--out", str(run)]) == 0
    assert_plain(capsys.readouterr().out, text)


@every_text
def test_what_a_job_or_a_pool_answers_is_printed_as_it_is(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(*_: object, **__: object) -> dict[str, Any]:
        return of_pool(text) | {"reason": text}

    monkeypatch.setattr(
        client, "any_pool", lambda *_: Handle(kind="pool", name="p", url="http://p")
    )
    monkeypatch.setattr(Caller, "ask", answer)
    monkeypatch.setattr(pool_commands, "any_pool", lambda *_: None)

    assert code_of(["pool", "status"]) == 0
    assert code_of(["pool", "uncordon", "0"]) == 0
    assert code_of(["top"]) == 0
    complain(text, 2)

    said = capsys.readouterr()
    assert_plain(said.out, text)
    assert_plain(said.err, text)
    assert said.err.count("\n") == 1


@every_text
def test_a_console_obeys_nothing_that_a_view_has_let_pass(text: str) -> None:
    table = Table(text)
    table.add_row(text, Text(text))

    assert_plain(drawn(table), text)
    assert_plain(drawn(text), text)


def test_a_panel_that_cannot_be_drawn_says_so() -> None:
    view = LiveView(Console(file=io.StringIO(), force_terminal=True), show="none")
    view.board.living = None  # type: ignore[assignment]

    with view:
        view.record({"kind": "note", "text": "still here"})

    assert isinstance(view._live, Live)


def test_no_command_prints_past_it() -> None:
    """Only JSON, which is ASCII, and what was made printable."""
    cli = Path(pliant.cli.__file__).parent
    found = [
        f"{path.name}:{call.lineno}"
        for path in cli.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and _is_past(call)
    ]

    assert found == []


def _is_past(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name == "print":
        text = ast.unparse(call.args[0])
        return not re.search(
            r"^json\.dumps\(|^report\.as_|in_one_line\(|printable\(|version\(", text
        )
    return name in ("Console", "rich.print")


@pytest.mark.parametrize("way", ["stdout", "stderr", "rich"])
def test_what_nobody_reads_any_more_goes_nowhere(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    readers, pipes = zip(*(os.pipe() for _ in range(2)), strict=True)
    out, err = (os.fdopen(pipe, "w") for pipe in pipes)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)

    with out, err, patient_output():
        say = {"stdout": sys.stdout.write, "stderr": sys.stderr.write, "rich": Console().print}[way]
        for stream in (sys.stdout, sys.stderr):
            stream.write("first\n")
            stream.flush()
        heard = [os.read(reader, 100) for reader in readers]
        for reader in readers:
            os.close(reader)
        for _ in range(3):
            say("more\n" * 10_000)

    assert heard == [b"first\n", b"first\n"]


def test_what_a_test_reads_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    before: TextIO = sys.stdout

    with patient_output():
        assert sys.stdout is before
        sys.stdout.write("heard\n")

    assert capsys.readouterr().out == "heard\n"


def test_nobody_waits_for_a_reader_that_has_stopped_and_it_gets_everything_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, pipe = os.pipe()
    said = b"".join(b"line %d\n" % number for number in range(40_000))  # a pipe holds 64 kB
    heard: list[bytes] = []

    def read_on() -> None:
        while data := os.read(reader, 1 << 16):
            heard.append(data)

    reading = threading.Thread(target=read_on)
    with os.fdopen(pipe, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with patient_output():
            for line in said.decode().splitlines(keepends=True):
                sys.stdout.write(line)
            sys.stdout.flush()
            reading.start()
    reading.join()

    assert b"".join(heard) == said


def test_what_is_too_much_to_keep_is_left_out_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "MAX_HELD_BYTES", 10)

    with patient_output():
        sys.stdout.write("too long for it\n")
        sys.stdout.flush()

    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("pliant: 1 pieces of output were left out")
