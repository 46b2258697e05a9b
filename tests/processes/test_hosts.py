"""What the machine does to a job: it sleeps, stops a process, has no room, or no IPv4."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.checkpoint.test_broken_disk import may_mount
from tests.live.prompt import WAIT_S, run_typed
from tests.processes import elastic
from tests.processes.apart import ApartJob, apart
from tests.processes.launching import RunningJob
from tests.processes.test_cli import environment, pliant
from tests.processes.test_restart import status_of, training
from tests.processes.test_resume import SCRIPT

from pliant.agent.node_facts import GRACE_S
from pliant.core.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_STATE_LOST, EXIT_STOPPED
from pliant.machine import run_files
from pliant.machine.locks import locked

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

HEARTBEAT_S = 2.0

SLEEP_S = 3 * HEARTBEAT_S
"""Longer than every limit of a job that has these."""

LIMITS = {"heartbeat_s": HEARTBEAT_S, "hang_s": 4.0, "step_s": 4.0, "reform_s": 4.0}


def stopped(processes: list[psutil.Process]) -> None:
    """Stop processes, all before the next is looked at, for as long as a machine sleeps."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    threading.Event().wait(SLEEP_S)
    for process in reversed(processes):
        process.send_signal(signal.SIGCONT)


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that live; nobody may have buried yet what its parent left behind."""
    found = []
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            if one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def test_a_machine_that_sleeps_loses_nobody(tmp_path: Path) -> None:
    """Who wakes up last looks silent to the others, and has had no time to speak."""

    def sleep_twice(job: RunningJob) -> None:
        for steps in (3, 12):
            job.wait_for_steps(steps)
            stopped([psutil.Process(job.process.pid), *job.processes()])

    outcome = elastic.run_until_over(
        tmp_path, "gpt", sleep_twice, replicas=2, pace=0.02, settings=LIMITS
    )

    outcome.check(elastic.reference("gpt", outcome.steps))
    assert not [r for r in outcome.kinds("exited") if r["exited_kind"] == "signal"]


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_an_agent_that_stops_is_waited_for_or_replaced(tmp_path: Path, is_killed: bool) -> None:
    """Its replicas train on while it is stopped; killed, it takes them with it."""
    with training(tmp_path, nodes={"near": 1, "far": 1}, timeouts=LIMITS) as job:
        elastic.wait_for_members(job, "r1", "r2")
        agent = psutil.Process(job.agents["far"].pid)
        agent.send_signal(signal.SIGSTOP)
        job.wait_for(
            lambda: len(job.records("exited")) + len(job.records("reform")), "it is missed"
        )
        if is_killed:
            agent.kill()
            job.agents["far"].wait(WAIT_S)
            job.employ("far", 1)
        else:
            agent.send_signal(signal.SIGCONT)
        job.wait_for(lambda: len(elastic.members(job)) == 2, "two train together again")


@pytest.mark.parametrize("keeps", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_the_last_that_has_the_state_saves_it_before_it_leaves(tmp_path: Path, keeps: bool) -> None:
    """Its agent is told to end, and no other node has room; without checkpoints it is lost."""
    over, kept = tmp_path / "over", tmp_path / "kept"
    words: list[object] = [elastic.SCRIPT, "--model", "gpt", "--steps", 100_000, "--pace", 0.05]
    words += ["--digest-file", tmp_path / "digests", "--tails-file", tmp_path / "tails"]
    words += ["--checkpoint", kept, "--every", "99999steps"] if keeps else []

    with apart(tmp_path, *words, "--until", over, nodes={"only": 1}) as job:
        job.wait_for_steps(5)
        agent = job.agents.pop("only")
        psutil.Process(agent.pid).send_signal(signal.SIGTERM)
        if not keeps:
            assert job.process.wait(WAIT_S) == EXIT_STATE_LOST, job.said()
            assert "without checkpoints all is lost with it" in job.said()
            return
        assert job.process.wait(WAIT_S) == EXIT_STOPPED, job.said()
        assert agent.wait(WAIT_S) in (EXIT_OK, EXIT_INTERRUPTED), job.said()  # if it heard of it
        (saved,) = job.records("saved")
        assert saved["committed"] == len(job.records("commit"))
        how = f"it can go on after step {saved['committed']}: pliant resume {job.out}"
        assert how in job.said()

        job.coordinate()
        job.employ("only", 1)
        job.wait_for_steps(saved["committed"] + 5)
        over.touch()
        assert job.end() == 0, job.said()
        job.assert_nothing_is_left()
    outcome = elastic.Outcome(job, tmp_path, 0)
    outcome.steps = outcome.digests[-1]["committed"]
    outcome.digests = outcome.digests[-1:]  # else that of the suspended run as well
    outcome.check(elastic.reference("gpt", outcome.steps))


def test_nothing_is_started_on_a_node_whose_agent_says_nothing(tmp_path: Path) -> None:
    """It would never come; once the agent goes on its node counts again."""
    over = tmp_path / "over"
    words: list[object] = [elastic.SCRIPT, "--model", "gpt", "--steps", 100_000, "--pace", 0.1]
    words += ["--digest-file", tmp_path / "digests", "--tails-file", tmp_path / "tails"]

    def starts(job: ApartJob) -> list[str]:
        return [str(record["node"]) for record in job.records("start_replica")]

    with apart(tmp_path, *words, "--until", over, nodes={"near": 1}) as job:
        elastic.wait_for_members(job, "r1")
        job.employ("far", 2)
        elastic.wait_for_members(job, "r1", "r2")
        agent = psutil.Process(job.agents["far"].pid)
        agent.send_signal(signal.SIGSTOP)
        job.wait_for(
            lambda: "far" in [n for r in job.records("nodes_silent") for n in r["nodes"]],
            "it is noticed",
        )
        assert status_of(job)["silent"][0]["node"] == "far"
        job.employ("other", 1)
        job.wait_for(lambda: len(starts(job)) > 2, "another is started")
        elastic.wait_for_members(job, "r1", "r3")
        assert starts(job) == ["near", "far", "other"]
        agent.send_signal(signal.SIGCONT)
        job.wait_for(
            lambda: "far" in [n for r in job.records("nodes_silent") for n in r["heard"]],
            "it is heard again",
        )
        job.wait_for(lambda: job.records("exited"), "who trained there is ended")
        elastic.kill(job, "r3")
        job.wait_for(lambda: starts(job)[3:], "it is replaced where most devices are free")
        assert starts(job)[3] == "far"
        elastic.wait_for_members(job, "r1", "r4")
        over.touch()
        assert job.end() == 0, job.said()
        job.assert_nothing_is_left()
    outcome = elastic.Outcome(job, tmp_path, 0)
    outcome.steps = outcome.digests[0]["committed"]
    outcome.check(elastic.reference("gpt", outcome.steps))


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]
)
def test_replicas_of_an_agent_that_is_told_to_end_leave_between_two_steps(
    tmp_path: Path, number: int
) -> None:
    """As clusters do every day: nothing breaks, and no step is made again."""
    with training(tmp_path, nodes={"near": 1, "far": 1}) as job:
        elastic.wait_for_members(job, "r1", "r2")
        homes = {str(r["node"]): str(r["replica"]) for r in job.records("worker")}
        left = psutil.Process(job.agents["far"].pid)
        replicas = left.children(recursive=True)
        told_s = time.monotonic()
        left.send_signal(number)
        job.agents.pop("far").wait(WAIT_S)

        assert time.monotonic() - told_s < GRACE_S
        assert not living(replicas)
        elastic.wait_for_members(job, homes["near"])
        (exited,) = job.records("exited")
        assert (exited["replica"], exited["exited_kind"]) == (homes["far"], "left")
        assert [record["node"] for record in job.records("node_leaving")] == ["far"]
        assert [record["node"] for record in job.records("agent_left")] == ["far"]
        job.employ("far", 1)
        job.wait_for(lambda: len(elastic.members(job)) == 2, "two train together again")
        assert not job.records("reform")
        assert not job.records("broken")


@pytest.mark.parametrize("how", ["no grace", pytest.param("told twice", marks=pytest.mark.soak)])
def test_an_agent_that_is_told_to_end_at_once_is_not_waited_for(tmp_path: Path, how: str) -> None:
    """It says that it leaves: nobody has to be silent for as long as a dead host is."""
    with training(tmp_path, nodes={"near": 1}) as job:
        elastic.wait_for_members(job, "r1")
        job.employ("far", 1, *(["--grace", "0s"] if how == "no grace" else []))
        elastic.wait_for_members(job, "r1", "r2")
        left = psutil.Process(job.agents["far"].pid)
        replicas = left.children(recursive=True)
        if how == "told twice":
            for replica in replicas:
                replica.send_signal(signal.SIGSTOP)
            left.send_signal(signal.SIGTERM)
            job.wait_for(lambda: job.records("node_leaving"), "it is heard")
        left.send_signal(signal.SIGTERM)
        told_s = time.monotonic()
        job.agents.pop("far").wait(WAIT_S)

        assert time.monotonic() - told_s < GRACE_S / 2
        assert not living(replicas)
        elastic.wait_for_members(job, "r1")
        (lost,) = job.records("node_lost")
        assert lost["node"] == "far"
        assert [record["node"] for record in job.records("agent_left")] == ["far"]
        job.employ("far", 1)
        job.wait_for(lambda: len(elastic.members(job)) == 2, "two train together again")
        assert not job.records("exited")


def digest_alone(home: Path) -> str:
    """Return the line that the script prints when nobody touches it."""
    around = environment(home) | {"KEPT": str(home / "alone")}
    done = run_typed("train.py", "12", cwd=home, environment=around)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_host_with_ipv6_only_and_a_full_directory_for_temporary_files_runs_a_job(
    home: Path,
) -> None:
    """In namespaces of its own; both at once, as a job that is started cold takes long."""
    ipv6_only = (
        "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && ip -6 addr add fd00::1/64 dev lo"
    )
    tries = ["unshare", "--net", "sh", "-c", ipv6_only]
    if not may_mount() or shutil.which("ip") is None:
        pytest.skip("needs the right to mount in a namespace of its own, and ip")
    if subprocess.run(tries, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a network namespace")
    (home / "full").mkdir()
    no_room = (
        "mount -t tmpfs -o size=64k none full && export TMPDIR=$PWD/full"
        " && { head -c 1M /dev/zero > full/fill 2> out.txt; true; }"
    )
    run = f"exec {sys.executable} -m pliant run --max 2 train.py 12"

    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", f"{ipv6_only} && {no_room} && {run}"],
        cwd=home,
        env=environment(home) | {"PACE": "0.1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert digest_alone(home) in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
@pytest.mark.parametrize(("owner", "mode"), [(65534, 0o755), (0, 0o777), (65534, 0o1777)])
def test_a_directory_that_others_may_change_is_refused(home: Path, owner: int, mode: int) -> None:
    """They could put links there before the run does."""
    (home / "shared").mkdir()
    (home / "link").symlink_to("shared")
    os.chown(home / "shared", owner, owner)
    (home / "shared").chmod(mode)

    for out in ("shared", "link"):
        done = pliant(home, "run", "--out", out, "train.py", "2")

        assert done.returncode == 2
        assert "could replace what the run writes there; choose" in done.stderr
        assert list((home / "shared").iterdir()) == []


def test_a_pipe_under_the_name_of_a_file_of_the_run_is_refused(home: Path) -> None:
    (home / "out").mkdir()
    os.mkfifo(home / "out" / run_files.REGISTER)

    done = pliant(home, "run", "--out", "out", "train.py", "2")

    assert done.returncode == 2
    assert f"{run_files.REGISTER} is no file; remove it, or choose another --out" in done.stderr


@pytest.mark.parametrize(
    "stop", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]
)
def test_a_job_whose_register_does_not_answer_can_be_stopped(home: Path, stop: int) -> None:
    """Another process holds it, as one does that was stopped while it wrote."""
    (home / "out").mkdir(mode=0o700)
    with locked(home / "out" / "register.lock"):
        run = subprocess.Popen(
            [sys.executable, "-m", "pliant", "run", "--out", "out", "train.py", "2"],
            cwd=home,
            env=environment(home),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while not any(path.endswith("register.lock") for path in open_files(run.pid)):
            threading.Event().wait(0.05)
        run.send_signal(stop)
        _, said = run.communicate(timeout=WAIT_S)

    assert run.returncode == 3, said
    assert said.startswith("pliant: stopped before the job had started: the files in ")
    assert len(said.splitlines()) == 1


def open_files(pid: int) -> list[str]:
    return [opened.path for opened in psutil.Process(pid).open_files()]
