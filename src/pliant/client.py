"""Jobs and pools from Python: start, look at, resize, wait, for notebooks, schedulers and the CLI.

Owns what can be asked of a job or a pool as methods, and the way from a job that runs to its files
once it has ended.  Knows nothing of how answers are shown, and of which job a command is about.

    Job.submit("train.py", min=1, max=4) --> pliant run --detach --> Job
    Job("gpt").scale(3)                  --> http.client: the coordinator of this user's job here
    Job.at("gpu1:7000", token_file)      --> the same of a job that another host coordinates
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required, Self, TypedDict

from pliant.core.errors import ConfigError
from pliant.core.text import last_line
from pliant.core.values import TlsFiles
from pliant.http.client import TIMEOUT_S, Caller, rest_url
from pliant.machine import run_files
from pliant.machine.registry import (
    Handle,
    Served,
    StateDirectory,
    any_pool,
    running_jobs,
    wait_for_end,
)
from pliant.observe.history import read_history
from pliant.observe.log import Record
from pliant.observe.reading import counted, follow, unfolded
from pliant.observe.runs import ELSEWHERE, KILLED, find_run, find_running, run_in, status_of
from pliant.run.run_directory import read_token

AUDIT_S = 660.0
"""Longest wait for an audit, in seconds: more than it may take there."""

POLL_S = 0.2
"""Between two looks at what is waited for, in seconds."""

DEFAULT_NOTICE_S = 30.0

GONE = (KILLED, ELSEWHERE)
"""States of a run that has ended without an exit code."""


class Answer(TypedDict, total=False):
    """What a job or a pool said to a request that it accepted."""

    accepted: bool
    reason: Required[str]
    target_replicas: int | None
    """Of a job: how many replicas it is to have now."""

    step: int
    """Of a checkpoint that was asked for: committed steps that it has at least."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended."""

    state: str
    """``finished``, ``failed``, ``stopped``, ``suspended``, ``killed`` ..."""

    exit_code: int | None
    """None: it was killed."""

    reason: str
    step: int
    """Committed steps."""


class _Asked:
    """What answers over HTTP while it runs, and has an event log."""

    def __init__(self, name: str, handle: Handle | None) -> None:
        self.name = name
        """What it is called; of a job elsewhere its place."""

        self._handle = handle

    @property
    def out(self) -> Path | None:
        """Return where its files lie; None: on another host."""
        return self._handle.out if isinstance(self._handle, Served) else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        values = None if body is None else dict(body)
        with closing(self._caller()) as caller:  # nobody closes a job in a notebook
            return caller.ask(method, f"/v1/{path}", values, timeout_s=timeout_s)

    def _caller(self) -> Caller:
        handle = self._handle
        if handle is None or (isinstance(handle, Served) and handle.is_gone):
            self._handle = handle = self._found_again()
        return Caller(handle)

    def _found_again(self) -> Served:
        """Return what serves it now; unless something does, what is raised says what became of it.

        Raises:
            ConfigError: nothing does.
        """
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        """Return what it is doing; ``docs/reference/records.md`` has the fields.

        Raises:
            ConfigError: it does not answer.
        """
        found: dict[str, Any] = self._ask("GET", "status")
        return found

    def events(self, *, follow: bool = True) -> Iterator[Record]:
        """Yield the records of its event log, from the first that is left.

        Args:
            follow: wait for more until it has ended; False: end with the newest.
        """
        return counted(unfolded(self._records(is_followed=follow)))

    def _records(self, *, is_followed: bool) -> Iterator[Record]:
        pause, position = threading.Event(), 0
        while True:
            is_over = not is_followed or self._is_over()  # asked first: the last are not missed
            for after, record in self._after(position):
                position = after
                yield record
            if is_over:
                return
            pause.wait(POLL_S)

    def _after(self, position: int) -> Iterator[tuple[int, Record]]:
        if self.out is not None and self.out.stat().st_uid == os.geteuid():
            yield from follow(run_files.event_log(self.out), position)
            return
        page = self._ask("GET", f"events?after={position}")
        while page["records"]:
            yield from ((page["next"], record) for record in page["records"])
            page = self._ask("GET", f"events?after={page['next']}")

    def _is_over(self) -> bool:
        if isinstance(self._handle, Served):
            return self._handle.is_gone
        return _has_ended(self.status())

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        said: Answer = self._ask(method, path, body)
        return said


