"""What `pliant coordinator` does once its arguments are read, with the waits of a test."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pliant.coordinator.driver import JobDriver
from pliant.core.commands import EndJob
from pliant.core.errors import ConflictError
from pliant.core.job.state import JobSettings, Ready
from pliant.core.membership.state import Timeouts
from pliant.core.policy.decide import Policy
from pliant.run.job_config import JobConfig
from pliant.run.separate import run_coordinator


def die_before_the_end(mark: Path) -> None:
    """Let the first coordinator that has recorded the job's end be killed before it says so."""
    carry_out = JobDriver._command

    async def carry_out_or_die(driver: JobDriver, ready: Ready, *, is_told: bool = False) -> None:
        has_ended = any(isinstance(command, EndJob) for command in ready.commands)
        if has_ended and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        await carry_out(driver, ready, is_told=is_told)

    JobDriver._command = carry_out_or_die  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given["dies_once_at"]:
        die_before_the_end(Path(given["dies_once_at"]))
    config = JobConfig(
        name="job",
        argv=tuple(given["argv"]),
        environ=os.environ,
        out=Path(given["out"]),
        port=given["port"],
        settings=JobSettings(
            policy=Policy(
                min_replicas=given["least"],
                max_replicas=given["replicas"],
                start_replicas=given["start"],
            ),
            timeouts=Timeouts(**given["timeouts"]),
        ),
    )
    try:
        sys.exit(run_coordinator(config))
    except ConflictError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(5)
