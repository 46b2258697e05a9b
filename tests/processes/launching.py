"""Starts whole jobs as a user would, in a process of their own, and counts what they leave."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil
from tests.live.stage import DEADLINE_S, Program, Stage, stage

from pliant.core.errors import EXIT_STOPPED
from pliant.observe.log import Record
from pliant.observe.reading import read

HERE = Path(__file__).parent
FAKE_WORKER = HERE / "fake_worker.py"
RUN_JOB = HERE / "run_job.py"

Server = Literal["cold", "warm", "forked"]
"""A fork server that imports nothing slow, one that imports torch, one forked with torch in it."""


@dataclass
class RunningJob:
    """One `run_job` in a process of its own."""

    process: Program
    name: str
    directory: Path
    stage: Stage

    @property
    def out(self) -> Path:
        return self.directory / "out"

    @property
    def record_path(self) -> Path:
        return self.directory / "state" / "pliant" / "jobs" / f"{self.name}.json"

    @property
    def token_path(self) -> Path:
        return self.record_path.with_suffix(".token")

    def records(self, kind: str | None = None) -> list[Record]:
        records = read(self.out / "events.jsonl")
        return [record for record in records if kind in (None, record["kind"])]

    def wait_for(self, what: Callable[[], Any], why: str) -> Any:
        """Return the first true answer of ``what``; fails after a deadline.

        A fork server that imports torch may take a minute where many others compute.
        """
        deadline_s = time.monotonic() + 2 * DEADLINE_S
        while time.monotonic() < deadline_s:
            answer = what()
            if answer:
                return answer
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the job ended with {self.process.returncode} before {why}: {self.said()}"
                )
            _nap()
        raise AssertionError(f"timed out before {why}: {self.records()[-5:]}")

    def wait_for_steps(self, num_steps: int) -> None:
        self.wait_for(lambda: len(self.records("commit")) >= num_steps, f"{num_steps} steps")

    def pid_of(self, replica: str) -> int:
        def find() -> int:
            found = [r["pid"] for r in self.records("worker") if r["replica"] == replica]
            return found[-1] if found else 0

        pid: int = self.wait_for(find, f"{replica} has a process")
        return pid

    def fork_server(self) -> psutil.Process:
        """Return the only child of the job's process."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def exit_code(self) -> int:
        return self.process.wait(DEADLINE_S)

    def stop(self) -> None:
        """Stop it as Ctrl-C does, which must end it in order."""
        self.process.send_signal(signal.SIGINT)
        assert self.exit_code() == EXIT_STOPPED, self.said()

    def said(self) -> str:
        return (self.directory / "said.txt").read_text()

    def client(self) -> httpx.Client:
        record = json.loads(self.wait_for(lambda: _text(self.record_path), "it can be found"))
        return httpx.Client(
            base_url=record["url"],
            headers={"Authorization": f"Bearer {self.token_path.read_text()}"},
            trust_env=False,
            timeout=DEADLINE_S,
        )

    def processes(self) -> list[psutil.Process]:
        """List every living process that this job ever started, whatever became of its parent."""
        return self.stage.processes()

    def leftovers(self) -> list[str]:
        """Name what is left of the job besides the files of its run."""
        pids = {str(record["pid"]) for record in self.records("worker")}
        shared_memory = [  # torch names its files torch_<pid>_...; others run jobs here as well
            path for path in Path("/dev/shm").iterdir() if pids & set(path.name.split("_"))
        ]
        runtime = [*self.record_path.parent.glob("*"), *self.record_path.parent.glob(".*")]
        return [
            *(f"process {process.pid} {_words(process)}" for process in self.processes()),
            *map(str, shared_memory),
            *(str(path) for path in runtime),
            *(  # torch keeps a cache of its own per user, as it does for python train.py
                str(path)
                for path in (self.directory / "tmp").iterdir()
                if not path.name.startswith("torchinductor_")
            ),
        ]

    def assert_nothing_is_left(self, within_s: float = 5.0) -> None:
        deadline_s = time.monotonic() + within_s
        while (left := self.leftovers()) and time.monotonic() < deadline_s:
            _nap()
        assert left == [], left


def newest_members(records: Iterable[Record]) -> tuple[int, set[str]]:
    """Return the newest generation and its members; nobody until each is in it."""
    known = list(records)
    orders = [one["order"] for one in known if one["kind"] in ("switch", "reform")]
    if not orders:
        return 0, set()
    number = orders[-1]["generation"]
    switched = [one for one in known if one["kind"] == "switched"]
    entered = {one["replica"] for one in switched if one["generation"] == number}
    names = {seat["replica"] for seat in orders[-1]["members"]}
    return number, names if names == entered else set()


@contextmanager
def running(
    directory: Path,
    *command: object,
    name: str = "job",
    warm: bool = False,
    forked: bool | None = None,
    cwd: Path | None = None,
    **options: Any,
) -> Iterator[RunningJob]:
    """Run a job; at the end nothing of it may live, whatever the test did.

    Warm means that its fork server imports torch.  Such a job is forked, and its fork server too,
    by a process that has done so, unless the test is of how processes start and end.
    """
    for part in ("out", "tmp"):
        (directory / part).mkdir(exist_ok=True, parents=True)
    said = directory / "said.txt"
    said.write_text("")
    forked = warm if forked is None else forked
    server: Server = "forked" if forked else "warm" if warm else "cold"
    job = arguments(directory, *command, name=name, server=server, **options)
    with stage(forked=forked) as here:
        process = here.start(RUN_JOB, job, cwd=cwd, out=said, environment=environment(directory))
        yield RunningJob(process, name, directory, here)


def arguments(
    directory: Path,
    *command: object,
    replicas: int = 2,
    start: int | None = None,
    name: str = "job",
    server: Server = "cold",
    settings: dict[str, float] | None = None,
    restarts: int = 2,
    port: int = 0,
    least: int = 1,
    pool: dict[str, str] | None = None,
    verify_every: int = 0,
    balance: str = "even",
    exchange: str = "auto",
    workers: int = 1,
    mode: str = "inPlace",
    limits: dict[str, float] | None = None,
    policy: dict[str, float] | None = None,
    rules: list[dict[str, Any]] | None = None,
    strict: bool = False,
) -> str:
    """Return what ``run_job.py`` is told of a job."""
    return json.dumps(
        {
            "name": name,
            "argv": [str(word) for word in command],
            "out": str(directory / "out"),
            "replicas": replicas,
            "start": start,
            "restarts": restarts,
            "verify_every": verify_every,
            "balance": balance,
            "exchange": exchange,
            "port": port,
            "least": least,
            "pool": pool,
            "server": server,
            "timeouts": settings or {},
            "workers": workers,
            "mode": mode,
            "limits": limits or {},
            "policy": policy or {},
            "rules": rules or [],
            "strict": strict,
        }
    )


def environment(directory: Path) -> dict[str, str]:
    """Return the environment of a program that keeps its files below this directory."""
    return {
        **os.environ,
        "XDG_STATE_HOME": str(directory / "state"),
        "TMPDIR": str(directory / "tmp"),
    }


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it ends while we look
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _nap() -> None:
    time.sleep(0.02)  # polling another process; deadlines are the callers'
