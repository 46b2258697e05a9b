"""A job's pods as processes: agents, and a coordinator whose every life has a directory of its own.

On loopback, with a register in ``tests.kube.config_maps``.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from tests.kube.config_maps import NAME, FakeConfigMaps
from tests.live.prompt import run_typed
from tests.live.stage import FORKED_PLIANT, Program, Stage
from tests.processes.test_cli import environment

from pliant.core.values import TlsFiles
from pliant.machine.tls import client_context

WAIT_S = 120.0

SCRIPT = """\
import os, sys, threading, torch, pliant
pliant.seed(1)
model = torch.nn.Linear(4, 1)
x = torch.randn(512, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
kept = os.environ.get("CHECKPOINTS", "")
kept = {"checkpoint": pliant.Checkpoint(kept, every="20steps")} if kept else {}
with pliant.Session(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
                    dataset=data, global_batch_size=32, micro_batch_size=4,
                    **kept) as session:
    for step in session.steps(int(sys.argv[1])):
        for a, b in step:
            step.backward(torch.nn.functional.mse_loss(model(a), b))
        while os.path.exists("wait") and session.committed >= 10:
            threading.Event().wait(0.05)
        threading.Event().wait(float(os.environ.get("PACE", 0)))
    if session.leader:
        print("digest", session.committed, session.state_digest(), flush=True)
"""

STEPS = 40

JOB = f"""\
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata:
  name: job
spec:
  command: [train.py, "{STEPS}"]
  elasticPolicy:
    minReplicas: 1
    maxReplicas: 2
"""


SERVICE = "job-coordinator.team-a.svc"
OTHER_SERVICE = "job-coordinator.team-b.svc"

KNOWN_NAMES = f"""\
import socket
_getaddrinfo = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: _getaddrinfo(
    "127.0.0.1" if host in ("{SERVICE}", "{OTHER_SERVICE}") else host, *rest, **more
)
"""
"""Makes names of Services known to a process, as a cluster does."""


class Pods:
    """A coordinator and agents of one job; each coordinator has a directory of its own."""

    def __init__(
        self, home: Path, served: FakeConfigMaps, here: Stage, tls: TlsFiles | None = None
    ) -> None:
        """``tls``: of all pods; they speak to each other by the name of the Service then."""
        self.home, self.served, self.here, self.tls = home, served, here, tls
        files = "" if tls is None else f"  tls: {json.dumps(asdict(tls))}\n"
        (home / "job.yaml").write_text(JOB + files)
        self.node = home / "node"
        self.node.mkdir()
        (self.node / "train.py").write_text(SCRIPT)
        (home / "sitecustomize.py").write_text(KNOWN_NAMES)
        self.around = environment(home) | served.kubeconfig(home)
        self.around |= {"PACE": "0.1", "POD_IP": "127.0.0.1", "PYTHONPATH": str(home)}
        self.around["PLIANT_TERMINATION_LOG"] = str(home / "termination-log")
        with socket.create_server(("127.0.0.1", 0)) as sock:
            self.port = sock.getsockname()[1]
        self.lives = 0

    def coordinate(self) -> Program:
        """Start a coordinator as in a new pod: it finds no files."""
        self.lives += 1
        host = "127.0.0.1" if self.tls is None else SERVICE
        words = ["-m", "pliant", "coordinator", "--name", "job", "--listen", f"{host}:{self.port}"]
        words += ["--token-file", str(self.home / "token"), "--register", f"configmap:{NAME}"]
        words += ["--out", str(self.home / f"out{self.lives}")]
        words += [] if self.tls is None else ["--tls-any-node"]
        words += [str(self.home / "job.yaml")]
        said = self.home / f"coordinator{self.lives}"
        return self.here.start(*words, out=said, environment=self.around, cwd=self.home)

    def employ(self, node: str, host: str = "127.0.0.1") -> Program:
        """Start an agent; ``host``: by which it knows the coordinator."""
        words: list[object] = [FORKED_PLIANT, "agent", "--join", f"{host}:{self.port}"]
        words += ["--node", node, "--devices", "1", "--interface", "127.0.0.1"]
        words += ["--token-file", str(self.home / "token")]
        for name, path in ({} if self.tls is None else asdict(self.tls)).items():
            words += [f"--tls-{name}", path]
        return self.here.start(*words, out=self.home / node, environment=self.around, cwd=self.node)

    def ask(self, path: str, body: object = None) -> dict[str, Any]:
        """Ask the coordinator, or tell it something; nothing, while there is none."""
        trust = True if self.tls is None else client_context(self.tls)
        scheme, name = ("http", {}) if self.tls is None else ("https", {"sni_hostname": SERVICE})
        try:
            with httpx.Client(verify=trust, trust_env=False) as client:
                answer = client.request(
                    "GET" if body is None else "POST",
                    f"{scheme}://127.0.0.1:{self.port}/v1/{path}",
                    json=body,
                    headers={"X-Pliant-Token": (self.home / "token").read_text().strip()},
                    extensions=name,
                )
        except httpx.HTTPError:
            return {}
        found: dict[str, Any] = answer.json()
        return found

    def wait_for(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the status is so."""
        until_s = time.monotonic() + WAIT_S
        while not is_so(status := self.ask("status")):
            assert time.monotonic() < until_s, f"{status}\n{self.said()}"
            time.sleep(0.05)
        return status

    def told(self) -> dict[str, Any]:
        """Return the last words of the coordinator that ended last."""
        found: dict[str, Any] = json.loads((self.home / "termination-log").read_text())
        return found

    def said(self) -> str:
        names = sorted(path for path in self.home.iterdir() if path.is_file())
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in names)

    def require_as_alone(self, *nodes: str) -> None:
        """See that one of these agents has printed what the script alone prints."""
        alone = run_typed(
            "train.py", str(STEPS), cwd=self.node, environment=environment(self.home)
        ).stdout.strip()
        assert alone.startswith("digest"), alone
        said = "".join((self.home / node).read_text() for node in nodes)
        assert f"| {alone}" in said, self.said()

    def audited(self) -> dict[str, Any]:
        """Return what an audit of the directory of the last coordinator finds."""
        out = str(self.home / f"out{self.lives}")
        audit = run_typed(
            *("pliant", "audit", "--out", out, "--json"),
            cwd=self.home,
            environment=environment(self.home),
        )
        found: dict[str, Any] = json.loads(audit.stdout)
        return found


def is_training(num_replicas: int, after: int = 0) -> Callable[[dict[str, Any]], bool]:
    return lambda status: (
        status.get("step", 0) > after
        and sum(one["state"] == "training" for one in status["replicas"]) == num_replicas
    )
