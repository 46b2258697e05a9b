"""What would have been is told as far as it is certain, and the model is called a model."""

from __future__ import annotations

from pathlib import Path

from tests.simulate.test_replay_model import TRAINED, modelled, steps_of

from pliant.simulate.replay import Turn
from pliant.simulate.replay_prospect import Prospect, is_news, lines_of_prospect
from pliant.simulate.replay_what_if import change_of


def told(prospect: Prospect) -> list[str]:
    start = next(step for step in prospect.steps if isinstance(step, Turn))
    turns = [turn for turn in prospect.turns() if is_news(turn)]
    return [line for turn in turns for line in lines_of_prospect(turn, start)]


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
