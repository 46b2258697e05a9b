"""Where the kernel counts the processes that it killed for want of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.machine.out_of_memory import oom_kills


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
