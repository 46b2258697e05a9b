"""``pliant dashboard``: the link it prints lets a browser in, and Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.observe.test_run_index import gone
from tests.observe.test_runs import begun

from pliant.cli import dashboard_command
from pliant.core.errors import ConfigError
from pliant.machine.registry import Handle, StateDirectory


@pytest.mark.timeout(60)
def test_the_link_lets_in_once_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    out = begun(StateDirectory(tmp_path / "state" / "pliant"), "gpt", gone()).out
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "pliant", "dashboard", str(out)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = urlsplit(process.stdout.readline().strip())
        try:
            code, run = (part.partition("=")[2] for part in link.fragment.split("&"))
            base = f"http://{link.netloc}"
            with httpx.Client(base_url=base, trust_env=False, headers={"Origin": base}) as client:
                page = client.get("/").text
                first = client.post("/login", headers={"X-Pliant-Code": code})
                view = client.get(f"/v1/runs/{run}/v1/view").json()
        finally:
            process.send_signal(signal.SIGINT)
        exit_code = process.wait(20)

    assert 'data-mode="runs"' in page
    assert first.status_code == 200
    assert view["headline"]["job"] == "gpt"
    assert exit_code == 0


@pytest.mark.timeout(60)
def test_a_simulated_day_is_served_until_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "pliant", "demo", "--dashboard"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = urlsplit(process.stdout.readline().strip())
        try:
            base, code = f"http://{link.netloc}", link.fragment.partition("=")[2]
            with httpx.Client(base_url=base, trust_env=False, headers={"Origin": base}) as client:
                page = client.get("/").text
                stranger = client.get("/v1/status")
                client.post("/login", headers={"X-Pliant-Code": code})
                view = client.get("/v1/view").json()
                noon = client.get(f"/v1/status?at={view['began'] + 12 * 3600}").json()
        finally:
            process.send_signal(signal.SIGINT)
        exit_code = process.wait(20)

    assert 'data-mode="pool"' in page
    assert stranger.status_code == 401
    assert noon["in_use"] == 16
    assert exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_a_job_elsewhere_says_where_its_own_page_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Caller:
        def __init__(self, job: Handle) -> None:
            pass

        def ask(self, method: str, path: str) -> dict[str, str]:
            assert (method, path) == ("POST", "/v1/login")
            return {"code": "abc"}

    monkeypatch.setattr(dashboard_command, "Caller", Caller)

    dashboard_command._link_to(Handle(name="gpu1:7000", url="http://gpu1:7000"))

    assert capsys.readouterr().out.startswith("http://gpu1:7000/#code=abc")
    with pytest.raises(ConfigError, match="forward its port"):
        dashboard_command._link_to(
            Handle(name="kube:a/b", url="https://api", headers=lambda: {"Authorization": "x"})
        )
