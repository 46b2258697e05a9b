"""A GPU that fails under a replica is named, and leaves no trace in the result."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gpu.here import on_gpu
from tests.processes.elastic import Outcome, run, wait_for_members
from tests.processes.launching import RunningJob

pytestmark = [*on_gpu, pytest.mark.processes, pytest.mark.timeout(240)]

STEPS, AT = 30, 8

SAID = {
    "memory": "cuda:0 is out of memory for 4096.00 GiB more",
    "hang": "cuda:0 has not finished a kernel for 5 s",
}


def played(directory: Path, *arguments: object, replicas: int) -> Outcome:
    def play(job: RunningJob) -> None:
        if replicas > 1:
            wait_for_members(job, "r1", "r3", "r4")

    directory.mkdir()
    return run(
        directory,
        "gpt",
        STEPS,
        play,
        replicas=replicas,
        pace=0.05,
        arguments=("--device", "cuda", *arguments),
        restarts=0,
    )


@pytest.mark.parametrize("fault", SAID)
def test_a_device_that_fails_is_named_and_its_replica_replaced(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLIANT_TEST_SHARED_DEVICE", "1")
    monkeypatch.setenv("PLIANT_KERNEL_SECONDS", "5")
    alone = played(tmp_path / "alone", replicas=1)

    outcome = played(tmp_path / "faulty", "--device-fault", "r2", AT, fault, replicas=3)

    ends = [one for one in outcome.kinds("exited") if one["exited_kind"] == "device"]
    assert [one["replica"] for one in ends] == ["r2"]
    assert ends[0]["detail"].startswith(SAID[fault])
    outcome.check(alone.digests[0]["digest"])
