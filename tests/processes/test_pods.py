"""A coordinator and agents as a cluster's pods are: told to end at any moment, and first processes.

Real processes on loopback.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.kube.config_maps import NAME, FakeConfigMaps, config_maps
from tests.live.prompt import run_typed
from tests.live.stage import FORKED_PLIANT, Program, Stage, stage
from tests.processes.test_cli import environment

from pliant.coordinator.driver import NOT_KEPT
from pliant.core.errors import EXIT_OK, EXIT_TAKEN_OVER

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]

WAIT_S = 120.0
AGENT = ("agent", "--token-file", "token", "--node", "a", "--devices", "1")
NOWHERE = ("--join", "nowhere.invalid:7000", "--interface", "127.0.0.1")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o600)
    return tmp_path


def started(*words: str, home: Path, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-m", "pliant", *words],
        cwd=home,
        env=os.environ | {"HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def heeds_sigterm(pid: int) -> bool:
    """Whether a process has a handler for it, by what the kernel knows."""
    (caught,) = (
        line.split()[1]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("SigCgt")
    )
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_an_agent_that_is_evicted_before_it_has_imported_anything_is_gone(home: Path) -> None:
    agent = started(*AGENT, *NOWHERE, home=home)
    process = psutil.Process(agent.pid)
    while not heeds_sigterm(agent.pid):
        assert agent.poll() is None
    is_early = process.memory_info().rss < 40 << 20  # it has imported next to nothing

    agent.terminate()

    assert agent.wait(WAIT_S) == EXIT_OK
    assert is_early
    assert agent.communicate() == ("", "")


@pytest.mark.slow
def test_an_agent_waits_for_a_name_that_nobody_knows_yet_and_leaves_in_order(home: Path) -> None:
    agent = started(*AGENT, *NOWHERE, home=home)
    assert agent.stderr is not None
    assert "joins the job at nowhere.invalid:7000" in agent.stderr.readline()

    with pytest.raises(subprocess.TimeoutExpired):
        agent.wait(1.5)
    agent.terminate()

    assert "told to end" in agent.communicate(timeout=WAIT_S)[1]
    assert agent.returncode == EXIT_OK


@pytest.mark.slow
def test_an_agent_without_an_interface_waits_for_a_name_for_so_long(home: Path) -> None:
    agent = started(*AGENT, "--join", "nowhere.invalid:7000", "--give-up", "0.5", home=home)

    _, said = agent.communicate(timeout=WAIT_S)

    assert (agent.returncode, "no host of this name" in said) == (2, True)


@pytest.mark.slow
def test_the_first_process_of_a_container_reaps_and_passes_signals_on(home: Path) -> None:
    """The kernel drops what process 1 does not handle, and gives it every orphan."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a namespace of processes")
    unshare = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    namespace = started(*AGENT, *NOWHERE, home=home, before=unshare)
    assert namespace.stderr is not None
    assert "joins the job" in namespace.stderr.readline()
    (first,) = psutil.Process(namespace.pid).children()
    (agent,) = first.children()
    orphan = ["nsenter", "-t", str(first.pid), "--pid", "--mount", "sh", "-c", "sleep 0.1 &"]

    subprocess.run(orphan, check=True)
    for _ in range(600):
        if first.children() == [agent]:
            break
        subprocess.run(["sleep", "0.1"], check=True)
    left = first.children()
    first.send_signal(signal.SIGTERM)

    assert left == [agent]
    namespace.communicate(timeout=WAIT_S)
    assert namespace.returncode == EXIT_OK


