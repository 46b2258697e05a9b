"""Whatever stands in a log, every command that looks at runs shows what can be shown of it."""

from __future__ import annotations

import copy
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from tests.observe.story import eventful
from tests.observe.test_audit import steps

from pliant.cli import screens
from pliant.cli.main import code_of
from pliant.cli.run_list import runs_table
from pliant.machine.processes import ProcessMark
from pliant.machine.registry import RuntimeFiles, StateDirectory
from pliant.observe import prose
from pliant.observe.audit import audit_run
from pliant.observe.goodput import goodput_of
from pliant.observe.history import SUFFIX, read_history, snapshot_of, write_snapshot
from pliant.observe.log import Record
from pliant.observe.pool_history import moves_of
from pliant.observe.reading import every, left, read
from pliant.observe.run_index import IndexedRun, RunIndex
from pliant.observe.runs import run_in, status_of

PLAN = {"seed": 1, "dataset_samples": 37, "num_slots": 4, "global_batch_size": 8}

IN_A_POOL: list[tuple[str, dict[str, Any]]] = [
    ("pool_started", {"boot": "b", "user": "u", "devices": 2, "capacity": "c", "follows": True}),
    ("asked", {"claim": {"name": "u/x", "team": "t", "ask_replicas": 2, "min_replicas": 1}}),
    ("recovered", {"claim": {"name": "u/y"}, "devices": [0]}),
    ("grant", {"name": "u/x", "devices": [1], "to": 1}),
    ("shrink", {"name": "u/x", "for_": "u/y", "to": 1, "devices": [1], "notice_s": 30.0}),
    ("suspend", {"name": "u/x", "for_": "u/y", "notice_s": 30.0}),
    ("holding", {"claims": [{"name": "u/x", "team": "t", "devices": [1], "waits": True}]}),
    ("overdue", {"name": "u/x", "excess": 1}),
    ("released", {"name": "u/x", "devices": [1]}),
    ("release", {"name": "u/x", "by": "u", "notice_s": 3.0}),
    ("ended", {"name": "u/x", "device": 1, "pids": [1], "reason": "r"}),
    ("not_ended", {"name": "u/x", "device": 1, "reason": "r"}),
    ("devices_set", {"count": 3}),
    ("cordoned", {"devices": [1], "note": "n"}),
    ("team_set", {"team": {"name": "t", "quota": 2}}),
    ("class_set", {"priority": {"name": "c", "value": 2}}),
    ("refuse", {"name": "u/y"}),
    ("gone", {"name": "u/x", "reason": "r"}),
    ("pool_stopped", {"name": "p", "keeping": ["u/x"]}),
]

IN_A_JOB: list[tuple[str, dict[str, Any]]] = [
    ("log_continued", {"carried": [{"v": 1, "at": 1.7e9, "mono": 3.0, "kind": "job_started"}]}),
    ("save_failed", {"replica": "r1", "committed": 3, "reason": "full", "retry_s": 3.0}),
    ("nodes_apart", {"pairs": [[["a", "b"], 2, 30.0], [["a", "c"], 1, None]]}),
    ("nodes_apart", {"pairs": [[["a", "b"], 3, None]]}),
    (
        "joint_nodes",
        {"hosts": 2, "nodes": [["a", "b"]], "alone": ["c"], "joined": [["a", "b"]],
         "missed": [["c", ["d"]]]},
    ),
    (
        "pool",
        {"pool": "p", "team": "t", "priority": "high", "admission": "running", "devices": [0, 1],
         "offered": 2, "wanted": 3, "reason": "r", "is_suspended": False, "silence": ""},
    ),
    ("coordinator_started", {"out": "o", "url": "u", "pid": 3, "machine": "b n", "host": "h"}),
    ("node_joined", {"node": "here", "devices": 2, "replicas": ["r1", "r3"]}),
    ("registered", {"replica": "r1", "has_state": True}),
    ("policy_changed", {"policy": {}, "min_replicas": 1, "max_replicas": 2}),
    ("interval_chosen", {"replica": "r1", "reason": "every 90 s"}),
    ("declined", {"reason": "no", "request": {"kind": "scaled", "target": 0}}),
    ("policy_set", {"said": "a=1"}),
    ("dismiss", {"to": ["r1"], "reason": "r"}),
    ("unrestorable", {"checkpoint": "c", "reason": "r"}),
    ("refused", {"replica": "r9", "joiner": True, "reason": "r"}),
    ("exited", {"replica": "r1", "exited_kind": "signal", "detail": "SIGKILL"}),
    ("kill_requested", {"replica": "r3"}),
    ("end_replica", {"replica": "r3", "reason": "r"}),
    ("stop_requested", {"at_once": False}),
    ("resumed", {"replica": "r1", "sentence": "goes on"}),
]  # fmt: skip


