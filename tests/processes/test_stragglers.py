"""A replica that is far slower than the others is named, and a spare takes its place.

Real processes under a real agent; the reference is the same model trained alone in this process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.processes.elastic import reference, run_until_over, wait_for_members
from tests.processes.launching import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SLOW = ("--slow", "r2", 0.15)


def slow_in_status(job: RunningJob) -> list[Any]:
    with job.client() as client:
        return list(client.get("/v1/status").raise_for_status().json()["slow"])


@pytest.mark.soak  # how long until it counts as slow depends on what else the machine does
def test_it_is_named_and_a_spare_takes_its_place(tmp_path: Path) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        (slow,) = job.wait_for(lambda: slow_in_status(job), "r2 is named")
        assert slow["replica"] == "r2"
        assert slow["times"] >= 2
        wait_for_members(job, "r1", "r3")
        job.wait_for(lambda: not slow_in_status(job), "nobody is slow")

    outcome = run_until_over(
        tmp_path,
        "gpt",
        play,
        replicas=2,
        pace=0.03,
        arguments=SLOW,
        limits={"slow_s": 0.5},
        policy={"spares": 1, "replace_slow_after_s": 1.5},
    )

    outcome.check(reference("gpt", outcome.steps))
    notes = [str(record["text"]) for record in outcome.kinds("note")]
    assert any("r2 has taken" in note and "a spare takes its place" in note for note in notes)
    exits = {record["replica"]: record["exited_kind"] for record in outcome.kinds("exited")}
    assert exits["r2"] == "left"


@pytest.mark.soak
def test_without_a_spare_it_stays(tmp_path: Path) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        job.wait_for(lambda: slow_in_status(job), "r2 is named")
        job.wait_for_steps(len(job.records("commit")) + 10)

    outcome = run_until_over(
        tmp_path, "gpt", play, replicas=2, pace=0.03, arguments=SLOW, limits={"slow_s": 0.5}
    )

    outcome.check(reference("gpt", outcome.steps))
    assert {r["exited_kind"] for r in outcome.kinds("exited")} == {"finished"}
