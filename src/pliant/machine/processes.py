"""Processes of this machine: whether one still lives, and that one dies with its parent.

Owns that a process is known by its id, the moment it began and the boot (ids are used again), what
the kernel tells of its being alive, and the calls that tie a process to its parent; and where it
counts that it has killed one for want of memory: in the control group of this process (version 2 or
1), else for the whole machine.  Must not know what any of them runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pliant.core.values import AgentLife

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CONSUMED = (9, 11, 12)
"""What grows in ``/proc/PID/stat``, after the name: major page faults, user and system time."""

ROOT = Path("/")

_libc = ctypes.CDLL(None, use_errno=True)
"""Loaded once: after a fork nothing is left to load."""


def process_started(pid: int) -> str | None:
    """Return when a process began, in ticks since boot; ``None`` if there is none that lives."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def process_user(pid: int) -> int | None:
    """Return whose process it is, by its real user id; None: there is none, or it cannot be seen.

    What a user has started stays that user's by this id, even if it may do what another may.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Uid:")), None)


def process_lives(pid: int, started: str) -> bool:
    """Return whether the process that began then still lives; ids are used again."""
    if started:
        return process_started(pid) == started
    try:  # no /proc when it was written
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """A process as what is written of it knows it; on another machine, or later, too."""

    pid: int
    began: str = ""
    """When it began; empty: not known."""

    machine: str = ""
    """Boot and process namespace in which its id counts; empty: not known."""

    host: str = ""

    @classmethod
    def own(cls) -> Self:
        """Return that of this process."""
        pid = os.getpid()
        return cls(
            pid=pid,
            began=process_started(pid) or "",
            machine=machine_id(),
            host=socket.gethostname(),
        )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self | None:
        """Return the one that a record tells of; None: it tells of none."""
        pid = values.get("pid")
        if not isinstance(pid, int) or pid <= 0:
            return None
        more = {name: str(values.get(name) or "") for name in ("began", "machine", "host")}
        return cls(pid=pid, **more)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is of another machine, by the name of its host."""
        return bool(self.host) and self.host != socket.gethostname()

    @property
    def is_of_this_boot(self) -> bool:
        """Whether this kernel has run it, in whatever namespace of processes."""
        boot, *namespaces = self.machine.split()[:2] or [""]
        return bool(namespaces) and [boot] == machine_id().split()[:1]

    def lives(self) -> bool | None:
        """Return whether it does; None: this machine cannot tell, it is one of another."""
        here = machine_id()
        if self.machine and self.machine != here:
            is_another_boot = self.machine.split()[:1] != here.split()[:1]
            return False if is_another_boot and not self.is_elsewhere else None
        return process_started(self.pid) is not None and process_lives(self.pid, self.began)


class LifeWatch:
    """Looks at one process from outside, whatever it does: it need not answer.

    Alive is one that runs or waits.  One that was stopped (SIGSTOP, a debugger) is not.  One that
    the kernel keeps in uninterruptible sleep is if it got anywhere since the last look: a machine
    that swaps shows nearly every process like that.
    """

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._consumed = -1

    def shows_life(self) -> bool:
        """Look again."""
        try:
            fields = self._stat.read_text().rpartition(")")[2].split()
        except OSError:
            return False
        before, self._consumed = self._consumed, sum(int(fields[at]) for at in _CONSUMED)
        return fields[0] in "RSI" or (fields[0] == "D" and self._consumed > before >= 0)


def die_with_parent(parent: int, *, code: int) -> None:
    """Make the kernel kill this process when the thread of ``parent`` that forked it ends.

    If that has happened already, the process ends here, with exit code ``code``.
    """
    signal_at_parents_death(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(code)


def signal_at_parents_death(number: int) -> None:
    """Ask the kernel for a signal when the thread that forked this process ends; 0: for none."""
    if sys.platform == "linux":  # a script that trains alone may do so elsewhere
        _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Make every descendant that loses its parent a child of this process."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def machine_id() -> str:
    """Return an id of this boot and process namespace: where a process id is unique."""
    parts = []
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts) or socket.gethostname()


def this_boot() -> int:
    """Return which machine this is, and which of its starts; 0: the system does not say."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
        return int(boot_id.replace("-", "")[:12], 16)
    except (OSError, ValueError):
        return 0


def new_life() -> AgentLife:
    """Return the life of what begins now, which no jump of a clock makes older than one before."""
    uptime_ns = 0
    with suppress(OSError, AttributeError):  # the system may have none
        uptime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return AgentLife(boot=this_boot(), uptime=uptime_ns // 1000, at=time.time_ns() // 1000)


def oom_kills(root: Path = ROOT) -> int | None:
    """Return how often the kernel has killed one for want of memory; None: it does not say."""
    for path in _counters(root):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for name, _, count in (line.partition(" ") for line in lines):
            if name == "oom_kill":
                return int(count)
    return None


def _counters(root: Path) -> list[Path]:
    """Name the files that may count it, the nearest first."""
    groups, found = root / "sys" / "fs" / "cgroup", []
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for _, controllers, place in (line.split(":", 2) for line in lines):
        inside = place.lstrip("/")
        if not controllers:
            # in a container the group may be mounted as the root, whatever its path says
            found += [groups / inside / "memory.events", groups / "memory.events"]
        elif "memory" in controllers.split(","):
            v1 = groups / "memory"
            found += [v1 / inside / "memory.oom_control", v1 / "memory.oom_control"]
    return [*found, root / "proc" / "vmstat"]


def signal_name(number: int) -> str:
    """Return what a signal is called."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
