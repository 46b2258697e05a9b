"""``tools.replay``: what it prints, its exit codes, and that a real run is decided alike."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.live.prompt import run_typed
from tests.processes.test_bad_input import JOB, SCRIPT, environment
from tests.support.recorded import a_run, lines_of_log
from tests.support.recorded_pool import a_pool
from tools.replay import main


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return a_run(tmp_path / "events.jsonl")


def test_each_turn_is_shown_with_what_came_of_it(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(log)]) == 0

    said = capsys.readouterr().out.splitlines()
    assert "coordinator 1 begins: policy.max_replicas=4, policy.start_replicas=3, " in said[0]
    assert "+0.000 s  node_joined(node=n1, devices=4, " in said[1]
    assert "    start r1 on n1" in said
    assert any(line.startswith("    decided on 3 replicas: grow from 0") for line in said)
    assert said[-1].endswith("the core decides the same as was recorded")


def test_programs_get_every_turn_as_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(log), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["is_same"] is True
    joined = found["turns"][1]
    assert joined["told"]["kind"] == "node_joined"
    assert joined["where"] == "events.jsonl:2"
    assert [one["kind"] for one in joined["recorded"]][-3:] == ["start_replica"] * 3


def test_a_difference_is_exit_code_1(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_bytes(b"".join(one.replace(b"start r1", b"start r9") for one in lines_of_log(log)))

    assert main([str(log)]) == 1

    said = capsys.readouterr().out
    assert "NOT AS RECORDED, events.jsonl:2: note: text was start r9 on n1, now start r1" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{}/none"], "{}/none is not there; give the directory of a run, or its log"),
        (["{}/empty"], "{}/empty holds no run: it has no events.jsonl"),
        (["{}/junk"], "junk:2: {}/junk is no log of a job: nothing in it is a record of one"),
        (["{}/blank"], "{}/blank is no log of a job: nothing in it is a record of one"),
        (["{}/pipe"], "{}/pipe is no file; give the directory of a run, or its log"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (log.parent / "empty").mkdir()
    (log.parent / "junk").write_bytes(b"\x1b]0;owned\x07\n\xff\n")
    (log.parent / "blank").write_text("")
    os.mkfifo(log.parent / "pipe")

    assert main([*(word.format(log.parent) for word in words)]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"{sentence.format(log.parent, log.parent)}\n"


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_real_run_is_decided_again_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text(JOB)
    env = environment(tmp_path)

    ran = run_typed("pliant", "run", "--out", "out", "job.yaml", cwd=tmp_path, environment=env)

    assert ran.returncode == 0, ran.stderr
    assert main(["--json", str(tmp_path / "out")]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["difference"] is None
    assert values["gaps"] == values["not_known"] == 0
    assert values["commands"] >= 5  # two are started, prepared, switched, released; the job ends


@pytest.fixture
def pool_log(tmp_path: Path) -> Path:
    return a_pool(tmp_path / "events.jsonl")


def test_each_event_is_shown_with_who_gets_what_and_why(
    pool_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(pool_log)]) == 0

    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("+0.000 s  the pool begins with 4 devices")
    assert said[1].endswith("+1.250 s  gpt asks for 1 to 8 (normal)")
    assert said[2].startswith("    gpt gets devices 0, 1, 2, 3 and has 4: ")
    assert said[3].endswith("+10.000 s  cnn asks for 2 (low, team vision)")
    assert said[4].startswith("    gpt is to shrink to 2 within 30 s: ")
    assert said[-1].endswith(": the core decides the same as was recorded")
    assert not any("time passed" in line for line in said)


def test_programs_get_every_turn_of_a_pool_as_json(
    pool_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(pool_log), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["is_same"] is True
    asked = [turn for turn in found["turns"] if turn["told"] and turn["told"]["kind"] == "asked"]
    assert asked[1]["answers"][0]["kind"] == "shrink"


def test_a_difference_in_a_pool_is_exit_code_1(
    pool_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool_log.write_text(pool_log.read_text().replace('"devices":[0,1,2,3]', '"devices":[0,1,2]', 1))

    assert main([str(pool_log)]) == 1

    assert "NOT AS RECORDED, events.jsonl:4: grant: devices was" in capsys.readouterr().out


def test_a_log_that_does_not_say_how_its_pool_began_is_no_success(
    pool_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool_log.write_text(pool_log.read_text().splitlines()[0] + "\n")

    assert main([str(pool_log)]) == 1
    assert "nothing of this log can be replayed" in capsys.readouterr().out
