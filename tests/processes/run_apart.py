"""What `pliant coordinator` does once its arguments are read, with the waits of a test."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pliant.core.errors import ConflictError
from pliant.core.job.state import JobSettings
from pliant.core.membership.state import Timeouts
from pliant.core.policy.decide import Policy
from pliant.run.job_config import JobConfig
from pliant.run.separate import run_coordinator

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
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
