"""A recorded pool becomes a file that tests play."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.pool_scenario import answer_line, core_alone, play_pool, scenario_of_pool
from tests.support.recorded_pool import SCENE, a_pool
from tools.replay_log import entries
from tools.replay_turns import replayed

from pliant.core.allocation import Refuse
from pliant.core.errors import ConfigError


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return a_pool(tmp_path / "events.jsonl")


def test_what_came_in_begins_a_line_and_the_answers_stand_below(log: Path) -> None:
    found = scenario_of_pool(replayed(entries(log)), title="A title.")

    lines = found.text.splitlines()
    assert lines[0] == "# A title."
    assert lines[2].startswith('pool {"devices": 4, "teams": [')
    assert lines[3] == "at 0 opened {}"
    assert lines[4].startswith('at 1.25 asked {"claim": {')
    assert '"name": "gpt"' in lines[4]
    assert '"priority"' not in lines[4]  # it is as always
    assert lines[5] == "  grant gpt to=4 devices=0,1,2,3"
    assert (found.num_events, found.until) == (len(SCENE), None)
    assert play_pool(found.text, core_alone) == found.text


def test_it_ends_where_certainty_does(log: Path) -> None:
    log.write_text(log.read_text().replace('"kind":"released"', "}", 1))

    found = scenario_of_pool(replayed(entries(log)), title="x")

    assert found.num_events == 3
    assert found.until is not None


def test_of_nothing_none_is_made(log: Path) -> None:
    log.write_text(log.read_text().splitlines()[0] + "\n")

    with pytest.raises(ConfigError, match="no beginning of a pool, with what it was told"):
        scenario_of_pool(replayed(entries(log)), title="x")


@pytest.mark.parametrize(
    "line", ["at 1 opened {}", "pool {}", "pool {", "wait", 'pool {"devices": 1}\nat x opened {}']
)
def test_a_line_that_cannot_be_played_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown scenario line|cannot be played"):
        play_pool(line, core_alone)


def test_a_refusal_keeps_its_words_and_its_line() -> None:
    assert answer_line(Refuse(name="x", reason="claim x\nis refused")).count("\n") == 0
