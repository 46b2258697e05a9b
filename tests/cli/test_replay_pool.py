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


def test_other_rules_are_certain_up_to_the_first_other_answer(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["replay", str(log), "--policy", "devices=3"]) == 0

    first, now, then, until = capsys.readouterr().out.splitlines()
    assert first == "gpt asks for 1 to 8 (normal)"
    assert now.startswith("    gpt gets devices 0, 1, 2 and has 3: ")
    assert then.startswith("    in the log: gpt gets devices 0, 1, 2, 3 and has 4: ")
    assert until.startswith("certain up to events.jsonl:4: grant: to was 4, now 3")

    assert code_of(["replay", str(log), "--policy", "devices=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answers"][0]["to"] == 3

    assert code_of(["replay", str(log), "--policy", "quota.vision=2"]) == 0
    assert "nothing would have been answered otherwise" in capsys.readouterr().out


def test_a_scenario_is_written_and_plays(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = log.parent / "incident.txt"

    assert code_of(["replay", str(log), "--to-scenario", str(file)]) == 0

    assert capsys.readouterr().out == f"{file}: 7 events; played, it answers as recorded\n"
    assert play_pool(file.read_text(), core_alone) == file.read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--policy", "devices=3", "--after", "model"],
            "--after model: there is no model of the claimants of a pool; leave --after out",
        ),
        (
            ["--policy", "maxReplicas=3"],
            "--policy maxReplicas is no rule of a pool; there are devices, minGain, restInSeconds,"
            " patienceInSeconds, quota.TEAM, borrowLimit.TEAM",
        ),
        (
            ["--policy", "quota.vision=many"],
            "--policy quota.vision=many is no number of devices from 0 to 100000",
        ),
        (
            ["--policy", "restInSeconds=soon"],
            "--policy restInSeconds=soon is no number of 0 or more",
        ),
    ],
)
def test_what_cannot_be_asked_of_a_pool_is_one_sentence(
    words: list[str], sentence: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["replay", str(log), *words]) == 2

    assert capsys.readouterr().err == f"pliant: {sentence}\n"


def test_a_log_that_does_not_say_how_its_pool_began_is_no_success(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(log.read_text().splitlines()[0] + "\n")

    assert code_of(["replay", str(log)]) == 1
    assert "nothing of this log can be replayed" in capsys.readouterr().out

    assert code_of(["replay", str(log), "--policy", "devices=3"]) == 2
    assert "it does not say how a pool began" in capsys.readouterr().err
    assert code_of(["replay", str(log), "--to-scenario", str(log.parent / "x.txt")]) == 2
    assert "no scenario can be made" in capsys.readouterr().err
