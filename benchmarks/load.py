"""One coordinator on one core, and a thousand agents: ``benchmarks.load``.

Owns the events that are timed and the page.  The coordinator is a process of its own on one core;
the fleet (``benchmarks.fleet``) is this process, on the others: real connections, workers that only
talk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks import harness
from benchmarks.fleet import Agent, Fleet, Frame
from benchmarks.harness import Figure, Page
from pliant.core.events import Prepared, Spare, Switched
from pliant.core.job.state import JobSettings
from pliant.core.values import NO_GENERATION, Generation

LIMIT_S = 180.0
NODE_S = JobSettings().node_s
STEP_S = 2.0
STEADY_S = 10.0
QUIET_S = 2.0
"""Before each event, in seconds: what came of the one before is over."""

_SCHEDULED = 2
"""``CPUCLOCK_SCHED`` of Linux: with its id the clock of a process, finer than ticks."""

TOKEN = "0123456789abcdef0123456789abcdef"

METHOD = """\
`pliant coordinator` on one core (pinned), and {agents:,} agents in one process on the other core:
plain TCP connections on loopback, the messages of real agents and of one worker each, encoded by
pliant's own codec; workers build groups at once and commit a step every {step:g} s, of which each
tells. Signs of life are as often as the coordinator asks for. Times end when the last command is
with the kernel of the other side, by its own stamp: the fleet reads a thousand commands one after
the other, as a thousand hosts do not. They begin when the last is said that the command follows
from, however many others the coordinator has to hear before it.

- **a death**: one worker is killed, its agent says so; until all others have their Reform.
- **a replacement**: the new worker is ready, and the last Switched of the others is said; until all
  have Prepare. **the switch**: the last Prepared is said; until all have Switch. A death and what
  follows it happen {deaths} times.
- **all events**: those three together, without the largest hundredth.
- **the whole**: from a death to the last Switch of the change that brings its replacement in: with
  all answers of the workers between those events, each of which the coordinator has to hear. The
  pause of users is its part until all have Reform and have answered it.
