"""The ground ends with the process that made it, however that one ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.cluster.ground import ROOT, Ground, obstacle

if reason := obstacle():
    pytest.skip(reason, allow_module_level=True)

HOLD = """
import sys, threading, pathlib
from tests.cluster.ground import Ground, child_of
place = pathlib.Path(sys.argv[1])
ground = Ground(place)
held = ground.start("sleep", "1000", out=place / "said")
while child_of(held.pid) is None: pass
print(ground.init, child_of(held.pid), flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_test_leaves_no_process_and_no_interface(tmp_path: Path, number: int) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert holder.stdout is not None
    pids = [int(word) for word in holder.stdout.readline().split()]
    assert len(pids) == 2

    holder.send_signal(number)
    holder.communicate()

    until_s = time.monotonic() + 20
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not any(map(psutil.pid_exists, pids))
    assert "ground" not in Path("/proc/mounts").read_text()


def test_a_socket_of_the_ground_works_from_outside(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    try:
        with ground.entered():
            inside = Path("/proc/thread-self/net/dev").read_text()
        outside = Path("/proc/thread-self/net/dev").read_text()
    finally:
        ground.close()

    assert "br0" in inside
    assert "br0" not in outside
