"""What a job runs, as an agent judges it before it takes part.

Owns whether this node has what the job needs, and how both are worded.  Starts nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path

from pliant.core.counts import counted
from pliant.core.errors import ConfigError
from pliant.engine.groups.tls import TlsContexts, exposed_key
from pliant.wire.messages import Work

_log = logging.getLogger(__name__)


def obstacle_to(work: Work, *, devices: int) -> str | None:
    """Say why a job cannot run on this node, which has so many devices."""
    missing = [path for path in (work.cwd, work.out) if not Path(path).is_dir()]
    if missing:
        return (
            f"{missing[0]} of job {work.job} is no directory on this node; an agent needs the "
            "directories of its coordinator"
        )
    if devices < work.workers_per_replica:
        return (
            f"a replica of job {work.job} has {work.workers_per_replica} workers, all on one node, "
            f"and this one has {counted(devices, 'device')}; start its agent with --devices "
            f"{work.workers_per_replica} or more, or leave it out"
        )
    if work.tls is None:
        return None
    try:
        TlsContexts.of(work.tls)
        if (warning := exposed_key(work.tls)) is not None:
            _log.warning("%s", warning)
    except (ConfigError, OSError) as error:
        return f"job {work.job} needs TLS files of this node: {error}"
    return None


def told(work: Work) -> str:
    """Name a job for people."""
    how = "" if work.tls is None else f" with the certificate {work.tls.certificate}"
    return f"{' '.join(work.command)} of job {work.job} in {work.out}{how}"