- **together**: connections of {gone:,} agents are reset, and their nodes do not come back: a node
  is lost for the coordinator when it has heard nothing of it for {node:g} s, which is in the time.
  Then as many of the rest fall silent without a packet, and last as many workers die and their
  agents say so."""


@dataclass(slots=True, kw_only=True)
class Found:
    """What was measured."""

    formed_s: float = 0.0
    formed_busy_s: float = 0.0
    """Of the coordinator's processor, in seconds; as all that is called busy."""

    busy: float = 0.0
    """Of a core, while nothing happens."""

    deaths_s: list[float] = field(default_factory=list)
    prepared_s: list[float] = field(default_factory=list)
    switched_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    back_busy_s: list[float] = field(default_factory=list)
    vanished: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Of each way to be lost at once: generations that came of it, and until the last command."""

    most_mb: float = 0.0

    @property
    def events_s(self) -> list[float]:
        """All events, in order of time taken."""
        return sorted((*self.deaths_s, *self.prepared_s, *self.switched_s))


class Bench:
    """One coordinator and its fleet."""

    def __init__(self, agents: int, core: int, directory: Path) -> None:
        self.count = agents
        self.directory = directory
        self.port = 17000 + os.getpid() % 1000
        self.coordinator = self._start(core)
        self.fleet = Fleet(address=("127.0.0.1", self.port), token=TOKEN, num_slots=agents)
        self.found = Found()

    def _start(self, core: int) -> psutil.Popen:
        (self.directory / "train.py").write_text("pass\n")
        token = self.directory / "token"
        token.write_text(TOKEN + "\n")
        token.chmod(0o600)
        words = [
            *(sys.executable, "-m", "pliant", "coordinator", "--listen", f"127.0.0.1:{self.port}"),
            *("--token-file", "token", "--max-restarts", "100000", "--min", "1"),
            *("--max", str(self.count), "--out", str(self.directory / "run"), "train.py", "5"),
        ]
        with (self.directory / "coordinator.log").open("w") as log:
            started = psutil.Popen(
                words,
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=harness.die_with_parent,
            )
        started.cpu_affinity([core])
        return started

    async def until(self, is_so: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        """Wait for something of the fleet."""
        end_s = time.monotonic() + limit_s
        while not is_so():
            if time.monotonic() > end_s:
                log = (self.directory / "coordinator.log").read_text()[-2000:]
                raise RuntimeError(f"{what} did not come about in {limit_s:g} s: {log}")
            await asyncio.sleep(0.01)

    def weigh(self) -> None:
        """Look how much memory the coordinator has."""
        self.found.most_mb = max(self.found.most_mb, self.coordinator.memory_info().rss / 2**20)

    def busy_s(self) -> float:
        """Return how long the coordinator has computed."""
        return time.clock_gettime((~self.coordinator.pid << 3) | _SCHEDULED)

    async def form(self) -> None:
        """Let all agents join, and wait until they are one generation."""
        await self.until(self._listens, "a coordinator")
        began_s = time.monotonic()
        await self.fleet.join(self.count)
        await self.until(lambda: self.fleet.generation > 0, "a generation")
        self.found.formed_s = time.monotonic() - began_s
        self.found.formed_busy_s = self.busy_s()

    def _listens(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    async def rest(self) -> None:
        """See what signs of life cost."""
        await asyncio.sleep(QUIET_S)
        busy_s, began_s = self.busy_s(), time.monotonic()
        await asyncio.sleep(STEADY_S)
        self.found.busy = (self.busy_s() - busy_s) / (time.monotonic() - began_s)

    async def lose_one(self, agent: Agent) -> None:
        """Let one worker die, and another take its place."""
        fleet, others = self.fleet, len(self.fleet.present) - 1
        await asyncio.sleep(QUIET_S)
        fleet.frames.clear()
        died_s, busy_s = time.monotonic(), self.busy_s()
        agent.die()
        await self.until(lambda: self._num("reform") >= others, "a Reform for all")
        self.found.deaths_s.append(self._last("reform").at_s - died_s)
        await self.until(lambda: fleet.generation > 0, "a replacement")
        reformed, prepared = self._last("reform"), self._last("prepare")
        entered_s = fleet.said_s[Switched, Generation(reformed.generation)]
        ready_s = max(entered_s, fleet.said_s[Spare, NO_GENERATION])
        self.found.prepared_s.append(prepared.at_s - ready_s)
        built_s = fleet.said_s[Prepared, Generation(prepared.generation)]
        self.found.switched_s.append(self._last("switch").at_s - built_s)
        self.found.whole_s.append(self._last("switch").at_s - died_s)
        self.found.back_s.append(time.monotonic() - died_s)
        self.found.back_busy_s.append(self.busy_s() - busy_s)
        self.weigh()

    async def lose_many(self, what: str, how: Callable[[Agent], None]) -> None:
        """Let a fifth go at once, and count the generations that come of it."""
        fleet, gone = self.fleet, self.fleet.present[: self.count // 5]
        await asyncio.sleep(QUIET_S)
        fleet.frames.clear()
        began_s = time.monotonic()
        for agent in gone:
            how(agent)
        stay = [agent.number for agent in fleet.present if agent not in gone]
        await self.until(lambda: self._num("reform") >= len(stay), f"a Reform after {what}")
        await asyncio.sleep(QUIET_S)
        await self.until(lambda: fleet.generation > 0, f"a generation after {what}")
        generations = {one.generation for one in fleet.arrivals("reform")}
        self.found.vanished[what] = len(generations), self._last("reform").at_s - began_s
        self.weigh()

    def _num(self, kind: str) -> int:
        return len(self.fleet.arrivals(kind))

    def _last(self, kind: str) -> Frame:
        return max(self.fleet.arrivals(kind), key=_at)


def _at(frame: Frame) -> float:
    return frame.at_s


async def measure(agents: int, deaths: int, core: int, directory: Path) -> Found:
    """Measure one coordinator."""
    bench = Bench(agents, core, directory)
    try:
        await bench.form()
        living = asyncio.create_task(bench.fleet.live(STEP_S))
        found = bench.found
        print(f"formed in {found.formed_s:.2f} s, {found.formed_busy_s:.2f} s busy", flush=True)
        await bench.rest()
        print(f"{100 * bench.found.busy:.0f} % of a core at rest", flush=True)
        for number in range(deaths):
            await bench.lose_one(bench.fleet.agents[number * 7 % agents])
            kinds = (found.deaths_s, found.prepared_s, found.switched_s, found.whole_s)
            told = " / ".join(f"{times_s[-1]:.3f}" for times_s in kinds)
            print(f"a death: {told} s, {found.back_busy_s[-1]:.2f} s busy", flush=True)
        await bench.lose_many("reset", Agent.vanish)
        await bench.lose_many("silent", Agent.cut_off)
        await bench.lose_many("dead", Agent.die)
        living.cancel()
        return bench.found
    finally:
        bench.coordinator.send_signal(signal.SIGKILL)
        bench.coordinator.wait()


def figures_of(found: Found) -> tuple[Figure, ...]:
    """Return the rows of the page."""
    events_s = found.events_s
    latest_s = events_s[: len(events_s) - len(events_s) // 100]
    soon, few = "< 0.1 s", "1"
    rows = [
        ("all events to the last command, 99th percentile", "s", latest_s[-1:], soon),
        ("a death to the last Reform", "s", found.deaths_s, soon),
        ("a replacement to the last Prepare", "s", found.prepared_s, soon),
        ("the last Prepared to the last Switch", "s", found.switched_s, soon),
        ("the whole, from a death to the last Switch", "s", found.whole_s, ""),
        ("a death until all train again, one more started", "s", found.back_s, ""),
        ("the same, of the coordinator's processor", "s", found.back_busy_s, ""),
        ("from the first connection to one generation", "s", [found.formed_s], ""),
        ("from its start to there, of its processor", "s", [found.formed_busy_s], ""),
        ("of a core, at rest", "%", [100 * found.busy], ""),
        ("memory, the largest seen", "MB", [found.most_mb], "< 300 MB"),
    ]
    for what, (generations, last_s) in found.vanished.items():
        rows.append((f"a fifth at once, {what}: generations", "", [float(generations)], few))
        rows.append((f"a fifth at once, {what}: to the last Reform", "s", [last_s], ""))
    return tuple(
        Figure(name=name, unit=unit, raw=tuple(raw), target=target, goal=target)
        for name, unit, raw, target in rows
    )


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--deaths", type=int, default=40, help="one after the other")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    parser.add_argument("--smoke", action="store_true", help="40 agents, 2 deaths, no page")
    chosen = parser.parse_args()
    if chosen.smoke:
        chosen.no_page, chosen.agents, chosen.deaths = True, 40, 2
    return chosen


def main() -> None:
    """Measure and write the page."""
    chosen = options()
    before = harness.load()
    core, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, others or {core})
    with tempfile.TemporaryDirectory(prefix="pliant-load-") as directory:
        measuring = measure(chosen.agents, chosen.deaths, core, Path(directory))
        found = asyncio.run(measuring)
    page = Page(
        theme="load",
        summary="What one coordinator on one core does with many agents.",
        method=METHOD.format(
            agents=chosen.agents,
            step=STEP_S,
            deaths=chosen.deaths,
            gone=chosen.agents // 5,
            node=NODE_S,
        ),
        figures=figures_of(found),
        command=harness.command_line("load"),
        load=(before, harness.load()),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
