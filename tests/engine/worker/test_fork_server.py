"""The fork server starts, kills and reaps workers, and leaves nothing when its agent is gone."""

from __future__ import annotations

import os
import signal
import socket
import textwrap
from pathlib import Path

import psutil
import pytest
from tests.processes.servant import DEADLINE_S, fork_server, starting_server

from pliant.core.values import ReplicaId
from pliant.engine.worker.fork_server import ForkServer
from pliant.wire.launch import GuardFiles, KillReplica

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


@pytest.fixture
def waits(tmp_path: Path) -> str:
    (tmp_path / "waits.py").write_text("import threading\nthreading.Event().wait()\n")
    return "waits.py"


@pytest.fixture
def crowd(tmp_path: Path) -> str:
    """A script with a forked helper, a subprocess, and a grandchild in a session of its own."""
    text = """
        import multiprocessing, subprocess, sys, threading
        fork = multiprocessing.get_context("fork")
        fork.Process(target=threading.Event().wait).start()
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
        )
        print("ready", flush=True)
        threading.Event().wait()
    """
    (tmp_path / "crowd.py").write_text(textwrap.dedent(text))
    return "crowd.py"


def gone(*processes: psutil.Process) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=DEADLINE_S)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


def helpers(pid: int, count: int) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    worker = psutil.Process(pid)
    for _ in range(500):
        found = worker.children(recursive=True)
        if len(found) == count:
            return found
        with pytest.raises(psutil.TimeoutExpired):
            worker.wait(0.02)
    raise AssertionError(found)


def test_a_killed_worker_is_reported_with_its_signal(tmp_path: Path, waits: str) -> None:
    with fork_server() as servant:
        worker = servant.start(tmp_path, waits)

        servant.ask(KillReplica(replica=ReplicaId("r1")))

        exited = servant.exit()
        assert (exited.replica, exited.pid, exited.returncode) == ("r1", worker.pid, -9)
        assert not psutil.pid_exists(worker.pid)


def test_a_stopped_worker_can_be_killed(tmp_path: Path, waits: str) -> None:
    with fork_server() as servant:
        worker = servant.start(tmp_path, waits)
        os.kill(worker.pid, signal.SIGSTOP)

        servant.ask(KillReplica(replica=ReplicaId("r1")))

        assert servant.exit().returncode == -9


def test_only_the_worker_that_is_meant_is_killed(tmp_path: Path, waits: str) -> None:
    with fork_server() as servant:
        first = servant.start(tmp_path, waits, name="r1")
        servant.start(tmp_path, waits, name="r2")

        servant.ask(KillReplica(replica=ReplicaId("unknown")))
        servant.ask(KillReplica(replica=ReplicaId("r2")))

        assert servant.exit().replica == "r2"
        assert psutil.pid_exists(first.pid)


def test_a_workers_helpers_end_with_it(tmp_path: Path, crowd: str) -> None:
    with fork_server() as servant:
        worker = servant.start(tmp_path, crowd)
        forked, piped, _ = helpers(worker.pid, 3)

        os.kill(worker.pid, signal.SIGKILL)

        servant.exit()
        assert gone(forked, piped)


def test_nothing_is_left_when_the_agent_is_gone(tmp_path: Path, crowd: str, waits: str) -> None:
    mine, theirs = tmp_path / "record.json", tmp_path / "other.json"
    mine.write_text("mine")
    theirs.write_text("old")
    with fork_server() as servant:
        servant.ask(GuardFiles(paths=(str(mine), str(theirs), str(tmp_path / "missing"))))
        worker = servant.start(tmp_path, crowd)
        other = servant.start(tmp_path, waits, name="r2")
        everyone = [*helpers(worker.pid, 3), psutil.Process(worker.pid), psutil.Process(other.pid)]
        fresh = tmp_path / "fresh"
        fresh.write_text("of another job by now")
        fresh.replace(theirs)

        servant.sock.close()

        assert servant.process.wait(DEADLINE_S) == 0
        assert gone(*everyone)
    assert not mine.exists()
    assert theirs.exists()


