"""What a job opens to others is what docs/explanation/security.md says, and no more."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from tests.processes.launching import FAKE_WORKER, RunningJob, running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def listening(job: RunningJob) -> set[tuple[str, int]]:
    found = set()
    for process in job.processes():
        for one in process.net_connections("inet"):
            if one.status == psutil.CONN_LISTEN or (
                one.type == socket.SOCK_DGRAM and not one.raddr
            ):
                found.add((one.laddr.ip, one.laddr.port))
    return found


def test_a_job_listens_on_one_port_of_loopback_and_shows_its_token_to_nobody(
    tmp_path: Path,
) -> None:
    with running(tmp_path, FAKE_WORKER, "1000", "0.05") as job:
        job.wait_for_steps(3)
        with job.client() as client:
            url = urlsplit(str(client.base_url))
            answers = [client.get(path) for path in ("/v1/status", "/metrics", "/healthz")]
            client.headers.pop("Authorization")
            strangers = {path: client.get(path).status_code for path in ("/v1/status", "/metrics")}
        token = job.token_path.read_text()

        assert url.hostname is not None
        assert url.port is not None
        assert listening(job) == {(url.hostname, url.port)}
        assert url.hostname == "127.0.0.1"
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert strangers == {"/v1/status": 401, "/metrics": 200}
        for process in job.processes():
            shown = " ".join(process.cmdline()) + repr(process.environ())
            assert token not in shown
            named = [one.laddr for one in process.net_connections("unix") if one.laddr]
            assert named == []
        assert not re.search(re.escape(token), (job.out / "events.jsonl").read_text())
        with job.client() as client:
            client.post("/v1/stop")
        job.exit_code()
