"""A real Prometheus on loopback scrapes a real run in a pool: every query returns a series.

Also what promtool says of names and rules.  Debian's package ``prometheus`` has both; without them
this is skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import start_http_server
from tests.live.stage import MARK, FreshStage
from tools import monitoring

from pliant.client import Job, Pool
from pliant.http.app import registry_of
from pliant.kube import client
from pliant.kube.metrics import OperatorMetrics
from pliant.observe.metric_table import ALERTS, TABLES

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="Debian's package prometheus is not installed",
    ),
]

SCRIPT = """\
import threading, torch, pliant
pliant.seed(1)
model = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.randn(512, 4))
with pliant.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                    dataset=data, global_batch_size=32, micro_batch_size=4,
                    checkpoint=pliant.Checkpoint("kept", every="5steps")) as session:
    for step in session.steps(100_000):
        for (x,) in step:
            step.backward(model(x).square().mean())
        threading.Event().wait(0.02)
"""

WAIT_S = 120.0


def until(is_true: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        if found := is_true():
            return found
        threading.Event().wait(0.5)
    raise AssertionError(f"that {what} is not so after {WAIT_S:g} s")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(SCRIPT)
    here = FreshStage()
    monkeypatch.setenv(MARK, here._mark)
    yield tmp_path
    here.end()


@pytest.fixture
def operator() -> Iterator[int]:
    """Serve what an operator counts: a cluster is not here."""
    found = OperatorMetrics(phases=lambda: {"Running": 1}, depth=lambda: 0, leads=lambda: True)
    found.actions["Create"] = 1
    found.results["ok"] = 1
    found.reconciled.note(0.01)
    found.heard(client.read(client.PODS, "p", "n"), 200, 0.01)
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry_of(found))
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def with_bool(expr: str) -> str:
    """Return an expression that tells whether it is so, and does not leave out what is not."""
    return re.sub(r" (>=|<=|>|<) ", r" \1 bool ", expr)


def queries() -> list[str]:
    boards = [monitoring.dashboard(name) for name in TABLES]
    shown = [
        one["expr"] for board in boards for panel in board["panels"] for one in panel["targets"]
    ]
    return [
        *(query.replace("$run", "gpt") for query in shown),
        *(with_bool(one.expr) for one in ALERTS),
    ]


def test_every_query_returns_a_series_of_a_real_run(home: Path, operator: int) -> None:
    pool = Pool.start(2, name="ours")
    pool.set_team("ml", quota=1)
    job = pool.submit("train.py", name="gpt", max=2, team="ml", price=2.5)
    until(lambda: job.status()["step"] > 10, "it trains")
    job.suspend()
    job.wait(60)
    job = job.resume()
    place = home / "prometheus"
    place.mkdir()
    rules = place / "alerts.yaml"
    shutil.copy(ROOT / "deploy/prometheus/alerts.yaml", rules)
    scrapes = [
        {
            "job_name": "pliant",
            "file_sd_configs": [{"files": [f"{home}/state/pliant/prometheus/*.json"]}],
        },
        {"job_name": "operator", "static_configs": [{"targets": [f"127.0.0.1:{operator}"]}]},
    ]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": scrapes,
    }
    (place / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    with (place / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={place / 'prometheus.yml'}",
                f"--storage.tsdb.path={place / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False) as asked:
            until(lambda: said(asked, "pliant_committed_steps_total"), "the run is scraped")
            until(lambda: trains(job, 2), "both train")
            job.scale(1)
            until(lambda: trains(job, 1), "one trains")
            job.scale(2)
            until(lambda: not [one for one in queries() if not said(asked, one)], "all are there")
            until(lambda: healths(asked) == ["ok"] * len(ALERTS), "rules are evaluated")
            page = httpx.get(f"{job.status()['url']}/metrics", trust_env=False).text
    finally:
        server.terminate()
        server.wait()
    lint(page)
    job.stop(now=True)
    job.wait(60)
    pool.stop()
    targets = home / "state/pliant/prometheus"
    until(lambda: not list(targets.iterdir()), "who has ended is not scraped")


def trains(job: Job, number: int) -> bool:
    states = [one["state"] for one in job.status()["replicas"]]
    return states == ["training"] * number


def healths(asked: httpx.Client) -> list[str]:
    (group,) = asked.get("/rules").json()["data"]["groups"]
    return [str(one["health"]) for one in group["rules"]]


def said(asked: httpx.Client, query: str) -> list[Any]:
    try:
        answer = asked.get("/query", params={"query": query}).json()
    except httpx.TransportError:  # it has yet to listen
        return []
    assert answer["status"] == "success", (query, answer)
    found: list[Any] = answer["data"]["result"]
    return found


def lint(page: str) -> None:
    """Ask promtool for what it objects to: to nothing but the old names."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    old = {row.old for table in TABLES.values() for row in table if row.old}
    wrong = [line for line in done.stderr.splitlines() if line.split(" ")[0] not in old]
    assert wrong == []


def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_promtool_takes_the_alert_rules() -> None:
    path = ROOT / "deploy/prometheus/alerts.yaml"

    done = subprocess.run(
        ["promtool", "check", "rules", path], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_a_query_names_only_metrics_of_the_table() -> None:
    names = {row.name for table in TABLES.values() for row in table}

    found = {name for query in queries() for name in re.findall(r"pliant_\w+", query)}

    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in found} <= names
