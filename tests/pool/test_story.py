"""The story that elastic training is told with, in small: one pool, and more who want it.

A pre-training job has all eight devices.  An urgent job needs two: exactly two are drained, and
come back.  Then somebody needs four for a while.  Then everything happens at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pool.box import Box, Process, box, until
from tests.processes import elastic

from pliant.observe.audit import audit_run
from pliant.observe.reading import read
from pliant.observe.timeline import timeline_of

pytestmark = [pytest.mark.processes, pytest.mark.soak, pytest.mark.timeout(600)]

SCRIPT = Path(elastic.__file__).with_name("train_model.py")
WAIT_S = 120.0


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Box]:
    with box(tmp_path) as lent:
        yield lent


def job(here: Box, name: str, low: int, high: int, steps: int, *, priority: str) -> Process:
    words = ["run", "--pool=default", "--name", name, "--min", low, "--max", high]
    words += ["--priority", priority, "--out", here.directory / name]
    words += [SCRIPT, "--model", "gpt", "--steps", steps, "--pace", 0.05]
    words += ["--digest-file", here.directory / f"{name}.digests"]
    return here.start(*map(str, words))


def devices_of(here: Box, name: str) -> int:
    claim = here.claims().get(name)
    return len(claim["devices"]) if claim else 0


def check(here: Box, name: str, steps: int) -> None:
    """Nothing was lost, and the digest is that of a run that nobody touched."""
    lines = (here.directory / f"{name}.digests").read_text().splitlines()
    assert {json.loads(line)["digest"] for line in lines} == {elastic.reference("gpt", steps)}
    audit = audit_run(here.directory / name)
    assert audit.exactly_once, audit.problems
    assert audit.committed_steps == steps
    resizes = timeline_of(read(here.directory / name / "events.jsonl")).resizes()
    assert [resize.steps_lost for resize in resizes] == [0] * len(resizes)


def test_everybody_gets_what_they_should_and_nothing_is_lost(here: Box) -> None:
    here.start_pool("--devices", "8")
    pretrain = job(here, "pretrain", 2, 8, 240, priority="low")
    until(lambda: len(here.used()) == 8, "pre-training has all devices", WAIT_S)

    urgent = job(here, "urgent", 2, 2, 10, priority="urgent")
    until(lambda: devices_of(here, "urgent") == 2, "the urgent job has its two", WAIT_S)
    assert devices_of(here, "pretrain") == 6
    [shrink] = here.records("shrink")
    assert (shrink["name"], shrink["to"], shrink["for_"]) == ("pretrain", 6, "urgent")
    assert urgent.ended(WAIT_S) == 0
    until(lambda: len(here.used()) == 8, "pre-training has all again", WAIT_S)
    assert devices_of(here, "pretrain") == 8

    serving = here.claim(4, "--priority", "high", name="serving")
    serving.until("given", WAIT_S)
    assert devices_of(here, "pretrain") == 4

    second = job(here, "second", 2, 4, 20, priority="urgent")
    until(lambda: devices_of(here, "second") == 2, "the second urgent job has its minimum", WAIT_S)
    assert devices_of(here, "pretrain") == 2
    assert len(serving.devices) == 4
    serving.kill()
    assert second.ended(WAIT_S) == 0
    assert pretrain.ended(WAIT_S) == 0

    for name, steps in (("pretrain", 240), ("urgent", 10), ("second", 20)):
        check(here, name, steps)
