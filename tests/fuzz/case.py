"""Lets recipes happen to real jobs, many of them one after another and several side by side.

Owns the processes of a case and the events that are done to them: a zygote forks a stage per
case (``tests/live/zygote.py``), which forks the script alone and then the job.  Kills are
SIGKILL.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from tests.fuzz import generator, script
from tests.fuzz.generator import Event
from tests.fuzz.script import Permits
from tests.live import forking
from tests.processes import launching
from tests.processes.elastic import Outcome

from pliant.observe.log import Record

DEADLINE_S = 60.0
"""Longest life of a job, and of the script alone, in seconds."""

SETTLE_S = 3.0
"""Longest wait for an event to show its effect before the next may come, in seconds."""

READY_S = 1.5
"""Longest time the members stand still while a new replica starts, in seconds."""

LEAK_S = 0.02
"""Between two steps while an event is on its way in, in seconds."""

LOOK_S = 0.005

# --- the case ------------------------------------------------------------------------------


class Case:
    """One case: the script alone, the job with its events, and what came out of both."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recipe = generator.parse((directory / "recipe.txt").read_text())
        self._permits = Permits(directory / "permits")
        self._events = Events(directory / "out" / "events.jsonl")
        self._tails = Lines(directory / "tails")
        self._committed = 0
        self._num_steps = 0
        self._job = 0
        self._code: int | None = None
        self._killed: set[str] = set()
        self.counts: Counter[str] = Counter()

    def play(self) -> None:
        """Play the case and write down what came of it."""
        start_s = time.monotonic()
        trouble = ""
        try:
            self._play()
        except Exception:  # a process boundary: becomes the test's failure
            trouble = traceback.format_exc()
        finally:
            forking.end_children()
        took_s = time.monotonic() - start_s
        result = {"trouble": trouble, "counts": self.counts, "took_s": took_s}
        (self._directory / "result.json").write_text(json.dumps(result))

    def _play(self) -> None:
        for part in ("out", "tmp", "alone"):
            (self._directory / part).mkdir()
        reference = self._alone()
        self._job = self._run_job()
        for event in self._recipe.events:
            if not self._wait_for_step(event.step):
                self.counts["event too late"] += 1
            elif not self._do(event):
                self.counts["event for nobody"] += 1
        self._permits.allow(1 << 40)
        self._wait(lambda: not self._is_on(), DEADLINE_S)
        assert self._code is not None, f"the job does not end\n{self._story()}"
        assert self._code == 0, f"the job ended with code {self._code}\n{self._story()}"
        self._check(*reference)
        self._count()

    def _alone(self) -> tuple[str, dict[str, str]]:
        out = self._directory / "alone"
        pid = self._fork(self._script("--out", out), said=out / "said.txt")
        status = self._wait(lambda: _ended(pid), DEADLINE_S)
        assert status == (0,), f"alone: {(out / 'said.txt').read_text()}"
        (line,) = Lines(out / "digests").new()
        self._num_steps = line["committed"]
        return line["digest"], line["parts"]

    def _run_job(self) -> int:
        job = launching.arguments(
            self._directory,
            *self._script("--out", self._directory, "--permits", self._directory / "permits"),
            replicas=self._recipe.max_replicas,
            start=self._recipe.start_replicas,
            restarts=10_000,
            server="forked",
        )
        return self._fork([launching.RUN_JOB, job], said=self._directory / "said.txt")

    def _script(self, *options: object) -> list[object]:
        return [script.__file__, "--recipe", self._directory / "recipe.txt", *options]

    def _fork(self, words: list[object], *, said: Path) -> int:
        """Start a program of the case; return its process id."""
        return forking.fork(
            lambda: forking.run(
                [str(word) for word in words],
                cwd=str(Path.cwd()),
                environment=launching.environment(self._directory),
                out=str(said),
            )
        )

    # --- what is done to the job --------------------------------------------------------

    def _wait_for_step(self, step: int) -> bool:
        """Let the job come to the tail that makes ``step`` steps, and stand there."""
        self._permits.allow(step - 1)
        self._wait(lambda: self._steps() >= step or not self._is_on(), DEADLINE_S)
        return self._is_on() and self._steps() < self._num_steps

    def _do(self, event: Event) -> bool:
        """Do it and, if it says so, wait until it has shown its effect."""
        orders = self._events.num_orders
        if event.kind == "scale":
            is_new = event.number != len(self._events.members)
            self._post("scale", {"target": event.number})
            self.counts["scale"] += 1
            if not (is_new and event.waits):
                return True
            self._wait(lambda: self._events.num_orders > orders, READY_S)
        else:
            self._leak(lambda: bool(self._chosen(event)), READY_S)
            chosen = self._chosen(event)
            if not chosen:
                return False
            for name in chosen:
                if event.kind == "drain":
                    self._post(f"replicas/{name}/drain", {"notice_s": 20.0})
                    self.counts["drain"] += 1
                else:
                    self._killed.add(name)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._events.pids[name], signal.SIGKILL)
                        self.counts["kill from outside"] += 1
        if event.waits:
            self._leak(
                lambda: self._events.num_orders > orders and self._events.is_formed(), SETTLE_S
            )
        return True

    def _chosen(self, event: Event) -> list[str]:
        """Return the replicas that the event is for, members or not; the survivor is never one."""
        spared = {self._recipe.survivor, *self._killed, *self._events.exited}
        alive = [name for name in self._events.pids if name not in spared]
        first = event.number % len(alive) if alive else 0
        turned = alive[first:] + alive[:first]
        return turned[: 2 if event.kind == "kill two" else 1]

    def _post(self, what: str, body: dict[str, Any]) -> None:
        record = json.loads((self._directory / "state/pliant/jobs/job.json").read_text())
        token = (self._directory / "state/pliant/jobs/job.token").read_text()
        with contextlib.suppress(httpx.TransportError):  # it ends at this moment
            httpx.post(
                f"{record['url']}/v1/{what}",
                json=body,
                headers={"Authorization": f"Bearer {token}"},
                trust_env=False,
            )  # a refusal is an answer too

    def _leak(self, is_over: Callable[[], bool], timeout_s: float) -> None:
        """Let the job go on step by step until something has happened."""
        self._events.look()
        until_s = time.monotonic() + timeout_s
        while self._is_on() and time.monotonic() < until_s and not is_over():
            if self._steps() >= self._num_steps - 1:
                return
            self._permits.allow(self._steps())
            time.sleep(LEAK_S)
            self._events.look()

    # --- what is seen of it -------------------------------------------------------------

    def _is_on(self) -> bool:
        if self._code is None and (status := _ended(self._job)):
            self._code = status[0]
        return self._code is None

    def _steps(self) -> int:
        """Return how many steps have come to their tail."""
        for line in self._tails.new():
            self._committed = max(self._committed, line["step"] + 1)
        return self._committed

    def _wait(self, what: Callable[[], Any], timeout_s: float) -> Any:
        """Return the first true answer; whatever it is when the time is over."""
        until_s = time.monotonic() + timeout_s
        while not (answer := what()) and time.monotonic() < until_s:
            time.sleep(LOOK_S)
            self._events.look()
        return answer

    def _story(self) -> str:
        self._events.look()
        last = "\n".join(json.dumps(record) for record in self._events.records[-25:])
        return f"{last}\n{(self._directory / 'said.txt').read_text()[-3000:]}"

    # --- what came out of it --------------------------------------------------------------

    def _check(self, digest: str, reference: dict[str, str]) -> None:
        left = self._wait(lambda: not (forking.children() or self._files()), 5.0)
        assert left, f"left behind: processes {forking.children()}, files {self._files()}"
        job: Any = SimpleNamespace(out=self._directory / "out", said=self._story)
        outcome = Outcome(job, self._directory, self._num_steps)
        fell_through = [line for line in outcome.digests if not line["committed"]]
        outcome.digests = [line for line in outcome.digests if line["committed"]]
        for line in outcome.digests:
            odd = [name for name, found in line["parts"].items() if found != reference.get(name)]
            odd += [name for name in reference if name not in line["parts"]]
            assert not odd, f"{line['replica']} differs from the run alone in {', '.join(odd)}"
        outcome.check(digest)
        self.counts["fell through"] = len(fell_through)

    def _files(self) -> list[str]:
        """List what a job removes when it ends, and what it never leaves."""
        pids = {str(pid) for pid in self._events.pids.values()}
        shared = [p for p in Path("/dev/shm").iterdir() if pids & set(p.name.split("_"))]
        runtime = (self._directory / "state").rglob("job*.*")
        temporary = [
            path
            for path in (self._directory / "tmp").iterdir()
            if not path.name.startswith("torchinductor_")  # a cache per user, as it is alone
        ]
        return [str(path) for path in (*shared, *runtime, *temporary)]

    def _count(self) -> None:
        self._events.look()
        records = self._events.records
        placed = {fault.partition("@")[0]: fault for fault in self._recipe.faults}
        ended = {record["replica"] for record in records if record["kind"] == "end_replica"}
        for record in records:
            if record["kind"] != "exited" or record["exited_kind"] != "signal":
                continue
            name = record["replica"]
            if name in placed and name not in self._killed | ended:
                point = placed[name].partition("@")[2].partition(":")[0]
                self.counts[f"death at {point}"] += 1
        starters = self._recipe.start_replicas
        spares = {record["replica"] for record in records if record["kind"] == "spare"}
        self.counts["join"] = max(0, len(spares) - starters)
        self.counts["generation"] = self._events.num_orders