class Job(_Asked):
    """One job: running, or ended with its files still there."""

    def __init__(self, name: str | None = None, *, handle: Handle | None = None) -> None:
        """Find a job of this user on this machine; without a name the one that is meant here.

        Args:
            name: what ``pliant ls`` calls it.
            handle: of a job that was found already.

        Raises:
            ConfigError: none of this name is known.
        """
        self._out: Path | None = None
        if handle is not None:
            super().__init__(handle.name, handle)
            return
        state = _state()
        self._out = out = find_run(name, None, state).absolute()
        handle = next((job for job in running_jobs(state.jobs) if job.out == out), None)
        super().__init__(name or run_in(out).job, handle)

    @classmethod
    def submit(
        cls,
        target: str | Path,
        *arguments: object,
        cwd: Path | str | None = None,
        **settings: object,
    ) -> Self:
        """Start a script or a job file in the background; return once it serves.

        Args:
            target: what ``pliant run`` takes.
            arguments: of the script.
            cwd: where it works; None: here.
            settings: options of ``pliant run``: ``max=4``, ``workers_per_replica=2``,
                ``pool="default"``; True is an option alone, None is left out, a list repeats it.

        Raises:
            ConfigError: it was refused, or has ended at once.
        """
        words = ["run", "--detach", "--json", *_options(settings), str(target)]
        return cls._begun([*words, *map(str, arguments)], cwd)

    @classmethod
    def at(cls, place: str, token_file: Path | str, *, tls: TlsFiles | None = None) -> Self:
        """Return a job that another host coordinates.

        Args:
            place: HOST:PORT or a URL, as for ``--join``.
            token_file: the file ``token`` of the coordinator's ``--out``, or a copy of it.
            tls: this side's files, where the job has TLS.
        """
        return cls(handle=handle_at(place, tls, Path(token_file)))

    @classmethod
    def running(cls) -> list[Self]:
        """Return all jobs of this user that run on this machine, oldest first."""
        return [cls(handle=one) for one in running_jobs(_state().jobs)]

    @classmethod
    def _begun(cls, words: Sequence[str], cwd: Path | str | None) -> Self:
        said = _pliant(words, cwd)
        job = next(job for job in running_jobs(_state().jobs) if job.pid == said["pid"])
        return cls(handle=job)

    @property
    def out(self) -> Path | None:
        """Return where its files lie; None: on another host."""
        return self._out or super().out

    def _found_again(self) -> Served:
        found = find_running(self.name, _state())
        if found.out != self.out:
            raise ConfigError(f"job {self.name} of {self.out} has ended; another of its name runs")
        return found

    def status(self) -> dict[str, Any]:
        """Return what it is doing, or how it ended; ``docs/reference/records.md`` has the fields.

        Raises:
            ConfigError: it does not answer, and its files are not here.
        """
        try:
            return super().status()
        except ConfigError:
            if self.out is None:
                raise
            run = run_in(self.out)
            if run.is_running:
                raise
            return status_of(run, read_history(run_files.event_log(self.out)).board)

    def wait(self, timeout_s: float | None = None) -> JobEnd:
        """Wait until the job has ended; return how.

        Args:
            timeout_s: seconds; None: as long as it takes.

        Raises:
            TimeoutError: it runs on.
            ConfigError: it is coordinated elsewhere and answers no more.
        """
        pause, until_s = threading.Event(), time.monotonic() + (timeout_s or 0.0)
        while not _has_ended(found := self.status()):
            if timeout_s is not None and time.monotonic() > until_s:
                raise TimeoutError(f"job {self.name} has not ended within {timeout_s:g} s")
            pause.wait(POLL_S)
        return JobEnd(found["state"], found["exit_code"], found["reason"] or "", found["step"])

    def scale(self, target: int) -> Answer:
        """Ask for a number of replicas; the job resizes while it trains.

        This and the next six raise ConfigError with the job's reason where it declines.
        """
        return self._request("POST", "scale", {"target": target})

    def drain(self, replica: str, *, notice_s: float = DEFAULT_NOTICE_S) -> Answer:
        """Let a replica leave at a step boundary, within its notice in seconds."""
        return self._request("POST", f"replicas/{replica}/drain", {"notice_s": notice_s})

    def kill(self, replica: str) -> Answer:
        """Kill a replica as a fault would; it is replaced under a new name."""
        return self._request("POST", f"replicas/{replica}/kill", {})

    def checkpoint(self) -> Answer:
        """Save a checkpoint of the next step boundary; ``step`` of the answer says which.

        The field ``checkpoint`` of the status names it once it is durable.
        """
        return self._request("POST", "checkpoint", {})

    def stop(self, *, now: bool = False) -> Answer:
        """Stop at the next step boundary; ``now``: at once, and nothing is saved."""
        return self._request("POST", "stop", {"now": True} if now else {})

    def suspend(self, reason: str = "") -> Answer:
        """Stop at the next step boundary with a checkpoint, to be resumed later."""
        return self._request("POST", "suspend", {"reason": reason} if reason else {})

    def set_policy(self, **fields: Any) -> Answer:
        """Change fields of the elastic policy, named as in a job file; None sets a default."""
        return self._request("PATCH", "policy", fields)

    def policy(self) -> dict[str, Any]:
        """Return every field of the elastic policy."""
        found: dict[str, Any] = self._ask("GET", "policy")
        return found

    def resume(self, *arguments: object) -> Job:
        """Go on in the background from the newest checkpoint, once it has ended.

        Args:
            arguments: the script and its arguments, if it is to have others.

        Raises:
            ConfigError: it runs, or has nothing to go on from.
        """
        if self.out is None:
            raise ConfigError(f"job {self.name} is resumed on the host that coordinates it")
        words = ["resume", "--detach", "--json", str(self.out)]
        more = ["--", *map(str, arguments)] if arguments else []
        return self._begun([*words, *more], None)

    def audit(self) -> dict[str, Any]:
        """Have the job audited; return what ``pliant audit --json`` prints."""
        found: dict[str, Any] = self._ask("GET", "audit", timeout_s=AUDIT_S)
        return found

    def printers(self) -> list[str]:
        """Return the workers that have printed something."""
        found: list[str] = self._ask("GET", "logs")["workers"]
        return found

    def printed_after(self, worker: str, after: str = "") -> tuple[bytes, str]:
        """Return what a worker printed after a place, a megabyte at most, and the place behind."""
        with closing(self._caller()) as caller:
            return caller.read(f"/v1/logs/{worker}?after={after}")