def sound() -> list[Record]:
    """One record at least of every kind that anybody reads."""
    story = eventful()
    identity = [[name, str(value)] for name, value in PLAN.items()]
    identity += [["micro_batch_size", "2"], ["shuffle", "True"], ["drop_last", "False"]]
    story.write("spare", replica="r1", calls=0, num_slots=8, identity=identity)
    story.saved("step-20")
    for kind, values in IN_A_POOL + IN_A_JOB:
        story.write(kind, **values)
    story.decided(2, "why", would_change="x", looks_again_s=3.0)
    story.restore("r6", "r7", checkpoint="step-20", committed=20).steps(3)
    story.commit(nonfinite="loss", skipped=True)
    for kind in ("end_job", "job_ended"):
        story.write(kind, exit_code=0, reason="finished")
    return story.records


SOUND = sound()
LEDGER = "".join(json.dumps(line) + "\n" for line in steps(0, 1, 2))

JUNK: list[Any] = [
    None, True, 0, -1, 3, 10**30, 10**400, 1e300, float("inf"), float("nan"), -5.5, "", "x", "r1",
    "\ud800", [], [1], ["r1"], [None], [[1, 2, 3]], [["a", "b"], 1, 2], {}, [{}], {"replica": "r1"},
]  # fmt: skip


