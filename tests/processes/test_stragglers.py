"""A replica that is far slower than the others is named, and a spare takes its place.

Real processes under a real agent; the reference is the same model trained alone in this process.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.processes.elastic import members, reference, run, run_until_over, wait_for_members
from tests.processes.launching import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SLOW = ("--slow", "r2", 0.3)
"""Far slower than a loaded machine makes the others, whose slots take some milliseconds."""

ONE_SLOT_EACH: dict[str, Any] = {"micro_batch_size": 8}
"""Times of 8 steps are looked at together, so a step is to be short."""


def slow_in_status(job: RunningJob) -> list[Any]:
    with job.client() as client:
        return list(client.get("/v1/status").raise_for_status().json()["slow"])


def test_it_is_named_and_a_spare_takes_its_place(tmp_path: Path) -> None:
    def play(job: RunningJob) -> None:
        job.wait_for(lambda: is_replaced(members(job)), "a spare trains in the place of r2")
        job.wait_for(lambda: not slow_in_status(job), "nobody is slow")

    outcome = run_until_over(
        tmp_path,
        "gpt",
        play,
        replicas=2,
        arguments=SLOW,
        limits={"slow_s": 0.1},
        policy={"spares": 1, "replace_slow_after_s": 2.0},
        **ONE_SLOT_EACH,
    )

    outcome.check(reference("gpt", outcome.steps, **ONE_SLOT_EACH))
    name, times, _ = outcome.kinds("replicas_slow")[0]["replicas"][0]
    assert name == "r2"
    assert times >= 2
    notes = [str(record["text"]) for record in outcome.kinds("note")]
    assert any("r2 has taken" in note and "a spare takes its place" in note for note in notes)
    exits = {record["replica"]: record["exited_kind"] for record in outcome.kinds("exited")}
    assert exits["r2"] == "left"


def is_replaced(names: set[str]) -> bool:
    return len(names) == 2 and "r1" in names and "r2" not in names


def test_what_a_step_goes_to_is_told_apart(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        "gpt",
        12,
        lambda job: None,
        replicas=2,
        arguments=(*SLOW, "--sample-s", 0.01),
        **ONE_SLOT_EACH,
    )

    outcome.check(reference("gpt", outcome.steps, **ONE_SLOT_EACH))
    commits = [one for one in outcome.kinds("commit") if "parts_us" in one]
    told = {step: one["parts_us"] for one in commits if (step := one["step"]) > 2}
    data, compute, exchange, waiting = (
        median(column) / 1e6 for column in zip(*told.values(), strict=True)
    )
    assert data >= 8 * 0.01  # of each of the two, in every step
    assert compute >= 0.3 / 2  # of r2, so of both half of it
    assert waiting > 2 * exchange  # r1 waits for r2, and r2 for nobody
    assert all(sum(one["parts_us"]) / 1e6 < one["step_s"] + 0.3 for one in commits)


@pytest.mark.soak
def test_without_a_spare_it_stays(tmp_path: Path) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        (slow,) = job.wait_for(lambda: slow_in_status(job), "r2 is named")
        assert slow["replica"] == "r2"
        assert slow["times"] >= 2
        job.wait_for_steps(len(job.records("commit")) + 10)

    outcome = run_until_over(
        tmp_path,
        "gpt",
        play,
        replicas=2,
        arguments=SLOW,
        limits={"slow_s": 0.1},
        **ONE_SLOT_EACH,
    )

    outcome.check(reference("gpt", outcome.steps, **ONE_SLOT_EACH))
    assert {r["exited_kind"] for r in outcome.kinds("exited")} == {"finished"}
