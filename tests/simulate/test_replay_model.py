"""Workers of the model answer as those of the record usually did, and the job comes to an end."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from tests.simulate.recorded import SCENARIOS, record
from tests.simulate.test_replay_what_if import GROWING

from pliant.core import events
from pliant.core.job.state import Stage
from pliant.simulate.replay import Step, Turn, replayed
from pliant.simulate.replay_log import entries
from pliant.simulate.replay_model import Measured, Modelled
from pliant.simulate.replay_prospect import Prospect
from pliant.simulate.replay_what_if import change_of
from pliant.simulate.replay_wording import render_command

TRAINED = """\
policy max=2
at 0 node n1 devices=4
at 3 spare r1 r2
at 3.1 prepared 1 r1 r2
at 3.2 switched 1 r1 r2
at 5.2 progressed 1 r1 r2 committed=1
at 7.2 progressed 1 r1 r2 committed=2
at 9.2 progressed 1 r1 r2 committed=3
at 11.2 progressed 1 r1 r2 committed=4
at 11.3 finished 4 r1 r2
at 11.4 exit r1 finished
at 11.5 exit r2 finished
"""


def steps_of(text: str, tmp_path: Path) -> list[Step]:
    log = tmp_path / "events.jsonl"
    record(text, log)
    return list(replayed(entries(log)))


def modelled(steps: list[Step], **fields: object) -> tuple[Prospect, list[Modelled]]:
    prospect = Prospect(steps=steps, change=change_of(fields), goes_on=True)
    return prospect, [one for one in prospect.turns() if isinstance(one, Modelled)]


def test_what_workers_take_is_measured(tmp_path: Path) -> None:
    measured = Measured()
    for step in steps_of(TRAINED, tmp_path):
        if isinstance(step, Turn):
            measured.add(step)

    assert measured.usual_s("start") == 3.0
    assert measured.usual_s("prepare") == pytest.approx(0.1)
    assert measured.steps_s == {2: pytest.approx([2.0, 2.0, 2.0])}
    assert measured.total_steps == 4


def test_half_the_replicas_take_twice_as_long_for_a_step(tmp_path: Path) -> None:
    prospect, turns = modelled(steps_of(TRAINED, tmp_path), maxReplicas=1)

    assert turns[-1].job.stage is Stage.ENDED
    assert turns[-1].job.reason == "finished 4 steps"
    assert prospect.stopped_by == ""
    commits = [one.now_s for one in turns if isinstance(one.event, events.Progressed)]
    assert [b - a for a, b in pairwise(commits)] == pytest.approx([4.0] * 3)
    assert any("by the model: 4 steps in" in sentence for sentence in prospect.sentences())


def test_a_death_of_the_record_is_replaced_in_the_model(tmp_path: Path) -> None:
    text = TRAINED.replace("at 7.2 progressed", "at 6 exit r1 signal SIGKILL\nat 7.2 progressed")

    prospect, turns = modelled(steps_of(text, tmp_path), maxReplicas=3)

    (death,) = (one for one in turns if isinstance(one.event, events.Exited) and one.is_from_log)
    assert [render_command(one) for one in death.ready.commands] == [
        "reform 2 r2,r3",
        "start r4 on n1",
    ]
    assert turns[-1].job.reason == "finished 4 steps"
    assert prospect.left_out == {}


def test_a_death_of_one_who_is_not_there_is_left_out(tmp_path: Path) -> None:
    text = TRAINED.replace("at 7.2 progressed", "at 6 exit r2 signal SIGKILL\nat 7.2 progressed")

    prospect, turns = modelled(steps_of(text, tmp_path), maxReplicas=1)

    assert prospect.left_out == {"Exited": 1}
    assert turns[-1].job.reason == "finished 4 steps"


def test_without_a_last_step_the_model_ends_with_the_record(tmp_path: Path) -> None:
    prospect, turns = modelled(steps_of(GROWING, tmp_path), maxReplicas=1)

    assert prospect.stopped_by == "the record ends here"
    assert turns[-1].now_s <= 41.0


def test_the_model_ends_with_the_coordinator_and_by_its_clock(tmp_path: Path) -> None:
    first = re.sub(r"at (\S+)", lambda at: f"at {1000 + float(at[1])}", TRAINED)
    first = first[: first.index("at 1011.3 finished")]
    first += "at 1012 node n2 devices=1\n"
    followed = f"{first}at 20 restart\nat 21 node n1 devices=4 runs=r1,r2\nat 25 tick\n"

    prospect, turns = modelled(steps_of(followed, tmp_path), maxReplicas=1)

    assert prospect.stopped_by == "another coordinator begins, which no model answers"
    assert turns[-1].job.membership.committed == 2


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_of_every_scenario_the_model_comes_to_an_end_and_to_the_same_one(
    path: Path, tmp_path: Path
) -> None:
    steps = steps_of(path.read_text(), tmp_path)
    changes = {"minReplicas": 1, "maxReplicas": 1, "replicaDiscreteValues": None}
    changes |= {"replicaIncrementStep": None}

    prospect, turns = modelled(steps, **changes)
    _, again = modelled(steps, **changes)

    assert [(one.now_s, one.ready) for one in turns] == [(one.now_s, one.ready) for one in again]
    assert not turns or turns[-1].job.stage is Stage.ENDED or prospect.stopped_by
    assert list(prospect.sentences())
