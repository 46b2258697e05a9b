"""What ``pliant check`` says about what its histories came to; how they are played is elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pliant.cli import check_command
from pliant.cli.main import code_of
from pliant.core.checked import CheckHistory, FileSeen, Trace
from pliant.run.check import CheckStage, Played

STEPS = 6


def trace(who: str, *, loss: str = "1.0", file: str = "a", **began: Any) -> Trace:
    known = {"replica": who, "place": 0}
    facts = {"is_durable": False, "num_slots": 4, "reduction": "exact"} | began
    lines: list[dict[str, Any]] = [{"kind": "began", "step": -1, **known, **facts}]
    for step in range(STEPS):
        losses = {"micro-batch 1": loss}
        lines += [
            {"kind": "samples", "step": step, "values": {}, "variables": {"X": loss}, **known},
            {"kind": "loss", "step": step, "values": losses, **known},
            {"kind": "gradient", "step": step, "values": {"": loss}, **known},
            {"kind": "state", "step": step, "values": {"weight": f"digest {loss}"}, **known},
        ]
    return Trace(lines=lines, files={"log.csv": FileSeen(file)})


def played(monkeypatch: pytest.MonkeyPatch, alone: list[Trace], **others: Trace) -> int:
    """Answer a check with these, by the name of a history; return its exit code."""

    def play(stage: CheckStage, history: CheckHistory, limit_s: float) -> Played:
        return Played(trace=others.get(history.name, trace("r1")), seconds=1.0)

    def play_alone(stage: CheckStage, name: str) -> Played:
        return Played(trace=alone.pop(0), seconds=1.0)

    monkeypatch.setattr(check_command, "play", play)
    monkeypatch.setattr(check_command, "play_alone", play_alone)
    Path("train.py").touch()
    return code_of(["check", "train.py"])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_that_is_the_same_is_told_in_one_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(monkeypatch, [trace("alone")]) == 0

    assert capsys.readouterr().out == (
        "  1.0 s  alone: 6 steps\n"
        "  1.0 s  two replicas from the start: the same\n"
        "  1.0 s  one replica; after step 4 another joins, at step 5 the first is killed: "
        "the same\n"
        "  1.0 s  two replicas; at step 3 the older is killed and replaced: the same\n"
        "The same in every history: model, optimizer, buffers, extra_state, logged values, what "
        "the leader prints and 1 written file.\n"
    )


def test_the_first_difference_comes_with_its_likely_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = [trace("alone"), trace("alone")]

    assert played(monkeypatch, alone, join=trace("r2", loss="2.0", file="b")) == 1

    said = capsys.readouterr().out.splitlines()
    first = "at step 0 micro-batch 1 has the loss 2.0 on r2, alone 1.0"
    words = "one replica; after step 4 another joins, at step 5 the first is killed"
    assert said[2] == f"  1.0 s  {words}: DIFFERS: {first}"
    assert said[4:-1] == [
        f"First difference, with {words}: {first}.",
        "  also: weight after step 0 differs on r2 from that alone",
        "  also: log.csv has other content",
    ]
    assert said[-1].startswith("  likely cause: variables of the script with other values there")
    assert ": X. " in said[-1]


def test_what_differs_between_two_runs_alone_is_not_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = [trace("alone"), trace("alone", file="c")]

    assert played(monkeypatch, alone, two=trace("r2", file="b")) == 0

    said = capsys.readouterr().out
    assert "Not compared, because two runs alone differ there already: log.csv\n" in said
    assert said.endswith("what the leader prints and 0 written files.\n")


@pytest.mark.parametrize(
    ("alone", "reason"),
    [
        ([Trace(lines=[])], "the script makes no pliant.Session"),
        ([trace("alone", num_slots=1)], "a step is one micro-batch"),
        ([trace("alone", reduction="fast")], "reduction='fast' gives other bits"),
        (
            [trace("alone"), trace("alone", loss="3.0")],
            "two runs of the script alone differ in the loss at step 0",
        ),
        (
            [trace("alone"), Trace(lines=[], fault="KeyError: 'x'")],
            "the script fails alone, the second time: KeyError: 'x'",
        ),
    ],
)
def test_what_cannot_be_checked_says_why(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    alone: list[Trace],
    reason: str,
) -> None:
    assert played(monkeypatch, alone, two=trace("r2", loss="2.0")) == 2

    assert f"cannot be checked: {reason}" in capsys.readouterr().out
