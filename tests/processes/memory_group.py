"""A memory control group of a test's own, in which the kernel kills for want of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path("/sys/fs/cgroup")

HOG = """
import sys, time
from pathlib import Path
held, victim = [], Path(f"/proc/{sys.argv[1]}/stat")
def lives():
    try:
        return victim.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
while lives():
    held.append(b"x" * (4 << 20))
    time.sleep(0.01)
"""
"""Takes more and more memory, and leaves it to others to be killed for it."""


class MemoryGroup:
    """One, of version 2 or 1."""

    def __init__(self, place: Path, procs: Path, limit: str) -> None:
        self.place = place
        self._before = procs
        self._limit = limit

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be in it: what is started meanwhile is, and stays there."""
        (self.place / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            self._before.write_text(str(os.getpid()))

    def kill_for_memory(self, pid: int) -> None:
        """Let the kernel kill a process in it, for want of memory."""
        used = psutil.Process(pid).memory_info().rss
        (self.place / self._limit).write_text(str(used + (256 << 20)))
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
        with self.inside():
            hog = subprocess.Popen([sys.executable, "-c", HOG, str(pid)])
        hog.wait()


@contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """Lend one; skips where none can be made, with the reason."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    for _, controllers, where in (line.split(":", 2) for line in lines):
        if "memory" in controllers.split(","):
            mine, limit = ROOT / "memory" / where.lstrip("/"), "memory.limit_in_bytes"
        elif not controllers:
            mine, limit = ROOT / where.lstrip("/"), "memory.max"
        else:
            continue
        place = mine / f"pliant-test-{uuid.uuid4().hex[:8]}"
        try:
            place.mkdir()
            (place / limit).read_text()
            (mine / "cgroup.procs").read_text()
        except OSError:
            if place.is_dir():
                place.rmdir()
            continue
        try:
            yield MemoryGroup(place, mine / "cgroup.procs", limit)
        finally:
            place.rmdir()
        return
    pytest.skip("needs the right to make a memory control group")
