"""Chaos: a plan of faults acted upon, while a job trains on several hosts.

Owns what each kind of fault does, and undoing it.  What goes wrong and when is the plan's, which
commands run the fleet's, and what must be true afterwards ``checks``'.
"""

from __future__ import annotations

import heapq
import itertools
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import psutil
from tests.chaos.fleet import Fleet, Style
from tests.chaos.plan import ChaosPlan, Kind, Link, PlannedFault
from tests.live.namespaces import HostProgram
from tests.live.stage import DEADLINE_S
from tests.processes.footprint import Footprint

from pliant.core.errors import EXIT_OK
from pliant.machine import run_files
from pliant.observe.log import Record
from pliant.observe.reading import follow

TRIES_S = 120.0
"""How long a fault is tried that is impossible at first: there is no worker to be killed."""

PHASE_S = 10.0
"""How long a coordinator that is to die in some phase waits for it."""

LOOK_S = 4.0
"""Between two looks at what processes hold."""

TICK_S = 0.05

ASKS_S = 40.0
"""How long a person asks again who is not answered."""

Undo = Callable[[], None]
Words = Callable[[], tuple[object, ...] | None]
"""Returns what is to be asked now; None: there is nobody of whom to ask that."""

IMPOSSIBLE = None


def nothing() -> None:
    """Undo what is over at once."""


def all_of(undos: list[Undo]) -> None:
    for undo in undos:
        undo()


def processes_of(program: HostProgram) -> list[psutil.Process]:
    """Return a command and all that came of it, nothing if it has ended."""
    with suppress(psutil.Error, AssertionError):
        first = program.process()
        return [first, *first.children(recursive=True)]
    return []


@dataclass(slots=True)
class Armed:
    """A coordinator that is to die as soon as it logs something."""

    fault: PlannedFault
    until_s: float


class Told:
    """What the event log says, read as it grows."""

    def __init__(self, fleet: Fleet) -> None:
        self._path = run_files.event_log(fleet.out)
        self._position = 0
        self.kinds: Counter[str] = Counter()
        self.members: tuple[str, ...] = ()
        self.homes: dict[str, str] = {}
        self._generation = 0
        self._entered: set[str] = set()

    def news(self) -> list[Record]:
        """Return what was added since the last call."""
        found = []
        with suppress(FileNotFoundError):
            for position, record in follow(self._path, self._position):
                self._position = position
                self._add(record)
                found.append(record)
        return found

    def _add(self, record: Record) -> None:
        kind = record["kind"]
        self.kinds[kind] += 1
        if kind in ("switch", "reform"):
            order = record["order"]
            self.members = tuple(seat["replica"] for seat in order["members"])
            self._generation, self._entered = order["generation"], set()
        elif kind == "switched" and record["generation"] == self._generation:
            self._entered.add(record["replica"])
        elif kind == "worker":
            self.homes[record["replica"]] = record["node"]

    def training(self) -> set[str]:
        """Return the hosts of the newest generation, once all of it have entered."""
        if set(self.members) != self._entered:
            return set()
        return {self.homes.get(name, "") for name in self.members}


