"""Scripts as torchrun starts them, whose processes are started again at each change of size."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.processes.launching import RunningJob, running

from pliant.restart.processes import free_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("as_it_is.py")


class Restarted:
    """A job in restart mode, and what its script has written."""

    def __init__(self, job: RunningJob, directory: Path) -> None:
        self.job = job
        self.directory = directory

    def lines(self, name: str) -> list[dict[str, Any]]:
        return self.lines_of(self.directory / name)

    @staticmethod
    def lines_of(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def await_size(self, size: int, *, after: int = 0) -> list[dict[str, Any]]:
        """Return how the newest processes were started, once there are so many of one size."""

        def look() -> list[dict[str, Any]]:
            newest = self.lines("starts")[after:][-size:]
            ranks = {one["rank"] for one in newest if one["WORLD_SIZE"] == str(size)}
            return newest if ranks == set(range(size)) else []

        found = self.job.wait_for(look, f"{size} processes")
        self.job.wait_for(lambda: all(map(_lives, (one["pid"] for one in found))), "they run")
        return list(found)

    def await_calls(self) -> None:
        """Wait until all processes of the newest generation ask for events."""
        newest = max(one["generation"] for one in self.job.records("switched"))
        asked = [one["step"] for one in self.job.records("commit")]

        def has_called() -> bool:
            made = [one for one in self.job.records("commit") if one["generation"] == newest]
            return bool(made) and made[-1]["step"] > max(asked, default=0) + 20

        self.job.wait_for(has_called, "all ask for events")

    def scale(self, target: int) -> None:
        with self.job.client() as client:
            client.post("/v1/scale", json={"target": target}).raise_for_status()

    def end(self, code: int = 0) -> None:
        (self.directory / "over").touch()
        assert self.job.exit_code() == code, self.job.said()
        self.job.assert_nothing_is_left()

    @property
    def notes(self) -> str:
        return "\n".join(one["text"] for one in self.job.records("note"))


@contextmanager
def restarted(tmp_path: Path, *words: str, **options: Any) -> Iterator[Restarted]:
    with running(tmp_path, SCRIPT, tmp_path, *words, mode="restart", **options) as job:
        yield Restarted(job, tmp_path)


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid)


def test_it_grows_and_shrinks_from_its_own_checkpoint(tmp_path: Path) -> None:
    with restarted(tmp_path, replicas=3, start=1) as run:
        run.await_size(1)
        run.job.wait_for(lambda: (tmp_path / "kept").exists(), "it keeps its count")
        run.scale(3)
        three = run.await_size(3)
        run.scale(2)
        two = run.await_size(2)
        run.end()

    assert all(one["step"] > 0 for one in (*three, *two)), "it goes on"
    assert {one["TORCHELASTIC_RESTART_COUNT"] for one in (*three, *two)} == {"0"}
    starts = run.lines("starts")
    assert len(starts) == 1 + 3 + 2, "both newcomers join at once"


def test_each_process_is_told_what_torchrun_tells(tmp_path: Path) -> None:
    with restarted(tmp_path, replicas=2, workers=2, restarts=7) as run:
        told = sorted(run.await_size(4), key=lambda one: int(one["rank"]))
        run.end()

    assert [one["LOCAL_RANK"] for one in told] == ["0", "1", "0", "1"]
    assert [one["GROUP_RANK"] for one in told] == ["0", "0", "1", "1"]
    assert [one["ROLE_RANK"] for one in told] == ["0", "1", "2", "3"]
    alike = {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_MAX_RESTARTS": "7",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    for one in told:
        assert {name: one.get(name) for name in alike} == alike
    assert len({one["MASTER_PORT"] for one in told}) == 1
    assert len({one["TORCHELASTIC_ERROR_FILE"] for one in told}) == 4


def test_all_are_started_again_where_one_is_killed(tmp_path: Path) -> None:
    with restarted(tmp_path, replicas=2) as run:
        victim = run.await_size(2)[0]
        os.kill(victim["pid"], signal.SIGKILL)
        again = run.await_size(2, after=2)
        run.end()

    assert {one["TORCHELASTIC_RESTART_COUNT"] for one in again} == {"1"}
    assert victim["pid"] not in {one["pid"] for one in again}
    assert f"rank {victim['rank']} (r" in run.notes
    assert "was ended by SIGKILL; all processes end, and start again" in run.notes
    assert not run.job.records("exited") or {
        one["exited_kind"] for one in run.job.records("exited")
    } == {"finished"}, "no replica was lost"


def test_a_script_that_always_fails_ends_the_job_with_its_traceback(tmp_path: Path) -> None:
    with restarted(tmp_path, replicas=2, restarts=1) as run:
        run.await_size(2)
        (tmp_path / "fail-1").touch()
        run.await_size(2, after=2)
        (tmp_path / "fail-0").touch()
        assert run.job.exit_code() == 1
        run.job.assert_nothing_is_left()
        (ended,) = run.job.records("end_job")
        tracebacks = [one["text"] for one in run.job.records("traceback")]

    assert ended["reason"].startswith("the script has failed 2 times within 600 s; last: rank 0 (r")
    assert ended["reason"].endswith("exited with code 1: ValueError: no such sample")
    assert any(
        "as_it_is.py" in text and "ValueError: no such sample" in text for text in tracebacks
    )


def test_who_is_done_waits_for_the_others(tmp_path: Path) -> None:
    with restarted(tmp_path, replicas=3, start=2) as run:
        run.await_size(2)
        (tmp_path / "end-1").touch()
        run.job.wait_for(lambda: run.job.records("finished"), "one has finished")
        assert run.job.process.poll() is None, "the other runs on"
        run.scale(3)
        run.job.wait_for(lambda: len(run.job.records("spare")) >= 3, "one more has come")
        run.end()

    assert len(run.lines("starts")) == 2, "and waits until the others are done"


def test_what_is_deaf_to_sigterm_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    (tmp_path / "deaf-0").touch()
    with restarted(
        tmp_path, replicas=2, start=1, policy={"graceful_shutdown_timeout_s": 0.5}
    ) as run:
        run.await_size(1)
        run.scale(2)
        run.await_size(2)
        (tmp_path / "deaf-0").unlink()
        run.end()

    assert "stopped from 1 to 2: rank 0 forced (SIGKILL)" in run.notes


def test_it_is_stopped_on_request_and_by_ctrl_c(tmp_path: Path) -> None:
    with restarted(tmp_path, replicas=2) as run:
        run.await_size(2)
        run.job.stop()
        run.job.assert_nothing_is_left()

    assert "stopped for good: ranks 0-1 forced (SIGTERM)" in run.notes


@pytest.mark.parametrize("who", ["agent and coordinator", "fork server", "restart worker"])
def test_no_process_outlives_who_has_started_it(tmp_path: Path, who: str) -> None:
    with restarted(tmp_path, replicas=2) as run:
        pids = [one["pid"] for one in run.await_size(2)]
        server = run.job.fork_server()
        if who == "restart worker":
            os.kill(psutil.Process(pids[0]).ppid(), signal.SIGKILL)
        else:
            (server if who == "fork server" else psutil.Process(run.job.process.pid)).kill()
        run_on = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        _, alive = psutil.wait_procs(run_on, timeout=10)
        if who == "agent and coordinator":
            assert not alive
            return
        run.await_size(2, after=2)
        assert not any(one.is_running() for one in run_on)
        run.end()


def test_all_see_an_event_at_the_same_call_and_acknowledge_it(tmp_path: Path) -> None:
    with restarted(tmp_path, "--event", replicas=3, start=2, workers=1) as run:
        run.await_size(2)
        run.await_calls()
        run.scale(3)
        run.await_size(3)
        run.await_calls()
        run.scale(1)
        run.await_size(1)
        run.await_calls()
        run.job.stop()

    grown, shrunk, stopped = (
        [one for one in run.lines("seen") if one["sizes"] == sizes]
        for sizes in ([2, 3], [3, 1], [1, 0])
    )
    assert [len({one["call"] for one in some}) for some in (grown, shrunk, stopped)] == [1, 1, 1]
    assert sorted(one["rank"] for one in grown) == [0, 1]
    assert [one["leaving"] for one in sorted(shrunk, key=lambda one: one["rank"])] == [
        False,
        True,
        True,
    ]
    assert stopped[0]["reason"] == "stop"
    call = grown[0]["call"]
    assert f"stopped from 2 to 3, at call {call} of elastic_event: rank" in run.notes
    assert f"acknowledged step {grown[0]['step']} ({tmp_path}/kept)" in run.notes
    assert len(run.lines("starts")) == 2 + 3 + 1


def test_three_ways_to_end_are_told_apart_with_what_they_cost(tmp_path: Path) -> None:
    for name in ("mute-1", "mute-2", "stay-2", "silent-3"):
        (tmp_path / name).touch()
    with restarted(
        tmp_path,
        "--event",
        replicas=4,
        policy={"graceful_shutdown_timeout_s": 1.0},
    ) as run:
        run.await_size(4)
        run.await_calls()
        run.scale(1)
        run.await_size(1)
        run.end()

    (said,) = [line for line in run.notes.splitlines() if line.startswith("stopped from 4 to 1")]
    assert "rank 0 acknowledged step" in said
    assert "rank 1 exited with code 0 by itself" in said
    assert "ranks 2-3 forced (SIGTERM)" in said
    assert "called elastic_event differently often: " in run.notes
    assert "rank 3 0 times" in run.notes
    assert "ranks 2-3 had not acknowledged a save within 1 s: up to " in run.notes


def test_who_dies_while_it_saves_or_saves_late_is_told_with_the_cost(tmp_path: Path) -> None:
    for name in ("die-1", "late-2", "late-3", "deaf-3"):
        (tmp_path / name).touch()
    with restarted(
        tmp_path, "--event", replicas=4, policy={"graceful_shutdown_timeout_s": 1.0}
    ) as run:
        run.await_size(4)
        run.await_calls()
        run.scale(1)
        run.await_size(1)
        run.end()

    (said,) = [line for line in run.notes.splitlines() if line.startswith("stopped from 4 to 1")]
    assert "rank 1 ended by SIGKILL" in said
    assert "rank 2 forced (SIGTERM)" in said
    assert re.search(r"ranks? (0, )?3 acknowledged step", said)
    assert "rank 1 had not acknowledged a save when it failed: up to " in run.notes
    assert "rank 2 had not acknowledged a save within 1 s: up to " in run.notes
    assert {one["TORCHELASTIC_RESTART_COUNT"] for one in run.lines("starts")} == {"0"}


def test_who_does_not_print_what_a_log_rule_asks_for_is_replaced(tmp_path: Path) -> None:
    script = tmp_path / "prints.py"
    script.write_text(
        "import os, time, pathlib\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "(here / f'begun-{os.getpid()}').touch()\n"
        "first = len(list(here.glob('begun-*'))) <= 2\n"
        "while not (here / 'over').exists():\n"
        "    time.sleep(0.1)\n"
        "    if os.environ['RANK'] == '0' or not first:\n"
        "        print('loss', 1, flush=True)\n"
    )
    rule = {"name": "start", "log_pattern": "loss", "expected_start_cut_off_s": 2.0}
    with running(tmp_path, script, mode="restart", replicas=2, rules=[rule]) as job:
        job.wait_for(lambda: len(list(tmp_path.glob("begun-*"))) >= 4, "all are started again")
        time.sleep(3)
        (tmp_path / "over").touch()
        assert job.exit_code() == 0, job.said()
        (ended,) = [one for one in job.records("exited") if one["exited_kind"] == "script"]
        job.assert_nothing_is_left()

    assert ended["detail"] == "log rule start: no line matched within 2 s"


def torchrun(directory: Path, *words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from pliant.cli.torchrun import main; main()"]
    return subprocess.run(
        [*command, *map(str, words)],
        cwd=directory,
        env={**os.environ, "XDG_STATE_HOME": str(directory / "state"), **environ},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_command_line_of_torchrun_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "over").touch()
    (tmp_path / "before.sh").write_text('echo "$@" > before\n')
    words = ["--standalone", "--nproc-per-node=2", "--role=trainer", "--tee=3", "--log-dir=logs"]
    words += ["--pre-train-script=before.sh", "--pre-train-args=a b", "--monitor-interval=5"]
    words += ["--post-train-script=missing.sh"]
    found = torchrun(tmp_path, *words, SCRIPT, tmp_path)

    assert found.returncode == 1, found.stdout + found.stderr
    assert "without consequence here: --monitor-interval (the end of a process" in found.stderr
    starts = Restarted.lines_of(tmp_path / "starts")
    assert {(one["LOCAL_RANK"], one["ROLE_NAME"]) for one in starts} == {
        ("0", "trainer"),
        ("1", "trainer"),
    }
    assert (tmp_path / "before").read_text() == "a b\n"
    assert "r1 failed: missing.sh (post-train script) exited with code " in found.stderr
    (log,) = tmp_path.glob("logs/*/attempt_0/1/stdout.log")
    assert log.exists()


def test_a_program_that_is_no_python_runs_and_may_fail(tmp_path: Path) -> None:
    words = ("--max-restarts=1", "--no-python", "sh", "-c", "echo rank $RANK; exit 7")
    found = torchrun(tmp_path, *words)

    assert found.returncode == 1
    assert "the script has failed 2 times within 600 s; last: rank 0 (r1) exited with code 7" in (
        found.stderr
    )


JOB = """
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {{name: gpt}}
spec:
  mode: restart
  elasticPolicy: {{minReplicas: 1, maxReplicas: 2}}
  command: {command}
