"""A bit flips on one replica: with verifyEvery it is replaced, and the job goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes.launching import RunningJob, running

from pliant.core.errors import EXIT_OK, EXIT_USAGE

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).with_name("train_flipped.py")


def exits(job: RunningJob) -> dict[str, tuple[str, str]]:
    return {
        str(record["replica"]): (str(record["exited_kind"]), str(record["detail"]))
        for record in job.records("exited")
    }


@pytest.mark.parametrize(
    ("size", "where"),
    [
        pytest.param(("--is-large",), "weight", id="boundary-weight"),
        pytest.param((), "moment", id="vote-moment"),
        pytest.param(("--is-large",), "moment", id="boundary-moment", marks=pytest.mark.soak),
        pytest.param((), "weight", id="vote-weight", marks=pytest.mark.soak),
    ],
)
def test_the_replica_whose_bit_flipped_is_named_and_replaced(
    tmp_path: Path, where: str, size: tuple[str, ...]
) -> None:
    words = (SCRIPT, "--where", where, "--steps", 200, *size)
    with running(tmp_path, *words, replicas=3, warm=True, verify_every=3) as job:
        assert job.exit_code() == EXIT_OK, job.said()
        job.assert_nothing_is_left()

    kind, detail = exits(job)["r2"]
    assert kind == "corrupt"
    assert "differs between replicas (digest " in detail
    assert "'1.weight'" in detail
    assert "on r1, r3; digest" in detail
    assert [exits(job)[name][0] for name in ("r1", "r3")] == ["finished", "finished"]
    assert "r4" in exits(job)
    notes = " ".join(str(record["text"]) for record in job.records("note"))
    assert "lost r2 had another state than most replicas: at step " in notes


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--is-sharded",), "differ"),
        pytest.param(("--is-large",), "of worker 1", marks=pytest.mark.soak),
        pytest.param((), "of worker 1", marks=pytest.mark.soak),
        pytest.param(("--is-large", "--is-sharded"), "of worker 1", marks=pytest.mark.soak),
    ],
)
def test_a_bit_that_flips_on_the_second_worker_costs_its_replica(
    tmp_path: Path, more: tuple[str, ...], says: str
) -> None:
    words = (SCRIPT, "--where", "weight", "--steps", 60, "--place", 1, "--mesh", 2, *more)
    with running(tmp_path, *words, replicas=3, workers=2, warm=True, verify_every=3) as job:
        assert job.exit_code() == EXIT_OK, job.said()

    kind, detail = exits(job)["r2"]
    assert (kind, says in detail) == ("corrupt", True), detail
    assert [exits(job)[name][0] for name in ("r1", "r3")] == ["finished", "finished"]


def test_of_two_that_differ_nobody_is_right_and_the_run_ends(tmp_path: Path) -> None:
    words = (SCRIPT, "--where", "moment", "--is-large")
    with running(tmp_path, *words, replicas=2, warm=True, verify_every=3) as job:
        assert job.exit_code() == EXIT_USAGE, job.said()
        (end,) = job.records("end_job")
        job.assert_nothing_is_left()

    assert "at step 6 momentum_buffer of '1.weight' in the state of optimizer 0" in end["reason"]
    assert "no more than half of the replicas are alike" in str(end["reason"])


def test_without_it_a_flipped_bit_of_a_large_model_is_found_at_the_end(tmp_path: Path) -> None:
    words = (SCRIPT, "--where", "weight", "--is-large")
    with running(tmp_path, *words, replicas=3, warm=True) as job:
        assert job.exit_code() == EXIT_USAGE, job.said()
        (end,) = job.records("end_job")

    assert "the script changed it on some replicas only" in str(end["reason"])
