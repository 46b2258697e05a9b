"""Commands about pools answer, or refuse with one sentence on stderr and exit code 2."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pliant.cli.main import code_of
from pliant.cli.screens import moves_table
from pliant.cli.top import pool_panel
from pliant.machine.registry import RuntimeFiles, StateDirectory
from pliant.observe.pool_history import Move


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PLIANT_")]:
        monkeypatch.delenv(name)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert code_of(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err.removeprefix("pliant: ").strip()


@pytest.mark.parametrize(
    "arguments",
    [
        ["pool", "status"],
        ["pool", "set", "--devices", "2"],
        ["pool", "set-team", "a", "--quota", "2"],
        ["pool", "set-team", "a", "--remove"],
        ["pool", "set-class", "nightly", "--value", "-5"],
        ["pool", "cordon", "0"],
        ["pool", "uncordon", "0"],
        ["pool", "drain", "0"],
        ["pool", "stop"],
        ["claim", "2"],
        ["top"],
    ],
)
def test_without_a_pool_every_command_says_how_to_start_one(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert refused(capsys, *arguments) == (
        "no pool is running; start one with pliant pool start --devices N"
    )


def test_a_pool_that_is_named_is_asked_for_by_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start = "pliant pool start --devices N"
    assert refused(capsys, "explain", "--pool") == f"no pool is running; start one with {start}"
    assert refused(capsys, "explain", "--pool", "gpu", "--json") == (
        f"no pool named gpu is running; start it with {start} --name gpu"
    )
    assert refused(capsys, "pool", "status", "--pool", "gpu") == (
        f"no pool named gpu is running; start it with {start} --name gpu"
    )


TRACE = "0,add,a\n5,gone,b\n"
POOL = """\
apiVersion: pliant.dev/v1alpha1
kind: Pool
spec:
  teams:
    - {name: a, quota: 3}
    - {name: b, quota: 3}
