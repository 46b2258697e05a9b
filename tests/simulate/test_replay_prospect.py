"""What would have been is told as far as it is certain, and the model is called a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.simulate import recorded
from tests.simulate.test_replay_model import TRAINED, modelled, steps_of

from pliant.observe.log import EventLog
from pliant.simulate.replay import Turn
from pliant.simulate.replay_prospect import Prospect, is_news, lines_of_prospect
from pliant.simulate.replay_what_if import change_of


def told(prospect: Prospect, *, all_turns: bool = False) -> list[str]:
    start_at = next(step for step in prospect.steps if isinstance(step, Turn)).place.at
    turns = ((turn, prospect.at) for turn in prospect.turns() if all_turns or is_news(turn))
    return [line for turn, at in turns for line in lines_of_prospect(turn, at, start_at)]


def test_it_stops_where_certainty_does_unless_asked_to_go_on(tmp_path: Path) -> None:
    steps = steps_of(TRAINED, tmp_path)
    prospect = Prospect(steps=steps, change=change_of({"maxReplicas": 1}), goes_on=False)

    lines = told(prospect)

    assert lines[1].startswith("    decided on 1 replica: ")
    assert lines[2].startswith("    the run decided on 2 replicas: ")
    assert lines[3:] == ["no longer certain: nothing, where the run had start r2 on n1"]
    first, second = prospect.sentences()
    assert first.startswith("certain up to events.jsonl:2: nothing, where the run had start r2")
    assert "--after model" in second
    assert prospect.as_json()["is_model"] is False


def test_what_the_model_says_is_marked(tmp_path: Path) -> None:
    prospect, _ = modelled(steps_of(TRAINED, tmp_path), maxReplicas=1)
    again = Prospect(steps=prospect.steps, change=prospect.change, goes_on=True)

    lines = told(again)

    at = lines.index("no longer certain: nothing, where the run had start r2 on n1")
    assert all("~ " in line for line in lines[at + 1 :] if not line.startswith("    "))
    assert [line for line in again.sentences() if line.startswith("recorded: 4 steps in 11.5 s")]


def test_an_answer_that_changes_nothing_is_certain_to_the_end(tmp_path: Path) -> None:
    prospect = Prospect(
        steps=steps_of(TRAINED, tmp_path), change=change_of({"spares": 0}), goes_on=True
    )

    assert told(prospect) == []
    assert list(prospect.sentences()) == [
        "certain to the end: the same is ordered, 0 decisions would have had another size or reason"
    ]


FOLLOWED = """\
policy min=1 max=4 start=1
at 1000 node n1 devices=4
at 1001 spare r1
at 1002 prepared 1 r1
at 1003 switched 1 r1
at 1010 progressed 1 r1 committed=5
at 20 restart
at 21 node n1 devices=4 runs=r1
at 22 registered r1 current=1 committed=5
at 25 progressed 1 r1 committed=8
"""
"""The second coordinator is on another machine, which was started later."""


def test_the_clocks_of_two_coordinators_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log_of(path: Path, *, monotonic: Callable[[], float], **more: Any) -> EventLog:
        def wall() -> float:
            return recorded.STARTED_AT + monotonic() % 1000

        return EventLog(path, job=more["job"], wall=wall, monotonic=monotonic)

    monkeypatch.setattr(recorded, "EventLog", log_of)
    prospect = Prospect(
        steps=steps_of(FOLLOWED, tmp_path), change=change_of({"maxReplicas": 3}), goes_on=True
    )

    lines = [line for line in told(prospect, all_turns=True) if not line.startswith(" ")]

    assert lines[-1].split()[1] == "+25.000"
    assert [line for line in lines if not line.split()[1].startswith("+")] == []
    assert prospect.recorded.sentence.startswith("8 steps in 25.0 s")
