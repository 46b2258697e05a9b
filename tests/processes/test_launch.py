"""Whole jobs with real processes: they start, end, are killed, and leave nothing behind.

The workers are fake (no torch), so that only launching is tested; see ``fake_worker``.
"""

from __future__ import annotations

import os
import signal
import socket
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.processes.launching import FAKE_WORKER, running
from tests.processes.plainly import said_by_python

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

Script = Callable[[str], Path]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_a_job_runs_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 20, 0.01) as job:
        assert job.exit_code() == 0, job.said()

        assert [r["step"] for r in job.records("commit")] == list(range(20))
        assert job.records("job_ended")[0]["exit_code"] == 0
        assert {r["exited_kind"] for r in job.records("exited")} == {"finished"}
        job.assert_nothing_is_left()


def test_what_a_replica_prints_is_in_its_file(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 3, 0.01, replicas=1) as job:
        assert job.exit_code() == 0, job.said()

        lines = (job.out / "logs" / "r1.log").read_text().splitlines()
        pid = job.records("worker")[0]["pid"]
        assert lines == [f"fake worker ['3', '0.01'] {pid}", "fake worker ends"]


def test_killing_the_process_of_coordinator_and_agent_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 10_000, 0.01) as job:
        job.wait_for_steps(3)
        assert len(job.processes()) == 4
        assert job.token_path.stat().st_mode & 0o777 == 0o600

        job.process.kill()

        job.exit_code()
        job.assert_nothing_is_left()


def test_killing_it_while_everything_starts_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 10_000, 0.01) as job:
        job.wait_for(lambda: len(job.processes()) >= 2, "the fork server starts")

        job.process.kill()

        job.exit_code()
        job.assert_nothing_is_left()


def test_a_killed_worker_is_replaced_under_a_new_name(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 10_000, 0.02) as job:
        job.wait_for_steps(3)
        os.kill(job.pid_of("r2"), signal.SIGKILL)
        job.pid_of("r3")
        job.stop()

        exited = {r["replica"]: (r["exited_kind"], r["detail"]) for r in job.records("exited")}
        assert exited["r2"] == ("signal", "SIGKILL")
        job.assert_nothing_is_left()


def test_the_helpers_of_a_killed_worker_die_within_a_second(tmp_path: Path, script: Script) -> None:
    path = script(f"""
        import multiprocessing, os, subprocess, sys, time
        helpers = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))]
        helpers[0].start()
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        sys.argv = ["x", "10000", "0.01"]
        exec(open({str(FAKE_WORKER)!r}).read())
    """)
    with running(tmp_path, path, replicas=1) as job:
        job.wait_for_steps(3)
        helpers = psutil.Process(job.pid_of("r1")).children(recursive=True)
        assert len(helpers) == 2

        os.kill(job.pid_of("r1"), signal.SIGKILL)

        _, alive = psutil.wait_procs(helpers, timeout=1.0)
        assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_script_that_raises_ends_the_job_after_its_restarts(
    tmp_path: Path, script: Script
) -> None:
    path = script("""
        def inner():
            raise ValueError("broken on purpose")
        inner()
    """)
    with running(tmp_path, path, replicas=1, restarts=1) as job:
        assert job.exit_code() == 1, job.said()

        text = job.records("traceback")[0]["text"]
        assert text == said_by_python(path)
        assert text.endswith("ValueError: broken on purpose\n")
        assert text in (job.out / "logs" / "r1.log").read_text()
        exits = [(r["exited_kind"], r["detail"]) for r in job.records("exited")]
        assert exits == [("script", "ValueError: broken on purpose")] * 2
        job.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("print('no session')", 2, "without opening a pliant.Session"),
        ("import sys; sys.exit(0)", 2, "without opening a pliant.Session"),
        ("import sys; sys.exit(2)", 2, "exited with code 2"),
        ("import sys; sys.exit(7)", 1, "exited with code 7"),
        ("import os; os._exit(0)", 2, "ended with code 0"),
        (
            "from pliant.core.errors import ConfigError\nraise ConfigError('7 does not divide 64')",
            2,
            "7 does not divide 64",
        ),
        ("def f(:\n", 1, "SyntaxError"),
    ],
)
def test_the_end_of_a_script_becomes_the_jobs_exit_code(
    tmp_path: Path, script: Script, text: str, code: int, reason: str
) -> None:
    with running(tmp_path, script(text), replicas=1, restarts=0) as job:
        assert job.exit_code() == code, job.said()

        assert reason in job.records("exited")[0]["detail"]
        assert reason in job.records("job_ended")[0]["reason"]
        job.assert_nothing_is_left()