"""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pool", "start", "--devices", "0"], "--devices 0 must be between 1 and 100000"),
        (
            ["pool", "start", "--devices", "9999999999"],
            "--devices 9999999999 must be between 1 and 100000",
        ),
        (["pool", "start", "--name", "A"], "--name 'A' must be lower-case letters"),
        (["pool", "start", "--config", "gone"], "gone cannot be read: No such file"),
        (["pool", "start", "--config", "t.csv"], "t.csv must be a mapping that starts with"),
        (
            ["pool", "start", "--devices", "5", "--config", "pool.yaml"],
            "the quotas 3 (a) + 3 (b) are more than the pool's 5 devices; lower one or give",
        ),
        (["pool", "set", "--devices", "-1"], "--devices -1 must be between 0 and 100000"),
        (["pool", "set-team", "a/b", "--quota", "2"], "team 'a/b' must be lower-case letters"),
        (["pool", "set-class", "a?b", "--value", "2"], "class 'a?b' must be lower-case letters"),
        (["pool", "set-team", "a", "--borrow-limit", "2"], "--borrow-limit 2 counts from"),
        (["pool", "cordon", "first"], "no pool is running; start one with "),
        (["claim", "0"], "a claim is of at least 1 device, not 0"),
        (["claim", "1", "--name", "A"], "--name 'A' must be lower-case letters"),
        (["claim", "1", "--for", "soon"], "--for 'soon' is no duration"),
        (["claim", "1", "--for", "0s"], "--for 0s must be more than 0"),
        (["explain", "--pool", "--out", "."], ". holds no pool: it has no events.jsonl"),
    ],
)
@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_bad_input_gets_one_sentence_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str, detach: list[str]
) -> None:
    Path("t.csv").write_text(TRACE)
    Path("pool.yaml").write_text(POOL)
    if detach and arguments[:2] != ["pool", "start"]:
        return

    assert refused(capsys, *arguments, *detach).startswith(sentence)
    assert sorted(path.name for path in Path().iterdir()) == ["pool.yaml", "t.csv"]


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_pool_that_can_keep_no_files_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, detach: list[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")

    assert refused(capsys, "pool", "start", "--devices", "2", *detach) == (
        "/dev/null/pliant/pools/default cannot be written: Not a directory"
    )


@pytest.mark.parametrize("content", ["", "{}", "[]", "no json"])
def test_a_pool_whose_state_is_damaged_says_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str
) -> None:
    state = StateDirectory.of(os.environ).pools / "default" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text(content)

    said = refused(capsys, "pool", "start", "--devices", "2")

    assert said.startswith(f"pool default cannot run: {state} is no state of a pool (")
    assert "(:" not in said
    assert said.endswith("; move it away to begin anew, once no job of the pool runs")


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_second_pool_of_a_name_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, detach: list[str]
) -> None:
    RuntimeFiles.of("pool", "default", StateDirectory.of(os.environ).pools).write(
        url="http://h", token="secret", out=tmp_path
    )

    assert refused(capsys, "pool", "start", *detach) == (
        "a pool named default is running already; choose another with --name"
    )


def used(name: str) -> RuntimeFiles:
    """Return the record of a running pool of which one claim, called ``NAME-job``, had a device."""
    pools = StateDirectory.of(os.environ).pools
    (pools / name).mkdir(parents=True)
    claim = {"name": f"{name}-job", "team": name, "min_replicas": 1, "ask_replicas": 4}
    records = (
        {"kind": "pool_started", "user": "cy", "boot": "one"},
        {"kind": "asked", "claim": claim},
        {"kind": "grant", "name": f"{name}-job", "to": 1, "devices": [0]},
    )
    lines = (json.dumps({"v": 1, "at": 5e5, "mono": 1e3, **one}) + "\n" for one in records)
    (pools / name / "events.jsonl").write_text("".join(lines))
    files = RuntimeFiles.of("pool", name, pools)
    files.write(url="http://h", token="secret", out=pools / name)
    return files


STATUS: dict[str, Any] = {
    "pool": "default",
    "life": "1a2b",
    "size": 8,
    "limit": 6,
    "usable": 6,
    "in_use": 5,
    "free": 1,
    "recovering": [],
    "failure": None,
    "devices": [
        {
            "device": device,
            "claim": "gpt" if device < 5 else None,
            "is_leaving": device == 4,
            "is_cordoned": device == 6,
            "is_drained": False,
            "is_blocked": device == 7,
        }
        for device in range(8)
    ],
    "claims": [
        {
            "name": "gpt",
            "kind": "elastic",
            "team": "a",
            "priority": "normal",
            "state": "shrinking",
            "devices": [0, 1, 2, 3, 4],
            "replicas": 4,
            "share": 4,
            "min": 2,
            "ask": 8,
            "leave_s": 12.0,
            "since": 1000.0,
            "pid": 4711,
            "reason": "has 4 of 8",
        },
        {
            "name": "claim-1",
            "kind": "fixed",
            "team": "default",
            "priority": "urgent",
            "state": "waiting",
            "devices": [],
            "replicas": 0,
            "share": 1,
            "min": 1,
            "ask": 1,
            "leave_s": None,
            "since": 1060.0,
            "pid": 4712,
            "reason": "1 device on the way from others",
        },
    ],
    "teams": [
        {
            "team": "a",
            "quota": 4,
            "borrow_limit": None,
            "reclaim_from": "lower_priority",
            "reclaim_by": None,
            "share": 4,
            "claims": 1,
        }
    ],
    "classes": {"normal": 0, "urgent": 1000},
}

DRAWN = """\
╭─ pool default  ──────────────────────────────────────────────────────────────────────────────────╮
│ 5 of 6 devices in use   1 idle                                                                   │
│   0     1     2     3     4     5     6 x   7                                                    │
│                                                                                                  │
│ claim    team     priority  state           has  which  asks     since  why                      │
│ gpt      a        normal    shrinking 12 s    5  0-4     2-8  2:00 min  has 4 of 8               │
│ claim-1  default  urgent    waiting           0            1  1:00 min  1 device on the way      │
│                                                                         from others              │
│                                                                                                  │
│ team  uses  quota  borrows at most   reclaims from                                               │
│ a        4      4              all  lower priority                                               │
╰──────────────────────────────────────────────────────────────────────────────────────────────────╯
"""


def drawn(what: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(what)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "".join(f"{line.rstrip()}\n" for line in str(text).splitlines())


def test_the_picture_shows_devices_claims_reasons_and_teams() -> None:
    assert drawn(pool_panel(STATUS, now_at=1120.0)) == DRAWN


def test_at_80_columns_a_reason_has_the_whole_width() -> None:
    lines = drawn(pool_panel(STATUS, now_at=1120.0), width=80).splitlines()
    assert f"{'│ gpt: has 4 of 8':79}│" in lines
    assert f"{'│ claim-1: 1 device on the way from others':79}│" in lines


def test_the_picture_says_in_words_what_colours_say() -> None:
    gpt, waits = STATUS["claims"]
    scattered = {**STATUS, "limit": 8, "claims": [{**gpt, "devices": [0, 1, 2, 6, 7]}, waits]}
    said = drawn(pool_panel(scattered, now_at=1120.0))
    assert "5 of 8 devices in use   1 idle   2 out of use" in said
    assert " 0-2, 6-7 " in said

    named = [{**one, "name": f"cuda:{one['device']}"} for one in STATUS["devices"]]
    of_kinds = {**scattered, "devices": named}
    assert "cuda:0, cuda:1, " in drawn(pool_panel(of_kinds, now_at=1120.0))

    h200 = {"model": "NVIDIA H200", "memory_bytes": 143771 << 20}
    models = {**scattered, "devices": [{**one, **h200} for one in STATUS["devices"]]}
    assert "8 x NVIDIA H200, 140 GB" in drawn(pool_panel(models, now_at=1120.0))

    many = {**gpt, "devices": list(range(0, 400, 2))}
    assert "..." in drawn(pool_panel({**STATUS, "claims": [many]}, now_at=1120.0))


def test_devices_that_are_not_drawn_are_counted() -> None:
    many = [{**STATUS["devices"][-1], "device": device} for device in range(300)]

    assert "and 44 more" in drawn(pool_panel({**STATUS, "devices": many}, now_at=1120.0))


def test_a_story_is_told_in_columns() -> None:
    moves = [Move(at=0.0, claim="gpt", what="is to shrink to 4", for_="claim-1", reason="urgent")]

    assert drawn(moves_table(moves)).splitlines()[1].split()[1:] == (
        ["gpt", "is", "to", "shrink", "to", "4", "claim-1", "urgent"]
    )


def test_without_a_name_the_default_pool_is_explained_or_the_only_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def claims() -> set[str]:
        assert code_of(["explain", "--pool", "--json"]) == 0
        moves = json.loads(capsys.readouterr().out)["moves"]
        return {move["claim"] for move in moves if move["claim"]}

    used("gpus")
    assert claims() == {"gpus-job"}
    used("default")
    assert claims() == {"default-job"}


def test_a_pool_that_does_not_run_is_explained_from_its_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = {
        "v": 1,
        "at": 1.0,
        "mono": 1.0,
        "job": "default",
        "kind": "shrink",
        "name": "gpt",
        "to": 4,
        "devices": [],
        "notice_s": 30.0,
        "for_": "claim-1",
        "reason": "urgent claim claim-1 needs its minimum of 1",
    }
    (tmp_path / "events.jsonl").write_text(json.dumps(record) + "\n")

    assert code_of(["explain", "--pool", "--out", str(tmp_path), "--json"]) == 0

    [move] = json.loads(capsys.readouterr().out)["moves"]
    assert move == {
        "at": 1.0,
        "claim": "gpt",
        "what": "is to shrink to 4 within 30 s",
        "for_": "claim-1",
        "reason": "urgent claim claim-1 needs its minimum of 1",
    }