SCRIPT = """\
import os, sys, threading, torch, pliant
pliant.seed(1)
model = torch.nn.Linear(4, 1)
x = torch.randn(512, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
with pliant.Session(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
                    dataset=data, global_batch_size=32, micro_batch_size=4) as session:
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


class Pods:
    """A coordinator and agents of one job; each coordinator has a directory of its own."""

    def __init__(self, home: Path, served: FakeConfigMaps, here: Stage) -> None:
        self.home, self.served, self.here = home, served, here
        (home / "job.yaml").write_text(JOB)
        self.node = home / "node"
        self.node.mkdir()
        (self.node / "train.py").write_text(SCRIPT)
        self.around = environment(home) | served.kubeconfig(home) | {"PACE": "0.1"}
        self.around["PLIANT_TERMINATION_LOG"] = str(home / "termination-log")
        with socket.create_server(("127.0.0.1", 0)) as sock:
            self.port = sock.getsockname()[1]
        self.lives = 0

    def coordinate(self) -> Program:
        """Start a coordinator as in a new pod: it finds no files."""
        self.lives += 1
        words = ["-m", "pliant", "coordinator", "--name", "job"]
        words += ["--listen", f"127.0.0.1:{self.port}", "--token-file", str(self.home / "token")]
        words += ["--out", str(self.home / f"out{self.lives}"), "--register", f"configmap:{NAME}"]
        words += [str(self.home / "job.yaml")]
        said = self.home / f"coordinator{self.lives}"
        return self.here.start(*words, out=said, environment=self.around, cwd=self.home)

    def employ(self, node: str) -> Program:
        words: list[object] = [
            FORKED_PLIANT,
            "agent",
            "--join",
            f"127.0.0.1:{self.port}",
            "--node",
            node,
            "--devices",
            "1",
        ]
        words += ["--token-file", str(self.home / "token"), "--interface", "127.0.0.1"]
        return self.here.start(*words, out=self.home / node, environment=self.around, cwd=self.node)

    def ask(self, path: str) -> dict[str, Any]:
        """Ask the coordinator; nothing, while there is none."""
        try:
            answer = httpx.get(
                f"http://127.0.0.1:{self.port}/v1/{path}",
                headers={"X-Pliant-Token": (self.home / "token").read_text().strip()},
                trust_env=False,
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

    def said(self) -> str:
        names = sorted(path for path in self.home.iterdir() if path.is_file())
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in names)


@pytest.fixture
def pods(home: Path) -> Iterator[Pods]:
    with config_maps() as served, stage(forked=True) as here:
        yield Pods(home, served, here)


def is_training(num_replicas: int, after: int = 0) -> Callable[[dict[str, Any]], bool]:
    return lambda status: (
        status.get("step", 0) > after
        and sum(one["state"] == "training" for one in status["replicas"]) == num_replicas
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_coordinator_that_is_ended_leaves_the_job_to_the_next_which_has_no_files(
    pods: Pods, how: signal.Signals
) -> None:
    first = pods.coordinate()
    pods.wait_for(bool)
    (pods.home / "out1" / "holder").unlink()  # as in other pods, agents do not see it
    agents = [pods.employ("a"), pods.employ("b")]
    (pods.node / "wait").touch()
    pods.wait_for(is_training(2, after=2))
    first.send_signal(how)
    assert first.wait(WAIT_S) == (EXIT_TAKEN_OVER if how is signal.SIGTERM else -how), pods.said()
    second = pods.coordinate()
    status = pods.wait_for(is_training(2))
    demand, page = pods.ask("demand"), pods.ask("events")
    (pods.node / "wait").unlink()

    assert second.wait(WAIT_S) == EXIT_OK, pods.said()
    assert [agent.wait(WAIT_S) for agent in agents] == [EXIT_OK, EXIT_OK], pods.said()
    told = json.loads((pods.home / "termination-log").read_text())
    assert (told["exitCode"], told["state"], told["step"]) == (0, "finished", STEPS)
    assert status["steps_lost"] == 0
    assert [one["text"] for one in page["records"] if one["kind"] == "note"] == [NOT_KEPT]
    assert (demand["useful"], demand["slots"], demand["canSuspend"]) == (2, 8, False)
    assert NOT_KEPT in demand["reason"]
    assert {one["name"] for one in status["replicas"]} == {"r1", "r2"}  # who trained went on
    alone = run_typed("train.py", str(STEPS), cwd=pods.node, environment=environment(pods.home))
    assert (
        f"| {alone.stdout.strip()}" in (pods.home / "a").read_text() + (pods.home / "b").read_text()
    ), pods.said()

    audit = run_typed(
        *("pliant", "audit", "--out", str(pods.home / "out2"), "--json"),
        cwd=pods.home,
        environment=environment(pods.home),
    )
    assert json.loads(audit.stdout)["problems"] == [], audit.stdout  # the agents told all again

    (pods.home / "termination-log").unlink()
    assert pods.coordinate().wait(WAIT_S) == EXIT_OK, pods.said()
    assert json.loads((pods.home / "termination-log").read_text()) == told
