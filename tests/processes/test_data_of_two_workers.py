"""Data as people give it, in replicas of two workers: each gets what one worker would have got."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes.elastic import Outcome, kill, reference, run, run_until_over, wait_for_members
from tests.processes.launching import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180), pytest.mark.soak]


def nothing(job: RunningJob) -> None:
    """Let it end by itself."""


def fed(directory: Path, kind: str, code: int = 0, restarts: int = 5) -> Outcome:
    """Train two replicas of two workers on data of this kind."""
    return run(
        directory,
        "fed",
        12,
        nothing,
        replicas=2,
        workers=2,
        options={"kind": kind},
        expected_code=code,
        restarts=restarts,
    )


@pytest.mark.parametrize(
    ("kind", "alone"),
    [
        *((kind, kind) for kind in ("random", "subset", "batches", "five", "vast")),
        ("distributed by rank", "distributed"),
    ],
)
def test_two_workers_get_what_one_gets(tmp_path: Path, kind: str, alone: str) -> None:
    outcome = fed(tmp_path, kind)

    outcome.check(reference("fed", 12, options={"kind": alone}))


def test_an_error_of_the_dataset_comes_out_of_two_workers(tmp_path: Path) -> None:
    outcome = fed(tmp_path, "broken", code=1, restarts=0)

    assert all("there is no sample 7" in record["text"] for record in outcome.kinds("traceback"))


def test_a_generator_of_its_own_is_told_by_each(tmp_path: Path) -> None:
    outcome = fed(tmp_path, "own")

    logs = [path.read_text() for path in (outcome.job.out / "logs").glob("r*.log")]
    assert [log.count("Made[0] gave two different items") for log in logs] == [1] * 4


def test_a_joiner_with_another_length_is_refused(tmp_path: Path) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        kill(job, "r2")
        wait_for_members(job, "r1", "r4")

    outcome = run_until_over(
        tmp_path,
        "fed",
        play,
        replicas=2,
        workers=2,
        pace=0.05,
        restarts=9,
        options={"kind": "five"},
        arguments=("--misfit-kind", "longer", "--misfit", "r3"),
    )

    outcome.check(reference("fed", outcome.steps, options={"kind": "five"}))
    (dismissed,) = outcome.kinds("dismiss")
    assert "dataset_samples" in dismissed["reason"]