def test_where_workers_met_is_removed_when_the_agent_is_gone(tmp_path: Path, waits: str) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for directory in (mine, theirs):
        directory.mkdir()
        (directory / "socket").write_text("")
    with fork_server() as servant:
        for name, inner in (("r1", mine), ("r2", theirs)):
            for place in range(2):
                servant.start(tmp_path, waits, name=name, place=place, workers=2, inner=str(inner))
        servant.ask(GuardFiles(paths=(str(mine), str(theirs))))
        servant.start(tmp_path, waits, name="r3")
        theirs.rename(tmp_path / "removed")
        theirs.mkdir()
        (theirs / "of another by now").write_text("")

        servant.sock.close()

        assert servant.process.wait(DEADLINE_S) == 0
    assert not mine.exists()
    assert list(theirs.iterdir())


def test_what_an_agent_asked_for_that_died_first_is_removed(tmp_path: Path, waits: str) -> None:
    """It is killed while its fork server imports, as in the first seconds of every job."""
    token, meeting = tmp_path / "token", tmp_path / "meeting"
    token.write_text("secret")
    (meeting / "r1").mkdir(parents=True)
    with starting_server() as servant:
        servant.process.send_signal(signal.SIGSTOP)
        servant.ask(GuardFiles(paths=(str(token), str(meeting))))
        ends = servant.ask_to_start(tmp_path, waits, workers=2, inner=str(meeting / "r1"))

        for end in (*ends, servant.sock):
            end.close()
        servant.process.send_signal(signal.SIGCONT)

        assert servant.process.wait(DEADLINE_S) == 0
    assert not token.exists()
    assert not meeting.exists()


def test_all_workers_of_a_replica_are_killed_together(tmp_path: Path, waits: str) -> None:
    with fork_server() as servant:
        workers = [servant.start(tmp_path, waits, place=place, workers=3) for place in range(3)]
        other = servant.start(tmp_path, waits, name="r2")

        servant.ask(KillReplica(replica=ReplicaId("r1")))

        exits = [servant.exit() for _ in workers]
        assert sorted((one.place, one.returncode) for one in exits) == [(0, -9), (1, -9), (2, -9)]
        assert psutil.pid_exists(other.pid)


def test_workers_die_with_the_fork_server(tmp_path: Path, waits: str) -> None:
    with fork_server() as servant:
        worker = psutil.Process(servant.start(tmp_path, waits).pid)

        servant.process.kill()

        assert gone(worker)


def test_a_worker_is_out_of_reach_of_the_terminal(tmp_path: Path, waits: str) -> None:
    with fork_server() as servant:
        worker = servant.start(tmp_path, waits)

        assert os.getpgid(worker.pid) == worker.pid


def test_the_warm_fork_server_forks_with_one_thread_and_starts_workers_with_torch(
    tmp_path: Path,
) -> None:
    text = """
        import sys, threading
        assert "torch._dynamo" in sys.modules and "pliant.engine.session" in sys.modules
        import numpy, random, torch
        x = torch.randn(256, 256)
        torch.set_num_threads(2)
        print(float((x @ x).sum()) == float((x @ x).sum()))
        print(numpy.random.rand(), random.random())
    """
    (tmp_path / "warm.py").write_text(textwrap.dedent(text))
    with fork_server("-m", "pliant.engine.worker.fork_server") as servant:
        said = []
        for name in ("r1", "r2"):
            worker = servant.start(tmp_path, "warm.py", name=name)
            worker.messages()
            said.append(worker.said().splitlines())
            assert servant.exit().returncode == 0
        threads = list(Path(f"/proc/{servant.process.pid}/task").iterdir())

    assert len(threads) == 1  # the pool that OpenBLAS starts on import ends at the first fork
    assert [lines[0] for lines in said] == ["True", "True"]
    assert said[0][1] != said[1][1]


def test_what_is_gone_is_guarded_no_more(tmp_path: Path) -> None:
    """Each life of a replica of several workers has a directory; a long run has many."""
    ours, theirs = socket.socketpair()
    server = ForkServer(ours)

    for number in range(5):
        (tmp_path / str(number)).mkdir()
        server._guard([str(tmp_path / str(number))])
        (tmp_path / str(number)).rmdir()

    assert len(server._guarded) == 1
    for end in (ours, theirs):
        end.close()
    for descriptor in (server._child_r, server._child_w):
        os.close(descriptor)
