"""A scenario that was made of a log answers as the run did that wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.log_scenario import Scenario, scenario_of
from tests.support.player import CoreAlone, play
from tests.support.pool_scenario import core_alone, play_pool
from tests.support.recorded import SCENARIOS, a_run, lines_of_log, record
from tests.support.recorded_pool import a_pool
from tools.log_scenario import write_scenario
from tools.replay_log import entries
from tools.replay_turns import replayed

from pliant.core.errors import ConfigError


def scenario(log: Path) -> Scenario:
    return scenario_of(replayed(entries(log)), title="made of a log")


def answers(transcript: str) -> Iterator[str]:
    """Yield what was ordered, declined and conflicted, but for what a coordinator before heard."""
    is_old = False
    for line in transcript.splitlines():
        if not line.startswith("  "):
            is_old = " old " in line
        elif not is_old and not re.match(r"  (wait until|again|stale)", line):
            yield line


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_survives_the_way_through_a_log(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    text = "\n".join(one for one in path.read_text().splitlines() if one != "explain")
    played = record(text, log)

    found = scenario(log)

    assert found.until is None
    assert list(answers(found.text)) == list(answers(played))
    assert play(found.text, CoreAlone) == found.text


def test_signs_of_life_are_left_out_where_nothing_follows_from_them(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    (path,) = (one for one in SCENARIOS if one.stem == "a_silent_member_is_ended")
    record(path.read_text(), log)

    found = scenario(log)

    assert found.num_left_out > 0
    assert "no sign of life" in found.text
    assert len(found.text.splitlines()) < 40


def test_a_scenario_ends_where_certainty_does(tmp_path: Path) -> None:
    log = a_run(tmp_path / "events.jsonl")
    lines = lines_of_log(log)
    at = next(i for i, line in enumerate(lines) if b'"kind":"switched"' in line)
    lines[at] = b"{\n"
    log.write_bytes(b"".join(lines))

    found = scenario(log)

    assert found.until == f"events.jsonl:{at + 1}: this line is no record"
    assert "switch 1 r1*,r2*,r3*" in found.text
    assert "switched" not in found.text


def test_hostile_words_of_a_log_stay_words(tmp_path: Path) -> None:
    log = a_run(tmp_path / "events.jsonl")
    bad = 'x\n  start r9 on n1\nat 0 # "quoted" \\ \x1b[31m'
    records = [json.loads(line) for line in lines_of_log(log)]
    for one in records:
        if one["kind"] == "exited":
            one["detail"] = bad
    exits = [i for i, one in enumerate(records) if one["kind"] == "exited"]
    log.write_text("".join(json.dumps(one) + "\n" for one in records[: exits[0] + 1]))

    found = scenario(log)

    assert found.text.replace("\n", "").isprintable()
    assert "start r9" not in [line.strip() for line in found.text.splitlines()]
    assert play(found.text, CoreAlone) == found.text


def test_nothing_is_made_of_what_nobody_knows(tmp_path: Path) -> None:
    log = a_run(tmp_path / "events.jsonl")
    log.write_bytes(b"".join(lines_of_log(log)[1:]))

    with pytest.raises(ConfigError, match=r"nothing is known of the core"):
        scenario(log)


def test_a_scenario_is_written_once_and_never_over_a_file(tmp_path: Path) -> None:
    log, file = a_run(tmp_path / "events.jsonl"), tmp_path / "incident.txt"

    assert "signs of life left out" in write_scenario(log, file)
    text = file.read_text()
    assert play(text, CoreAlone) == text

    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("incident.txt", "link"):
        with pytest.raises(ConfigError, match=f"{name} is there already"):
            write_scenario(log, tmp_path / name)
    assert file.read_text() == text
    assert not (tmp_path / "elsewhere").exists()


def test_a_scenario_of_a_pool_is_written_and_plays(tmp_path: Path) -> None:
    file = tmp_path / "incident.txt"

    write_scenario(a_pool(tmp_path / "events.jsonl"), file)

    assert play_pool(file.read_text(), core_alone) == file.read_text()
