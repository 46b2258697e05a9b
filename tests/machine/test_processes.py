"""What the kernel tells of a process that says nothing, and of those that it killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.machine.processes import LifeWatch, ProcessMark, oom_kills

pytestmark = pytest.mark.timeout(20)


def test_a_process_lives_while_it_sleeps_and_not_while_it_is_stopped_or_gone() -> None:
    sleeping = "import sys, time; print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", sleeping], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # else it may be loaded from a disk, which is another state
        watch = LifeWatch(process.pid)
        assert watch.shows_life()

        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert not watch.shows_life()

        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        assert watch.shows_life()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not watch.shows_life()
    finally:
        process.kill()
        process.communicate()
    assert not watch.shows_life()


def test_one_that_waits_for_a_device_lives_if_it_gets_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = ["D", *("0" * 19)]

    class Stat:
        def read_text(self) -> str:
            return f"7 (a (name)) {' '.join(fields)}"

    watch = LifeWatch(os.getpid())
    monkeypatch.setattr(watch, "_stat", Stat())
    assert not watch.shows_life()
    assert not watch.shows_life()
    fields[9] = "3"  # major page faults: it is being swapped in
    assert watch.shows_life()
    assert not watch.shows_life()


def test_a_process_is_known_by_its_start_its_boot_and_its_machine() -> None:
    own = ProcessMark.own()
    boot = own.machine.split()[0]

    assert own.lives() is True
    assert replace(own, began="1").lives() is False
    assert replace(own, machine="another pid:[1]").lives() is False
    assert replace(own, machine=f"{boot} pid:[1]").lives() is None
    assert replace(own, machine="another pid:[1]", host="another").lives() is None
    assert ProcessMark.of({"pid": own.pid}) == ProcessMark(pid=own.pid)
    assert [ProcessMark.of({"pid": pid}) for pid in (None, "7", 0, -1)] == [None] * 4


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.events": "oom_kill 2\n"}, 2),
        (
            {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/memory.events": "oom_kill 3\n"},
            3,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,memory:/job\n0::/\n",
                "sys/fs/cgroup/memory/job/memory.oom_control": "under_oom 0\noom_kill 4\n",
            },
            4,
        ),
        ({"proc/vmstat": "nr_free_pages 7\noom_kill 5\n"}, 5),
        ({}, None),
    ],
)
def test_the_nearest_counter_counts(tmp_path: Path, files: dict[str, str], count: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert oom_kills(tmp_path) == count


def test_this_kernel_says_it() -> None:
    assert (oom_kills() or 0) >= 0