class Lines:
    """A file of JSON lines that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[Any]:
        """Return the lines that were not there at the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class Events:
    """What a job's own log says of it."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)
        self.records: list[Record] = []
        self.members: list[str] = []
        self.num_orders = 0
        self.pids: dict[str, int] = {}
        self.exited: set[str] = set()
        self._generation = 0
        self._switched: set[str] = set()

    def look(self) -> None:
        """Read on."""
        for record in self._lines.new():
            self.records.append(record)
            if record["kind"] in ("switch", "reform"):
                self.members = [seat["replica"] for seat in record["order"]["members"]]
                self._generation = record["order"]["generation"]
                self._switched = set()
                self.num_orders += 1
            elif record["kind"] == "switched" and record["generation"] == self._generation:
                self._switched.add(record["replica"])
            elif record["kind"] == "worker":
                self.pids[record["replica"]] = record["pid"]
            elif record["kind"] == "exited":
                self.exited.add(record["replica"])

    def is_formed(self) -> bool:
        """Whether all members of the newest generation are in it."""
        return bool(self.members) and self._switched >= set(self.members)


def _ended(pid: int) -> tuple[int] | None:
    """Return the exit code of a child in a tuple; None while it lives."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return (-1,)
    return (os.waitstatus_to_exitcode(status),) if found else None


def play(control: socket.socket) -> None:
    """Play the case of the directory that the test names."""
    Case(Path(os.fsdecode(control.recv(1 << 12)))).play()
