"""A coordinator and agents as a cluster's pods are: told to end at any moment, and first processes.

Real processes on loopback.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.certificates import Authority
from tests.kube.config_maps import NAME, config_maps
from tests.live.stage import stage
from tests.processes.podding import OTHER_SERVICE, SERVICE, STEPS, WAIT_S, Pods, is_training

from pliant.coordinator.driver import NOT_KEPT
from pliant.core.errors import EXIT_FAILED, EXIT_OK, EXIT_STOPPED, EXIT_TAKEN_OVER

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]

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


@pytest.fixture
def pods(home: Path) -> Iterator[Pods]:
    with config_maps() as served, stage(forked=True) as here:
        yield Pods(home, served, here)


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
    told = pods.told()
    assert (told["exitCode"], told["state"], told["step"]) == (0, "finished", STEPS)
    assert told["audit"].startswith(f"{STEPS} steps: each sample counted exactly once")
    assert status["steps_lost"] == 0
    assert [one.get("text") for one in page["records"]].count(NOT_KEPT) == 1
    assert (demand["useful"], demand["slots"], demand["canSuspend"]) == (2, 8, False)
    assert NOT_KEPT in demand["reason"]
    assert {one["name"] for one in status["replicas"]} == {"r1", "r2"}  # who trained went on
    pods.require_as_alone("a", "b")
    assert pods.audited()["problems"] == []  # the agents told all again

    (pods.home / "termination-log").unlink()
    assert pods.coordinate().wait(WAIT_S) == EXIT_OK, pods.said()
    assert pods.told() == told


@pytest.mark.slow
def test_while_the_api_server_is_away_training_goes_on_and_a_loss_waits(pods: Pods) -> None:
    coordinator, wait = pods.coordinate(), pods.node / "wait"
    wait.touch()
    agents = [pods.employ("a"), pods.employ("b")]
    pods.wait_for(is_training(2, after=8))

    pods.served.stop()
    away = pods.wait_for(lambda status: status["register_unreached"] is not None)
    wait.unlink()
    pods.wait_for(is_training(2, after=away["step"] + 2))
    wait.touch()
    (lost,) = (one for one in away["replicas"] if one["node"] == "b")
    os.kill(lost["pids"][0], signal.SIGKILL)
    while "the register could not be written" not in pods.said():
        assert coordinator.poll() is None
        time.sleep(0.05)
    wait.unlink()
    held = pods.ask("status")
    time.sleep(2.0)  # 20 steps, if anything were sent that lets the other train on
    still = pods.ask("status")
    pods.served.come_back()
    pods.wait_for(lambda status: status["register_unreached"] is None)

    assert coordinator.wait(WAIT_S) == EXIT_OK, pods.said()
    assert [agent.wait(WAIT_S) for agent in agents] == [EXIT_OK, EXIT_OK], pods.said()
    assert f"ConfigMap team-a/{NAME}" in still["register_unreached"]["reason"]
    assert still["register_unreached"]["at"] == away["register_unreached"]["at"]
    assert (still["step"], still["generation"]) == (held["step"], away["generation"])
    register = json.loads(pods.served.data["register"])
    assert register["newest"]["generation"] > away["generation"]
    assert pods.told()["step"] == STEPS
    pods.require_as_alone("a", "b")
    assert pods.audited()["problems"] == []


@pytest.mark.slow
def test_a_job_whose_pods_all_leave_goes_on_later_with_fewer_and_no_files(pods: Pods) -> None:
    """As the operator has them leave when the base is preempted: told, then deleted."""
    pods.around["CHECKPOINTS"] = str(pods.home / "checkpoints")
    first = pods.coordinate()
    agents = {node: pods.employ(node) for node in ("a", "b")}
    (pods.node / "wait").touch()
    pods.wait_for(is_training(2, after=8))
    reason = "preempted by Workload team-b/urgent"
    for node, agent in agents.items():
        pods.ask(f"nodes/{node}/leave", {"notice_s": 60, "reason": reason})
        agent.send_signal(signal.SIGTERM)
    (pods.node / "wait").unlink()

    assert [agent.wait(WAIT_S) for agent in agents.values()] == [EXIT_OK, EXIT_OK], pods.said()
    assert first.wait(WAIT_S) == EXIT_OK, pods.said()
    told = pods.told()
    assert (told["exitCode"], told["state"]) == (EXIT_STOPPED, "stopped")
    assert reason in told["reason"]

    second, alone = pods.coordinate(), pods.employ("c")
    status = pods.wait_for(is_training(1))
    assert second.wait(WAIT_S) == EXIT_OK, pods.said()
    assert alone.wait(WAIT_S) == EXIT_OK, pods.said()
    assert status["restored"]["committed"] == told["step"]
    assert (status["steps_lost"], pods.told()["step"]) == (0, STEPS)
    pods.require_as_alone("c")
    audit = pods.audited()
    assert (audit["problems"], audit["first_step"]) == ([], told["step"])  # before: elsewhere


@pytest.mark.slow
def test_pods_meet_over_tls_by_the_name_of_the_service(home: Path) -> None:
    files = Authority(home / "ca").files("job", names=[SERVICE])
    with config_maps() as served, stage(forked=True) as here:
        pods = Pods(home, served, here, files)
        coordinator = pods.coordinate()
        pods.wait_for(bool)

        astray = pods.employ("astray", OTHER_SERVICE)
        assert astray.wait(WAIT_S) == EXIT_FAILED, pods.said()
        *_, last = (home / "astray").read_text().splitlines()
        agents = [pods.employ("a", SERVICE), pods.employ("b", SERVICE)]

        assert coordinator.wait(WAIT_S) == EXIT_OK, pods.said()
        assert [agent.wait(WAIT_S) for agent in agents] == [EXIT_OK, EXIT_OK], pods.said()
        assert f"{OTHER_SERVICE}:{pods.port}" in last
        assert last.endswith(f"does not name {OTHER_SERVICE}")
        assert pods.told()["state"] == "finished"
        pods.require_as_alone("a", "b")


@pytest.mark.slow
def test_a_coordinator_that_does_not_reach_the_api_server_decides_nothing(pods: Pods) -> None:
    pods.served.stop()

    assert pods.coordinate().wait(WAIT_S) == EXIT_FAILED

    assert "this coordinator ended, the job did not: ConfigMap team-a/" in pods.said()
    assert not (pods.home / "termination-log").exists()