"""


def test_hosts_go_on_where_the_coordinator_or_one_of_them_dies(tmp_path: Path) -> None:
    file, port = tmp_path / "job.yaml", str(free_port("127.0.0.1"))
    file.write_text(JOB.format(command=json.dumps([str(SCRIPT), str(tmp_path), "--event"])))
    out = tmp_path / "out"
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path)}
    running: dict[str, subprocess.Popen[bytes]] = {}

    def pliant(name: str, *words: object) -> None:
        command = [sys.executable, "-m", "pliant", *map(str, words)]
        with (tmp_path / f"{name}.txt").open("ab") as said:
            running[name] = subprocess.Popen(
                command, cwd=tmp_path, env=environ, stdout=said, stderr=said
            )

    def starts(size: int) -> list[dict[str, Any]]:
        lines = Restarted.lines_of(tmp_path / "starts")
        return [one for one in lines if one["WORLD_SIZE"] == str(size)]

    def wait_for(what: Callable[[], object], why: str) -> None:
        until_s = time.monotonic() + 100
        while not what():
            said = "".join((tmp_path / f"{name}.txt").read_text() for name in running)
            assert time.monotonic() < until_s, f"{why}: {said}"
            time.sleep(0.05)

    try:
        pliant("coordinator", "coordinator", "--port", port, "--out", out, file)
        wait_for((out / "token").exists, "it serves")
        for node in ("a", "b"):
            join = ("--join", f"127.0.0.1:{port}", "--token-file", out / "token")
            pliant(node, "agent", *join, "--devices", 1, "--node", node)
        wait_for(lambda: len(starts(2)) == 2, "two train")
        wait_for((tmp_path / "kept").exists, "a step is kept")
        running["coordinator"].kill()
        running["coordinator"].wait()
        pliant("coordinator", "coordinator", "--port", port, "--out", out, file)
        wait_for(lambda: "another coordinator goes on" in said_by(tmp_path), "it takes over")
        running["b"].kill()
        wait_for(lambda: starts(1), "one goes on")
        (tmp_path / "over").touch()

        assert running["coordinator"].wait(60) == 0, said_by(tmp_path)
        assert running["a"].wait(60) == 0
        assert len(starts(2)) == 2, "nothing is started again for a new coordinator"
        assert starts(1)[0]["step"] > 0
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def said_by(directory: Path) -> str:
    return (directory / "coordinator.txt").read_text()


def test_what_a_process_has_started_is_ended_with_it(tmp_path: Path) -> None:
    script = tmp_path / "starts_others.py"
    script.write_text(
        "import os, pathlib, subprocess\n"
        "apart = os.environ['RANK'] == '1'\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=apart)\n"
        f"pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).write_text(str(child.pid))\n"
    )
    with running(tmp_path, script, mode="restart", replicas=2) as job:
        assert job.exit_code() == 0, job.said()
        job.assert_nothing_is_left()

    left = [int((tmp_path / rank).read_text()) for rank in ("0", "1")]
    assert not any(map(psutil.pid_exists, left))


def test_signals_do_what_the_table_says(tmp_path: Path) -> None:
    with restarted(tmp_path, replicas=1, restarts=5) as run:
        (first,) = run.await_size(1)
        restart_worker = psutil.Process(first["pid"]).ppid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT):
            os.kill(restart_worker, number)
        for times, number in enumerate((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT), 1):
            (newest,) = run.await_size(1, after=times - 1)
            os.kill(newest["pid"], number)
            run.job.wait_for(lambda: len(run.lines("starts")) == times + 1, "it starts again")  # noqa: B023
        run.await_size(1, after=3)
        assert {psutil.Process(one["pid"]).ppid() for one in run.lines("starts")[-1:]} == {
            restart_worker
        }
        run.end()


def test_it_is_suspended_goes_on_another_day_and_survives_the_loss_of_all(tmp_path: Path) -> None:
    with restarted(tmp_path, replicas=2) as run:
        run.await_size(2)
        with run.job.client() as client:
            client.post("/v1/suspend").raise_for_status()
        assert run.job.exit_code() == 3, run.job.said()
        run.job.assert_nothing_is_left()
    with restarted(tmp_path, replicas=2) as run:
        again = run.await_size(2, after=2)
        parents = [psutil.Process(one["pid"]).ppid() for one in again]
        for parent in parents:
            os.kill(parent, signal.SIGKILL)
        anew = run.await_size(2, after=4)
        run.end()

    assert all(one["step"] > 0 for one in (*again, *anew))