class Pool(_Asked):
    """One pool of devices on this machine."""

    def __init__(self, name: str | None = None) -> None:
        """Find a pool that runs here, own or shared; without a name the only one.

        Raises:
            ConfigError: none runs, none has this name, or several do and none is named.
        """
        self._served = any_pool(name, _state())
        super().__init__(self._served.name, self._served)

    @classmethod
    def start(cls, devices: int | str | None = None, **settings: object) -> Self:
        """Start a pool in the background; ``settings`` are options of ``pliant pool start``.

        Raises:
            ConfigError: it was refused, or has ended at once.
        """
        given = _options({"devices": devices, **settings})
        return cls(_pliant(["pool", "start", "--detach", "--json", *given], None)["pool"])

    def _found_again(self) -> Served:
        return any_pool(self.name, _state())

    @property
    def place(self) -> dict[str, str | None]:
        """Return by which ``url`` it is reached, and by which ``socket``, if by one."""
        socket = None if self._served.socket is None else str(self._served.socket)
        return {"url": self._served.url, "socket": socket}

    def submit(self, target: str | Path, *arguments: object, **settings: Any) -> Job:
        """Start a job in this pool; see ``Job.submit``."""
        return Job.submit(target, *arguments, pool=self.name, **settings)

    def set_devices(self, devices: int) -> Answer:
        """Change how many devices there are; whoever has too many gives some back.

        This and all that follow raise ConfigError with the pool's reason where it declines.
        """
        return self._request("POST", "devices", {"devices": devices})

    def cordon(self, device: int | str, reason: str = "") -> Answer:
        """Hand a device out no more; who has it keeps it."""
        return self._request("POST", f"devices/{self._number(device)}/cordon", {"reason": reason})

    def uncordon(self, device: int | str) -> Answer:
        """Hand a device out again."""
        return self._request("POST", f"devices/{self._number(device)}/uncordon")

    def drain(self, device: int | str, reason: str = "") -> Answer:
        """Take a device back on notice, and hand it out no more."""
        return self._request("POST", f"devices/{self._number(device)}/drain", {"reason": reason})

    def set_team(self, team: str, **rules: Any) -> Answer:
        """Make a team, or change what is named of it: ``quota=4``, as a pool file has it."""
        return self._request("PUT", f"teams/{team}", {"name": team, **rules})

    def remove_team(self, team: str) -> Answer:
        """Forget a team that has no claims."""
        return self._request("DELETE", f"teams/{team}")

    def set_class(self, priority: str, value: int, **users: Any) -> Answer:
        """Make a priority class, or change its value."""
        return self._request("PUT", f"classes/{priority}", {"value": value, **users})

    def release(self, claim: str) -> Answer:
        """End a claim, whosever it is: its command or job ends within its notice."""
        return self._request("POST", "release", {"claim": claim})

    def stop(self) -> Answer:
        """Stop the pool; who has devices keeps them.  The next of its name may start at once."""
        said = self._request("POST", "stop")
        wait_for_end(self._served)
        return said

    def _number(self, device: int | str) -> int:
        return number_of(device, self.status)


