"""``pliant replay`` of a pool's log: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.simulate.recorded_pool import a_pool

from pliant.cli.main import code_of
from pliant.simulate.pool_scenario import core_alone, play_pool


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return a_pool(tmp_path / "events.jsonl")


def test_each_event_is_shown_with_who_gets_what_and_why(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["replay", str(log)]) == 0

    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("+0.000 s  the pool begins with 4 devices")
    assert said[1].endswith("+1.250 s  gpt asks for 1 to 8 (normal)")
    assert said[2].startswith("    gpt gets devices 0, 1, 2, 3 and has 4: ")
    assert said[3].endswith("+10.000 s  cnn asks for 2 (low, team vision)")
    assert said[4].startswith("    gpt is to shrink to 2 within 30 s: ")
    assert said[-1].endswith(": the core shares out the same as was recorded")
    assert not any("time passed" in line for line in said)


def test_programs_get_every_turn_as_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["replay", str(log), "--json", "--from", "5s"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["is_same"] is True
    assert found["turns"][0]["told"]["kind"] == "asked"
    assert found["turns"][0]["answers"][0]["kind"] == "shrink"


def test_a_difference_is_exit_code_1(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text(log.read_text().replace('"devices":[0,1,2,3]', '"devices":[0,1,2]', 1))

    assert code_of(["replay", str(log)]) == 1

    assert "NOT AS RECORDED, events.jsonl:4: grant: devices was" in capsys.readouterr().out


def test_a_scenario_is_written_and_plays(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = log.parent / "incident.txt"

    assert code_of(["replay", str(log), "--to-scenario", str(file)]) == 0

    assert capsys.readouterr().out == f"{file}: 7 events; played, it answers as recorded\n"
    assert play_pool(file.read_text(), core_alone) == file.read_text()


def test_a_log_that_does_not_say_how_its_pool_began_is_no_success(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(log.read_text().splitlines()[0] + "\n")

    assert code_of(["replay", str(log)]) == 1
    assert "nothing of this log can be replayed" in capsys.readouterr().out

    assert code_of(["replay", str(log), "--to-scenario", str(log.parent / "x.txt")]) == 2
    assert "no scenario can be made" in capsys.readouterr().err
