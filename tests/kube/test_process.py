"""An operator as its Deployment starts it: probes, numbers, an orderly end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml
from tests.kube.fake_api import FakeApi
from tests.kube.jobs import manifest

from pliant.core.errors import ConfigError
from pliant.kube.client import ELASTIC_JOBS, LEASES
from pliant.kube.connection import Cluster
from pliant.kube.operator import Settings
from pliant.kube.process import run_operator

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]


def answer(url: str, *, awaited: int | None = None) -> httpx.Response:
    """Ask until it is answered, with this status if one is named."""
    deadline_s = time.monotonic() + 90
    while True:
        try:
            found = httpx.get(url, trust_env=False)
            if found.status_code == awaited or awaited is None:
                return found
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_it_is_ready_once_it_knows_everything_and_leaves_its_lease_when_it_ends(
    fake: FakeApi, cluster: Cluster, tmp_path: Path
) -> None:
    def no_pods(method: str, path: str) -> tuple[int, dict[str, str]] | None:
        return (503, {"Retry-After": "0"}) if path.endswith("/pods") else None

    fake.faults.append(no_pods)
    fake.create(manifest())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "sys"}}]
    config = {
        "current-context": "c",
        "contexts": contexts,
        "clusters": [{"name": "c", "cluster": {"server": cluster.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    started = subprocess.Popen(
        [sys.executable, "-m", "pliant", "operator", "run", "--image", "i", "--listen", place],
        env={**os.environ, "KUBECONFIG": str(tmp_path / "config"), "NO_PROXY": "127.0.0.1"},
    )
    try:
        assert answer(f"http://{place}/healthz").status_code == 200
        assert "pods: " in answer(f"http://{place}/readyz", awaited=503).text
        fake.faults.clear()
        answer(f"http://{place}/readyz", awaited=200)
        while not (fake.get(ELASTIC_JOBS, "gpt", "team-a") or {}).get("status"):
            time.sleep(0.05)
        page = answer(f"http://{place}/metrics").text
        assert 'pliant_operator_jobs{phase="Pending"} 1.0' in page
        assert 'method="WATCH",resource="pods"' in page
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0
    finally:
        started.kill()
        started.wait()
    lease = fake.get(LEASES, "pliant-operator", "sys")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("place", ["here", "0.0.0.0:99999"])
def test_a_place_to_listen_has_a_port(place: str) -> None:
    settings = Settings(image="i", namespace="sys", identity="pod")
    with pytest.raises(ConfigError, match=f"--listen {place} is no address with a port"):
        run_operator(Cluster(url="http://x", context="c"), settings, listen=place)