def places(value: Any, *at: Any) -> Iterator[tuple[Any, ...]]:
    """Yield where something stands in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inner:
        yield (*at, key)
        if isinstance(item, dict | list):
            yield from places(item, *at, key)


@st.composite
def damaged(draw: st.DrawFn) -> list[Record]:
    """A log of which some records have something else in a place, or nothing; and maybe no end."""
    records = list(SOUND)
    for at in draw(st.lists(st.sampled_from(range(len(SOUND))), min_size=1, max_size=8)):
        value = records[at] = copy.deepcopy(records[at])
        *path, last = draw(st.sampled_from(list(places(value))))
        for key in path:
            value = value[key]
        if draw(st.booleans()):
            value[last] = copy.deepcopy(draw(st.sampled_from(JUNK)))
        else:
            del value[last]
    return records[: draw(st.integers(1, len(SOUND))) if draw(st.booleans()) else None]


def drawn(shown: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def look_at(out: Path) -> None:
    """Do what status, ls, top, explain and audit do."""
    log = out / "events.jsonl"
    history, run = read_history(log), run_in(out)
    for shape in (history.board.as_json(), status_of(run, history.board)):
        json.dumps(shape)
        drawn(screens.job_panel(shape))
        screens.step_line(shape)
    drawn(screens.events_table(history.board.as_json()["events"]))
    if history.explained.decisions:
        drawn(screens.decisions_table(history.explained.decisions))
    drawn(runs_table([run], [run]))
    for record in read(log):
        prose.line(record)
    drawn(screens.audit_text(audit_run(out), goodput_of(left(log)), out))
    drawn(screens.moves_table(moves_of(every(log), last=100)))
    write_snapshot(snapshot_of(history, log), log)
    assert read_history(log).position == history.position


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has ended beside one that runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    state = StateDirectory.of(os.environ)
    for name, mark in (("ended", ProcessMark(pid=1 << 22, began="1")), ("runs", ProcessMark.own())):
        run = tmp_path / "runs" / name
        for file, text in FILES.items():
            (run / file).parent.mkdir(parents=True, exist_ok=True)
            (run / file).write_text(text)
        known = IndexedRun(job=name, out=run, holder="h-1", mark=mark, began_at=1.7e9)
        RunIndex(state.runs).begin(known)
    RuntimeFiles.of("job", "runs", state.jobs).write(url="http://127.0.0.1:9", token="t", out=run)
    return tmp_path / "runs" / "ended"


FILES = {
    "holder": "h-1\n",
    "events.jsonl": "".join(json.dumps(record) + "\n" for record in SOUND[:-2]),
    "logs/r1.log": "hello\n",
    "ledger/r1.jsonl": '{"lineage": 1, "step": 0, "generation": 1, "commit": true}\n',
    "ledger.snapshot": '{"lineage": 1, "until": 0}',
    "events.snapshot": "{}",
}

MORE = ("events.000000.jsonl", "logs/r1.log.1")
"""Files that a longer run has."""

COMMANDS = [
    ["ls", "--all"],
    ["status"],
    ["status", "--job", "ended"],
    ["explain", "--job", "ended"],
    ["logs", "--out", "runs/ended"],
    ["audit", "--out", "runs/ended", "--json"],
]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00[" * 100)


def far_future(path: Path) -> None:
    path.write_text('{"job": "runs", "url": "u", "pid": 1, "out": "/o", "started": 1e300}')


@pytest.mark.parametrize("put", [Path.mkdir, pipe, loop, garbage, far_future])
@pytest.mark.parametrize("what", ["state/**/*.json", "state/**/*.token", *FILES, *MORE])
def test_what_is_no_file_of_ours_ends_a_command_with_a_sentence_at_most(
    out: Path, capsys: pytest.CaptureFixture[str], what: str, put: Callable[[Path], None]
) -> None:
    for path in list(Path().glob(what)) if "*" in what else [out / what]:
        path.unlink(missing_ok=True)
        put(path)

    for command in COMMANDS:
        code = code_of(command)
        printed = capsys.readouterr()
        assert code in (0, 1, 2)
        assert len(printed.err.splitlines()) == (code == 2), command


@settings(max_examples=60)
@given(records=damaged())
def test_a_damaged_record_hides_nothing_but_itself(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    out = tmp_path_factory.mktemp("run")
    (out / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (out / "ledger").mkdir()
    (out / "ledger" / "r1.jsonl").write_text(LEDGER)

    look_at(out)

    assert (out / "events.jsonl").with_suffix(SUFFIX).exists()


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"saved","checkpoint":"x"}',
        '{"kind":"switch","order":{"generation":1,"members":["r1",{"node":"here"}]}}',
        '{"kind":"prepare","order":{"members":3}}',
        '{"kind":"decision","at":1e300}',
        '{"kind":"nodes_apart","pairs":[["a","b",1]]}',
        '{"kind":["commit"],"mono":1.0}',
        '{"kind":"log_continued","carried":[{"kind":{}}]}',
        '{"kind":"log_continued","carried":[{"kind":"job_started","at":"noon"}]}',
        '{"kind":"commit","step":0,"loss":1' + "0" * 400 + "}",
        "[" * 100_000,
        '{"kind":"note","replica":"r1","text":"\\ud800"}',
    ],
)
def test_each_of_these_took_every_command_with_it_or_could_have(tmp_path: Path, line: str) -> None:
    (tmp_path / "events.jsonl").write_text(line + '\n{"kind":"commit","step":6,"generation":1}\n')

    look_at(tmp_path)

    assert run_in(tmp_path).outcome.step == 7
