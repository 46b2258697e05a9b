"""A job whose coordinator is attacked by another user of the machine ends as if nobody had."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from tests.live.harassing import harassed, is_another_user
from tests.processes.elastic import reference, run_until_over, wait_for_members
from tests.processes.launching import RunningJob

from pliant.http.connections import most_connections

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

WAYS = (["idle", "head"], ["ask", "garbage"], ["burst"])

DESCRIPTORS = 256
"""That the coordinator may have; the visitors open more."""

DEADLINE_S = 30.0


def asked(job: RunningJob, path: str, body: dict[str, int] | None = None) -> httpx.Response:
    """Ask a job as its user does, who asks again if there is no place at the moment."""
    until_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            with job.client() as client:
                method = "GET" if body is None else "POST"
                return client.request(method, path, json=body, timeout=5.0)
        except httpx.HTTPError:
            assert time.monotonic() < until_s, "it was never heard"


def test_a_coordinator_among_hostile_visitors_resizes_its_job_as_ever(tmp_path: Path) -> None:
    attacks = []
    open_files: list[int] = []

    def play(job: RunningJob) -> None:
        with job.client() as client:
            url = urlsplit(str(client.base_url))
        process = psutil.Process(job.process.pid)
        process.rlimit(psutil.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        assert url.hostname is not None
        assert url.port is not None
        with harassed(*WAYS, known=[(url.hostname, url.port)]) as found:
            wait_for_members(job, "r1", "r2", "r3")
            for target, members in ((2, ("r1", "r2")), (3, ("r1", "r2", "r4"))):
                answer = asked(job, "/v1/scale", {"target": target})
                assert answer.status_code == 202, answer.text
                wait_for_members(job, *members)
                open_files.append(process.num_fds())
            job.wait_for_steps(len(job.records("commit")) + 5)
            assert asked(job, "/v1/status").json()["state"] == "training"
        attacks.append(found)

    outcome = run_until_over(tmp_path, "gpt", play, replicas=3)

    outcome.check(reference("gpt", outcome.steps))
    (found,) = attacks
    assert is_another_user(found) or set(found.users) != {"nobody"}
    assert found.counts["tries"] > 500
    assert max(open_files) < DESCRIPTORS
    assert most_connections() > 8
    codes = set(re.findall(rb"HTTP/1.1 (\d+)", found.heard))
    assert codes <= {b"400", b"401", b"403"}, codes
    assert b"state" not in found.heard
    assert outcome.job.said().count("\n") < found.counts["tries"] / 10  # nor do they fill its log
