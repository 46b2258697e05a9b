"""A workload is told by its first line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.simulate.world_files import read_workload

SACCT = (
    "JobID|Submit|Start|End|AllocTRES\n"
    "7|2026-10-01T08:00:00|2026-10-01T08:00:00|2026-10-01T08:01:00|gres/gpu=1\n"
)
KUBECTL = """{"items": [{
  "metadata": {"name": "7", "creationTimestamp": "2026-10-01T08:00:00Z"},
  "spec": {"template": {"spec": {"containers": [{"resources": {"limits": {"amd.com/gpu": 1}}}]}}},
  "status": {"startTime": "2026-10-01T08:00:00Z", "completionTime": "2026-10-01T08:01:00Z"}}]}
"""


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("text", [SACCT, KUBECTL, "arrival_s,work_s\r\n0,60\r\n"])
def test_each_kind_of_file_gives_its_job(tmp_path: Path, text: str, mark: str) -> None:
    path = tmp_path / "jobs"
    path.write_text(mark + text)

    (job,) = read_workload(str(path)).jobs

    assert (job.arrival_s, job.work_s, job.devices) == (0.0, 60.0, 1)


def test_a_generator_of_something_else_is_no_workload() -> None:
    with pytest.raises(ConfigError, match="generates no jobs"):
        read_workload("day:day=3")
