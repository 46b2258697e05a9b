"""Jobs and claims that share a real pool; who uses what is seen from outside."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pool.box import Box, box, until
from tests.processes.elastic import DEADLINE_S
from tests.processes.test_in_pool import check, counting, training

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Box]:
    state = tmp_path / "state"
    state.mkdir()
    with box(state) as lent:
        yield lent


def test_a_job_shrinks_for_a_claim_grows_back_and_outlives_the_pool(
    tmp_path: Path, here: Box
) -> None:
    pool = here.start_pool("--devices", "4")
    with counting(tmp_path, replicas=4, least=2) as job:
        until(lambda: here.used() == {0, 1, 2, 3}, "the job has all", DEADLINE_S)
        workers = {job.pid_of(f"r{n}") for n in (1, 2, 3, 4)}
        assert set().union(*(here.users(device) for device in range(4))) == workers

        urgent = here.claim(1, "--priority", "urgent", name="urgent")
        urgent.until("given")
        (taken,) = urgent.devices
        assert here.users(taken) == {urgent.pid}
        assert len(here.claims()["job"]["devices"]) == 3

        os.kill(pool.pid, signal.SIGKILL)
        job.wait_for(lambda: job.records("pool")[-1]["silence"], "the pool's death is noticed")
        here.start_pool()
        urgent.send(signal.SIGINT)
        urgent.ended()
        until(lambda: len(here.used()) == 4, "the job has all again", DEADLINE_S)

        assert here.run("pool", "drain", "0")[0] == 0
        until(lambda: here.used() == {1, 2, 3}, "device 0 is left", DEADLINE_S)
        os.kill(job.process.pid, signal.SIGINT)
        assert job.exit_code() == 3
        job.assert_nothing_is_left()
    until(lambda: here.claims() == {}, "the claim is withdrawn")


def test_a_job_is_suspended_for_a_claim_and_comes_back_with_the_same_bits(
    tmp_path: Path, here: Box
) -> None:
    here.start_pool("--devices", "2")
    with training(tmp_path, 100_000, replicas=2, least=2) as job:
        job.wait_for_steps(5)
        urgent = here.claim(2, "--priority", "urgent", name="urgent")
        urgent.until("given", DEADLINE_S)
        assert here.users(0) == here.users(1) == {urgent.pid}
        urgent.send(signal.SIGINT)
        count = len(job.records("commit"))
        job.wait_for_steps(count + 5)
        (tmp_path / "over").touch()
        assert job.process.wait(DEADLINE_S) == 0, job.said()
        job.assert_nothing_is_left()

    assert len(job.records("job_started")) == 2
    check(job, len({record["step"] for record in job.records("commit")}))
