"""A coordinator and agents as a cluster's pods are: told to end at any moment, and first processes.

Real processes on loopback.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pliant.core.errors import EXIT_OK

WAIT_S = 60.0
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
