"""Whether the kernel has killed a process for want of memory.

Owns where the kernel counts that: in the control group of this process (version 2 or 1), else for
the whole machine.  Knows nothing of whom it has killed.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def oom_kills(root: Path = ROOT) -> int | None:
    """Return how often that has happened; None: the kernel does not say."""
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