def number_of(device: int | str, status: Any) -> int:
    """Return the number of a device that may be called by its name, by a pool's status.

    Raises:
        ConfigError: the pool has none of this name.
    """
    if isinstance(device, int) or device.isdecimal():
        return int(device)
    devices = status()["devices"]
    names = {str(one["name"]): int(one["device"]) for one in devices if one["name"]}
    if device not in names:
        there = ", ".join(names) or "numbers only"
        raise ConfigError(f"there is no device {device!r}; there are {there}")
    return names[device]


def handle_at(place: str, tls: TlsFiles | None, token_file: Path | None = None) -> Handle:
    """Return how a job is asked that another host coordinates; without a token only if it lives."""
    url = rest_url(place, tls)  # what is wrong with the place is said first
    token = "" if token_file is None else read_token(token_file)
    return Handle(name=place, url=url, secret=token, tls=tls)


def _state() -> StateDirectory:
    return StateDirectory.of(os.environ)


def _has_ended(status: Mapping[str, Any]) -> bool:
    return status["exit_code"] is not None or status["state"] in GONE


def _options(settings: Mapping[str, object]) -> list[str]:
    """Return settings as words of a command line."""
    words: list[str] = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is True:
                words.append(flag)
            elif one is not None and one is not False:
                words += [flag, str(one)]
    return words


def _pliant(words: Sequence[str], cwd: Path | str | None) -> dict[str, Any]:
    """Run a command that starts something in the background; return what it says of it."""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "pliant", *words], capture_output=True, text=True, cwd=cwd
    )
    with suppress(ValueError):
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout)
            return found
    raise ConfigError(last_line(done.stderr) or f"pliant {words[0]} ended at once")
