"""What `pliant coordinator` does once its arguments are read, with the waits of a test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pliant.cli.apart import run_coordinator
from pliant.cli.hosting import JobConfig
from pliant.core.errors import ConflictError
from pliant.core.job import Settings
from pliant.core.membership import Timeouts
from pliant.core.policy import ElasticPolicy

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    config = JobConfig(
        name="job",
        argv=tuple(given["argv"]),
        policy=ElasticPolicy(
            min_replicas=given["least"],
            max_replicas=given["replicas"],
            start_replicas=given["start"],
        ),
        out=Path(given["out"]),
        port=given["port"],
        settings=Settings(timeouts=Timeouts(**given["timeouts"])),
    )
    try:
        sys.exit(run_coordinator(config))
    except ConflictError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(5)