SHARES = """
    import os, signal, sys, subprocess
    from multiprocessing import shared_memory
    from pathlib import Path
    shared = shared_memory.SharedMemory(create=True, size=100)
    subprocess.Popen(["sleep", "1000"])
    with Path(__file__).with_name("names").open("a") as file:
        print(shared.name, file=file)
"""


@pytest.mark.parametrize("ends", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_shared_memory_of_a_script_is_removed_with_its_worker(
    tmp_path: Path, script: Script, ends: str
) -> None:
    """By Python's resource tracker, which was once killed with the group of its worker."""
    with running(tmp_path, script(SHARES + f"    {ends}\n"), replicas=1, restarts=0) as job:
        job.exit_code()
        job.assert_nothing_is_left()

    names = (job.directory / "names").read_text().split()
    assert names
    assert [name for name in names if Path("/dev/shm", name).exists()] == []


def test_ctrl_c_once_stops_at_a_step_boundary(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 10_000, 0.01) as job:
        job.wait_for_steps(3)

        job.process.send_signal(signal.SIGINT)

        assert job.exit_code() == 3, job.said()
        job.assert_nothing_is_left()


def test_sigterm_is_like_ctrl_c_once(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 10_000, 0.01) as job:
        job.wait_for_steps(3)

        job.process.send_signal(signal.SIGTERM)

        assert job.exit_code() == 3, job.said()
        job.assert_nothing_is_left()


def test_a_closed_terminal_is_like_ctrl_c_once_and_the_log_says_how_to_go_on(
    tmp_path: Path,
) -> None:
    with running(tmp_path, FAKE_WORKER, 10_000, 0.01) as job:
        job.wait_for_steps(3)

        job.process.send_signal(signal.SIGHUP)

        assert job.exit_code() == 3, job.said()
        said = [record["text"] for record in job.records("note")]
        assert f"the terminal was closed; to go on: pliant resume {job.out}" in said
        job.assert_nothing_is_left()


def test_ctrl_c_twice_ends_at_once(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 10_000, 5.0) as job:
        job.wait_for(lambda: len(job.records("switched")) >= 1, "training")

        job.process.send_signal(signal.SIGINT)
        job.wait_for(lambda: job.records("stop_requested"), "the first is heard")
        job.process.send_signal(signal.SIGINT)

        assert job.exit_code() == 130, job.said()
        job.assert_nothing_is_left()


def test_a_port_in_use_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(tmp_path, FAKE_WORKER, 10, 0.01, port=port) as job:
            assert job.exit_code() == 2

            assert job.said() == f"port {port} of 127.0.0.1 is in use; choose another with --port\n"
            job.assert_nothing_is_left()


def test_of_two_jobs_that_take_a_name_at_once_one_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (tmp_path / "state").mkdir()
    other.mkdir()
    (other / "state").symlink_to(tmp_path / "state")
    with (
        running(tmp_path, FAKE_WORKER, 10_000, 0.01, replicas=1) as one,
        running(other, FAKE_WORKER, 10_000, 0.01, replicas=1) as two,
    ):
        both, waiting = (one, two), threading.Event()
        while not any(job.process.poll() is not None for job in both):
            assert not waiting.wait(0.02)
        refused, goes_on = both if one.process.poll() is not None else both[::-1]

        assert refused.exit_code() == 2
        assert refused.said().startswith("a job named job is running already")
        goes_on.wait_for_steps(3)
        assert goes_on.record_path.exists()


def test_a_stopped_coordinator_takes_nobody_for_silent(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 10_000, 0.02, settings={"heartbeat_s": 1.5}) as job:
        job.wait_for_steps(3)

        job.process.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            _wait(job.process.pid, 4.0)
        job.process.send_signal(signal.SIGCONT)
        job.wait_for_steps(len(job.records("commit")) + 100)
        job.stop()

        assert {r["exited_kind"] for r in job.records("exited")} == {"finished"}


def test_a_stopped_worker_is_lost_after_its_deadline(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 10_000, 0.02, settings={"heartbeat_s": 1.5}) as job:
        job.wait_for_steps(3)

        os.kill(job.pid_of("r2"), signal.SIGSTOP)
        job.pid_of("r3")
        job.stop()

        job.assert_nothing_is_left()


def _wait(pid: int, timeout_s: float) -> None:
    """Wait for a process that is expected not to end."""
    try:
        psutil.Process(pid).wait(timeout_s)
    except psutil.TimeoutExpired as error:
        raise TimeoutError from error