class Chaos:
    """One run; ``play`` the plan, then ``calm`` everything down."""

    def __init__(self, fleet: Fleet, plan: ChaosPlan, say: Callable[[str], None]) -> None:
        self._fleet, self._plan, self._say = fleet, plan, say
        self.told = Told(fleet)
        self.done: list[PlannedFault] = []
        self.impossible: list[PlannedFault] = []
        self.held: dict[str, dict[psutil.Process, Footprint]] = defaultdict(dict)
        """What processes held, by what they are."""

        self.answered = 0
        """Requests of people that were granted."""

        self._cuts: Counter[Link] = Counter()
        self._applied: set[Link] = set()
        self._stopped: dict[psutil.Process, HostProgram | None] = {}
        self._armed: Armed | None = None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._looked_s = 0.0
        self._acts: dict[Kind, Callable[[PlannedFault], Undo | None]] = {
            **dict.fromkeys((Kind.LINK_ONE_WAY, Kind.LINK, Kind.CUT_OFF), self._cut),
            **dict.fromkeys((Kind.DUMB, Kind.DEAF), self._cut),
            Kind.SLOW: partial(self._slow, rate="4mbit", queue_bytes=200_000),
            Kind.LOSSY: partial(self._slow, rate="20mbit", queue_bytes=6_000),
            Kind.WORKER_DIES: self._kill_worker,
            Kind.REPLICAS_DIE: self._kill_workers,
            Kind.AGENT_DIES: self._kill_agent,
            Kind.COORDINATOR_DIES: self._arm,
            **dict.fromkeys((Kind.HOST_DIES, Kind.HOSTS_DIE, Kind.ALL_DIE), self._switch_off),
            **dict.fromkeys((Kind.WORKER_PAUSES, Kind.WORKER_HANGS), self._stop_worker),
            Kind.AGENT_HANGS: self._stop_agent,
            Kind.COORDINATOR_HANGS: self._stop_coordinator,
            Kind.HOST_HANGS: self._stop_host,
            Kind.SCALE: self._scale,
            Kind.DRAIN: self._drain,
            Kind.SUSPEND: self._suspend,
        }

    # --- the course of it -------------------------------------------------------

    def play(self) -> None:
        """Let everything of the plan go wrong, and be mended.

        The plan's time stands still while its next fault is impossible.
        """
        began_s, late_s = time.monotonic(), 0.0
        for fault in self._plan.faults:
            self._until(began_s + fault.at_s + late_s)
            tried_s = time.monotonic()
            while (undo := self._acts[fault.kind](fault)) is IMPOSSIBLE:
                if time.monotonic() > tried_s + TRIES_S:
                    break
                self._until(time.monotonic() + 0.5)
            now_s = time.monotonic()
            late_s += now_s - tried_s
            if undo is IMPOSSIBLE:
                self.impossible.append(fault)
                self._say(f"{now_s - began_s:7.1f} s  impossible: {fault}")
                continue
            self.done.append(fault)
            self._say(f"{now_s - began_s:7.1f} s  {fault}")
            self._at(now_s + fault.lasts_s, undo)
        while self._queue or self._armed:
            self._until(time.monotonic() + TICK_S)

    def _until(self, until_s: float) -> None:
        """Tend the job, and mend what is due, until then."""
        while True:
            self.tend()
            now_s = time.monotonic()
            if self._queue and self._queue[0][0] <= now_s:
                _, _, act = heapq.heappop(self._queue)
                act()
            elif now_s >= until_s:
                return
            else:
                time.sleep(min(TICK_S, until_s - now_s))

    def calm(self) -> None:
        """Mend whatever the plan has not, so that the job can go on undisturbed."""
        self._fleet.net.switch_on()
        self._cuts.clear()
        self._set_links()
        for process in list(self._stopped):
            self._go_on([process])
        self._fleet.start()

    def ask_for_all(self) -> None:
        """Ask for as many replicas as there may be, until the coordinator has heard it."""

        def is_heard() -> bool:
            asked = self._fleet.ask(self._fleet.names[0], "scale", self._fleet.most)
            return asked is not None and asked.wait() == 0

        self.wait(is_heard, "all hosts are asked for", 2 * DEADLINE_S)

    def wait(self, what: Callable[[], bool], why: str, within_s: float) -> None:
        """Tend the job until something is so."""
        until_s = time.monotonic() + within_s
        while not what():
            assert time.monotonic() < until_s, f"not within {within_s:g} s: {why}"
            self.tend()
            time.sleep(0.1)

    def tend(self) -> None:
        """Take in the news, and do what they are about."""
        for record in self.told.news():
            armed = self._armed
            if armed is not None and record["kind"] == armed.fault.phase:
                self._kill_coordinator(armed.fault)
        if self._armed is not None and time.monotonic() > self._armed.until_s:
            self._kill_coordinator(self._armed.fault)
        self._fleet.tend()
        self._look()

    def _at(self, due_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (due_s, next(self._order), act))

    def _look(self) -> None:
        """See what each process of the job holds."""
        if time.monotonic() < self._looked_s + LOOK_S:
            return
        self._looked_s = time.monotonic()
        found: list[tuple[str, psutil.Process]] = []
        with suppress(psutil.Error):
            coordinator = self._fleet.coordinator()
            first = [] if coordinator is None else processes_of(coordinator[1])[:1]
            found += [("coordinator", one) for one in first]
            for name, program in self._fleet.agents.items():
                for agent in processes_of(program)[:1]:
                    found += [("agent", agent)] if agent not in first else []
                    found += [("fork server", one) for one in agent.children()]
                    found += [("worker", one) for one in self._fleet.workers(name)]
        for what, process in found:
            footprint = self.held[what].setdefault(process, Footprint(process.pid))
            with suppress(psutil.Error):
                footprint.look(has_children=what == "fork server")

    # --- links ------------------------------------------------------------------

    def _cut(self, fault: PlannedFault) -> Undo:
        self._cuts.update(fault.links)
        self._set_links()

        def heal() -> None:
            self._cuts.subtract(fault.links)
            self._set_links()

        return heal

    def _set_links(self) -> None:
        """Cut and heal what is not as it is to be; a host that was off has lost what it had."""
        for sender in self._fleet.net.hosts:
            for receiver in self._fleet.net.hosts:
                link = (sender.name, receiver.name)
                is_cut = link in self._applied
                if sender is receiver or not sender.is_on or is_cut == (self._cuts[link] > 0):
                    continue
                (self._fleet.net.heal if is_cut else self._fleet.net.cut)(sender, receiver)
                self._applied ^= {link}

    def _slow(self, fault: PlannedFault, *, rate: str, queue_bytes: int) -> Undo | None:
        host = self._fleet.host(fault.hosts[0])
        if not host.is_on:
            return IMPOSSIBLE
        self._fleet.net.slow_down(host, rate, queue_bytes)

        def mend() -> None:
            if host.is_on:
                self._fleet.net.full_speed(host)

        return mend

    # --- deaths -----------------------------------------------------------------

    def _near(self, fault: PlannedFault) -> list[str]:
        """Return the hosts that are on, from the one that the fault is about."""
        names = self._fleet.names
        at = names.index(fault.hosts[0])
        return [name for name in names[at:] + names[:at] if self._fleet.host(name).is_on]

    def _worker(self, fault: PlannedFault) -> psutil.Process | None:
        for name in self._near(fault):
            if workers := self._fleet.workers(name):
                return workers[fault.choice % len(workers)]
        return None

    def _kill_worker(self, fault: PlannedFault) -> Undo | None:
        worker = self._worker(fault)
        if worker is None:
            return IMPOSSIBLE
        with suppress(psutil.Error):
            worker.kill()
        return nothing

    def _kill_workers(self, fault: PlannedFault) -> Undo | None:
        for name in self._near(fault):
            if workers := self._fleet.workers(name):
                for worker in workers:
                    with suppress(psutil.Error):
                        worker.kill()
                return nothing
        return IMPOSSIBLE

    def _kill_agent(self, fault: PlannedFault) -> Undo | None:
        for name in self._near(fault):
            program = self._fleet.agents.get(name)
            if program is not None and program.poll() is None:
                self._fleet.kill(program)
                return partial(self._fleet.employ, name)
        return IMPOSSIBLE

    def _arm(self, fault: PlannedFault) -> Undo | None:
        if self._armed is not None or self._fleet.coordinator() is None:
            return IMPOSSIBLE
        if not fault.phase:
            self._kill_coordinator(fault)
            return nothing
        self._armed = Armed(fault, time.monotonic() + PHASE_S)
        if fault.phase == "reform":
            self._kill_worker(fault)
        elif fault.phase in ("prepare", "switch", "release"):
            self._scale(fault)
        return nothing

    def _kill_coordinator(self, fault: PlannedFault) -> None:
        """Kill it; it comes back on the host that the fault names."""
        self._armed = None
        if (found := self._fleet.coordinator()) is None:
            return
        name, program = found
        self._fleet.kill(program)
        if self._fleet.style is Style.APART:
            self._fleet.coordinate_again(fault.hosts[0], fault.lasts_s)
        else:
            self._at(time.monotonic() + fault.lasts_s, partial(self._fleet.employ, name))

    def _switch_off(self, fault: PlannedFault) -> Undo | None:
        chosen = [self._fleet.host(name) for name in fault.hosts]
        coordinator = self._fleet.coordinator()
        for host in chosen:
            host.die()
        self._applied = {link for link in self._applied if link[0] not in fault.hosts}
        if coordinator is not None and self._fleet.style is Style.APART:
            home = coordinator[0]
            if home in fault.hosts:
                self._fleet.coordinate_again(home, min(fault.lasts_s, 3.0))

        def switch_on() -> None:
            self._fleet.net.switch_on(*fault.hosts)
            self._set_links()
            for name in fault.hosts:
                self._fleet.employ(name)

        return switch_on

    # --- hangs ------------------------------------------------------------------

    def _stop(self, processes: list[psutil.Process], program: HostProgram | None = None) -> Undo:
        for process in processes:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
                self._stopped[process] = program
        return partial(self._go_on, processes)

    def _go_on(self, processes: list[psutil.Process]) -> None:
        for process in processes:
            program = self._stopped.pop(process, None)
            with suppress(psutil.Error, AssertionError):
                process.send_signal(signal.SIGCONT)
            if program is not None and program.poll() is None:
                with suppress(psutil.Error, AssertionError):
                    program.send_signal(signal.SIGCONT)

    def _stop_worker(self, fault: PlannedFault) -> Undo | None:
        worker = self._worker(fault)
        return IMPOSSIBLE if worker is None else self._stop([worker])

    def _stop_agent(self, fault: PlannedFault) -> Undo | None:
        for name in self._near(fault):
            program = self._fleet.agents.get(name)
            if program is not None and program.poll() is None:
                return self._stop(processes_of(program)[:1], program)
        return IMPOSSIBLE

    def _stop_coordinator(self, fault: PlannedFault) -> Undo | None:
        """Stop it; sometimes another is started meanwhile, as by one who takes it for dead."""
        if (found := self._fleet.coordinator()) is None:
            return IMPOSSIBLE
        name, program = found
        undo = self._stop(processes_of(program)[:1], program)
        others = [one for one in self._near(fault) if one != name]
        if self._fleet.style is Style.APART and fault.choice % 2 and others:
            self._fleet.coordinate(others[0])
        return undo

    def _stop_host(self, fault: PlannedFault) -> Undo | None:
        for name in self._near(fault):
            programs = self._fleet.programs(name)
            if not programs:
                continue
            found = [self._stop(processes_of(program), program) for program in programs]
            return partial(all_of, found)
        return IMPOSSIBLE

    # --- requests ---------------------------------------------------------------

    def _ask(self, fault: PlannedFault, words: Words) -> Undo | None:
        near = self._near(fault)
        if not near or words() is None:
            return IMPOSSIBLE
        self._ask_from(near[0], words, time.monotonic() + ASKS_S)
        return nothing

    def _ask_from(self, name: str, words: Words, until_s: float) -> None:
        """Ask from a host; what is not answered is asked again, where the coordinator is."""
        asked = self._fleet.ask(name, *found) if (found := words()) is not None else None

        def look() -> None:
            code = None if asked is None else asked.poll()
            if code == EXIT_OK:
                self.answered += 1
            elif time.monotonic() < until_s and (asked is None or code is not None):
                coordinator = self._fleet.coordinator()
                self._ask_from(name if coordinator is None else coordinator[0], words, until_s)
            elif code is None and asked is not None:
                self._at(time.monotonic() + 1.0, look)

        self._at(time.monotonic() + 1.0, look)

    def _scale(self, fault: PlannedFault) -> Undo | None:
        return self._ask(fault, lambda: ("scale", 1 + fault.choice % self._fleet.most))

    def _drain(self, fault: PlannedFault) -> Undo | None:
        def words() -> tuple[object, ...] | None:
            if not (members := self.told.members):
                return None
            notice = ("0.05s", "20s")[fault.choice % 2]
            return "drain", members[fault.choice % len(members)], "--notice", notice

        return self._ask(fault, words)

    def _suspend(self, fault: PlannedFault) -> Undo | None:
        undo = self._ask(fault, lambda: ("suspend",))
        if undo is not IMPOSSIBLE:
            self._fleet.suspended(fault.lasts_s)
        return undo
