"""The commands of one job on several hosts: who runs, who ended and why, who is to run again.

Owns the words of the commands, and what a service manager would do: a command that ends while the
job goes on is started again.  Decides nothing about what goes wrong.

    apart       one ``pliant coordinator``, wherever it was started last; ``pliant agent`` on each
    together    ``pliant run --join`` on each; the first host coordinates
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psutil
from tests.chaos.plan import HEARTBEAT_S
from tests.live.namespaces import HostProgram, Network, NetworkHost
from tests.live.stage import DEADLINE_S
from tests.processes import hosts
from tests.processes.elastic import SCRIPT

from pliant.core.errors import EXIT_OK, EXIT_STOPPED, EXIT_TAKEN_OVER

PORT = 7000

RESTART_S = 5.0
"""After which a command that ended by itself is started again."""

CLOCKS_AHEAD_S = (0, 300, -180, 3600)
"""Of the hosts, in their order."""

LIMITS = (
    f"heartbeatInSeconds={HEARTBEAT_S:g}",
    "nodeInSeconds=6",
    "prepareInSeconds=20",
    "stepInSeconds=60",
    "reformInSeconds=60",
    "switchInSeconds=30",
)
"""Shorter than people would have them: more is tried in the same time."""

SUSPENDED_S = 150.0
"""How long a suspended job has to end on all hosts, those that were cut off included."""

EXPECTED = {EXIT_OK, EXIT_STOPPED}
"""How commands end when their job is suspended."""


class Style(StrEnum):
    """How the job is started."""

    APART = "apart"
    TOGETHER = "together"


@dataclass(slots=True)
class Fleet:
    """The commands of a job; ``start`` all, then ``tend`` again and again."""

    net: Network
    directory: Path
    style: Style
    script: tuple[object, ...]
    """Arguments of the script."""

    devices: int
    """Of each host."""

    agents: dict[str, HostProgram] = field(default_factory=dict)
    """By host; of ``together``, the one that coordinates as well."""

    coordinators: list[tuple[str, HostProgram]] = field(default_factory=list)
    """Of ``apart``: with the host of each; the newest is last, others may be asleep."""

    surprises: list[str] = field(default_factory=list)
    """Commands that ended, and nobody had done anything to them."""

    is_over: bool = False
    """From here on commands may end."""

    ended_by_us: set[HostProgram] = field(default_factory=set)

    _may_stop_until_s: float = 0.0
    """Till then a command may end because the job was suspended."""

    _suspended_s: float = 0.0
    """After which such a command is started again."""

    _due_s: dict[str, float] = field(default_factory=dict)
    """When the command of a host is to start; the coordinator's has an empty name."""

    _where: list[str] = field(default_factory=list)
    """Where the next coordinator is to start: the first of these that is on."""

    asked: list[HostProgram] = field(default_factory=list)
    """Requests."""

    # --- where things are -------------------------------------------------------

    @property
    def out(self) -> Path:
        return self.directory / "run"

    @property
    def register(self) -> Path:
        return self.directory / "register"

    @property
    def token(self) -> Path:
        return self.directory / "token"

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.net.hosts]

    @property
    def most(self) -> int:
        """Return how many replicas there are at most."""
        return self.devices * len(self.names)

    def host(self, name: str) -> NetworkHost:
        """Return the host that has the name now."""
        (found,) = (host for host in self.net.hosts if host.name == name)
        return found

    def on(self) -> list[str]:
        """Return the hosts that are switched on."""
        return [host.name for host in self.net.hosts if host.is_on]

    def coordinator(self) -> tuple[str, HostProgram] | None:
        """Return the command that coordinates, as far as can be seen, and its host."""
        if self.style is Style.APART:
            running = [one for one in self.coordinators if one[1].poll() is None]
            return running[-1] if running else None
        program = self.agents.get(self.names[0])
        return (self.names[0], program) if program and program.poll() is None else None

    def workers(self, name: str) -> list[psutil.Process]:
        """Return the workers of a host, whose fork server has nothing else."""
        found: list[psutil.Process] = []
        with suppress(psutil.Error, AssertionError):
            if (program := self.agents.get(name)) is not None and program.poll() is None:
                for server in program.process().children():
                    found += server.children()
        return found

    def programs(self, name: str) -> list[HostProgram]:
        """Return the commands of a host that run."""
        own = [program for at, program in self.coordinators if at == name]
        own += [self.agents[name]] if name in self.agents else []
        return [program for program in own if program.poll() is None]

    # --- starting ---------------------------------------------------------------

    def start(self) -> None:
        """Start whatever does not run, where a host is on."""
        if self.style is Style.APART and self.coordinator() is None:
            self.coordinate(self.on()[0])
            until_s = time.monotonic() + DEADLINE_S
            while not self.token.exists():  # the agents do not wait for it
                assert time.monotonic() < until_s, "there is no token"
                time.sleep(0.05)
        for name in self.on():
            self.employ(name)

    def employ(self, name: str) -> None:
        """Start the command of a host that runs replicas, unless it runs or the host is off."""
        self._due_s.pop(name, None)
        if not self.host(name).is_on or (name in self.agents and self.agents[name].poll() is None):
            return
        if self.style is Style.APART:
            each: tuple[object, ...] = ("--token-file", self.token, "--devices", self.devices)
            words = ("agent", "--join", self._places(self.names), *each)
        else:
            each = ("--devices-per-node", self.devices, "--nnodes", f"1:{len(self.names)}")
            words = ("run", "--join", self._places(self.names[:1]), *each, *self._common())
        self.agents[name] = self._run(name, *words)

    def coordinate(self, name: str) -> None:
        """Start a coordinator on a host, whatever there is elsewhere."""
        self._due_s.pop("", None)
        host = self.host(name)
        words = ("--listen", f"{host.address}:{PORT}", "--min", 1, "--max", self.most)
        program = self._run(name, "coordinator", *words, *self._common())
        self.coordinators.append((name, program))

    def coordinate_again(self, name: str, after_s: float) -> None:
        """Start a coordinator after a while, on this host or the next that is on."""
        at = self.names.index(name)
        self._where = self.names[at:] + self.names[:at]
        self._due_s[""] = time.monotonic() + after_s

    def _common(self) -> tuple[object, ...]:
        given = [word for limit in LIMITS for word in ("--limit", limit)]
        places = ("--out", self.out, "--register", self.register, "--token-file", self.token)
        return (*given, "--max-restarts", 100_000, *places, SCRIPT, *self.script)

    def _places(self, names: list[str]) -> str:
        return ",".join(f"{self.host(name).address}:{PORT}" for name in names)

    def _run(self, name: str, *words: object, out: Path | None = None) -> HostProgram:
        host = self.host(name)
        (host.own / "tmp").mkdir(exist_ok=True)
        ahead = CLOCKS_AHEAD_S[self.names.index(name) % len(CLOCKS_AHEAD_S)]
        environment = hosts.environment(host, TMPDIR=str(host.home / "tmp"), CLOCK_AHEAD=str(ahead))
        more = {} if out is None else {"out": out}
        return host.pliant(*words, environment=environment, **more)

    def ask(self, name: str, *words: object) -> HostProgram | None:
        """Have a command ask the coordinator from a host; None: there is no coordinator now."""
        if (found := self.coordinator()) is None:
            return None
        place = f"{self.host(found[0]).address}:{PORT}"
        out = self.directory / "asked.txt"
        with out.open("a") as said:
            said.write(f"--- {len(self.asked)}: {' '.join(map(str, words))} on {name}\n")
        words = (*words, "--join", place, "--token-file", self.token)
        self.asked.append(self._run(name, *words, out=out))
        return self.asked[-1]

    # --- tending ----------------------------------------------------------------

    def tend(self) -> None:
        """Take note of what has ended, and start what is due."""
        if self.is_over:
            return
        now_s = time.monotonic()
        for name, program in list(self.agents.items()):
            self._note(name, name, program)
        for name, program in list(self.coordinators):
            self._note("", name, program)
        if not self.coordinators and self.style is Style.APART and "" not in self._due_s:
            self.coordinate_again(self.names[0], RESTART_S)
        for name in [name for name, due_s in self._due_s.items() if due_s <= now_s]:
            if name:
                self.employ(name)
            elif where := [one for one in self._where if self._has_room(one)]:
                self.coordinate(where[0])

    def _has_room(self, name: str) -> bool:
        """Whether a coordinator can be started on a host."""
        has_one = any(at == name and one.poll() is None for at, one in self.coordinators)
        return self.host(name).is_on and not has_one

    def _note(self, key: str, name: str, program: HostProgram) -> None:
        if (code := program.poll()) is None:
            return
        if key:
            del self.agents[name]
        else:
            self.coordinators.remove((name, program))
        now_s = time.monotonic()
        if program in self.ended_by_us or not program.host.is_on:
            self.ended_by_us.discard(program)
        elif code in EXPECTED and now_s < self._may_stop_until_s:
            self._start_again(key, name, self._suspended_s)
        elif code != EXIT_TAKEN_OVER or key:
            last = self.host(name).own.joinpath("said.txt").read_text().splitlines()[-3:]
            what = "agent" if key else "coordinator"
            self.surprises.append(f"the {what} on {name} ended with {code}: {' / '.join(last)}")
            self._start_again(key, name, RESTART_S)

    def _start_again(self, key: str, name: str, after_s: float) -> None:
        if key:
            self._due_s[name] = time.monotonic() + after_s
        else:
            self.coordinate_again(name, after_s)

    def suspended(self, lasts_s: float) -> None:
        """Take it that the job is being suspended: commands that end are started after a while."""
        self._may_stop_until_s, self._suspended_s = time.monotonic() + SUSPENDED_S, lasts_s

    def kill(self, program: HostProgram) -> None:
        """Kill a command, and remember that."""
        self.ended_by_us.add(program)
        with suppress(psutil.Error, AssertionError):
            program.kill()
        program.wait()
