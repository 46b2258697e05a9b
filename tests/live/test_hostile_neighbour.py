"""A run among neighbours that attack its workers' ports ends as one that nobody touched."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from tests.coordinator.traces import traces, traces_in_files
from tests.live.harassing import EVERY_WAY, Harassment, harassed
from tests.live.neighbour import Address, listening
from tests.processes import elastic
from tests.processes.elastic import drain, kill, reference, run_until_over, scale, wait_for_members
from tests.processes.launching import RunningJob

from pliant.engine.comm.mesh import parse_endpoint

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

FEW = 256
"""Descriptors that each process of the job may have."""

MORE_MEMORY = 256 * 2**20
"""Bytes by which a worker may grow while it trains; strangers would cost more."""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Have the workers tell their secrets."""
    path = tmp_path / "told"
    os.mkfifo(path)
    monkeypatch.setenv("TOLD_AT", str(path))
    monkeypatch.setattr(elastic, "SCRIPT", Path(__file__).with_name("train_and_tell.py"))
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield pipe
    os.close(pipe)


def secrets_in(told: int) -> set[str]:
    return set(os.read(told, 1 << 16).decode().split())


def allow(job: RunningJob, replica: str) -> psutil.Process:
    """Let a worker have few descriptors from now on."""
    process = psutil.Process(job.pid_of(replica))
    process.rlimit(psutil.RLIMIT_NOFILE, (FEW, FEW))
    return process


@contextlib.contextmanager
def following(job: RunningJob, found: Harassment) -> Iterator[set[Address]]:
    """Have each worker's port attacked from its first meeting on, and no other job's."""
    ports: set[Address] = set()
    is_over = threading.Event()

    def follow() -> None:
        while not is_over.wait(0.01):
            orders = [r["order"] for r in job.records("prepare")]
            seats = [seat for order in orders for seat in order["members"]]
            for address in {parse_endpoint(seat["endpoint"]) for seat in seats} - ports:
                ports.add(address)
                found.point_at(address)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield ports
    finally:
        is_over.set()
        thread.join()


def shown_by(processes: Sequence[psutil.Process]) -> bytes:
    """Return what every user may read of processes, and their environments."""
    shown = b""
    for process in processes:
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                shown += Path(f"/proc/{process.pid}/{name}").read_bytes()
    return shown


@pytest.mark.parametrize(
    "neighbours",
    [
        pytest.param([EVERY_WAY], id="every way"),
        pytest.param([["idle"], ["burst", "wrong"]], id="thousands", marks=pytest.mark.soak),
        pytest.param([["garbage"], ["half", "drip"]], id="rubbish", marks=pytest.mark.soak),
    ],
)
def test_a_run_among_hostile_neighbours_grows_shrinks_and_loses_replicas_as_ever(
    tmp_path: Path, told: int, neighbours: list[Sequence[str]]
) -> None:
    attacks: list[Harassment] = []
    shown: list[bytes] = []
    in_training: list[set[tuple[str, int]]] = []

    def play(job: RunningJob) -> None:
        job.wait_for(job.record_path.exists, "it can be found")
        job.client().close()
        with harassed(*neighbours, known=[]) as found, following(job, found) as ports:
            wait_for_members(job, "r1", "r2", "r3")
            workers = [allow(job, replica) for replica in ("r1", "r2")]
            memory = [worker.memory_info().rss for worker in workers]
            drain(job, "r1")
            wait_for_members(job, "r2", "r3")
            scale(job, 3)
            wait_for_members(job, "r2", "r3", "r4")
            for _ in range(3):
                in_training.append(set(listening()) & ports)
                job.wait_for_steps(len(job.records("commit")) + 3)
            assert workers[1].num_fds() < FEW // 2
            assert workers[1].memory_info().rss < memory[1] + MORE_MEMORY
            shown.append(shown_by(job.processes()))
            kill(job, "r2")
            wait_for_members(job, "r3", "r4", "r5")
        attacks.append(found)

    outcome = run_until_over(tmp_path, "gpt", play, replicas=3)

    outcome.check(reference("gpt", outcome.steps))
    assert [r["exited_kind"] for r in outcome.kinds("exited")] == [
        "left",
        "signal",
        *["finished"] * 3,
    ]
    (found,) = attacks
    assert found.counts["tries"] > 100
    assert found.heard == b""
    assert set() in in_training, in_training  # a generation may be met at one look
    secrets = secrets_in(told)
    assert len(secrets) >= 3
    assert traces_in_files(secrets, tmp_path / "out") == []
    assert traces(secrets, outcome.job.said().encode()) == []
    assert traces(secrets, b"".join(shown)) == []
