"""The catalogue: every feature by group, and which are trained together in one job."""

from __future__ import annotations

from collections.abc import Iterator

from tests.features import data, loops, methods, optimizers, precision, structure
from tests.features.feature import Feature
from tests.features.refusal import Listed
from tests.features.refused_scripts import SCRIPTS

GROUPS: dict[str, list[Feature]] = {
    "optimizers and schedulers": optimizers.FEATURES,
    "precision": precision.FEATURES,
    "structure": structure.FEATURES,
    "methods": methods.FEATURES,
    "data": data.FEATURES,
    "loops": loops.FEATURES,
}


SESSION = "arguments of a session"

JOB_OF = {
    "precision": "precision and data",
    "data": "precision and data",
    "methods": "structure and methods",
    "structure": "structure and methods",
}
"""A job costs more to start than its features to train."""


def _jobs() -> dict[str, list[Feature]]:
    jobs: dict[str, list[Feature]] = {}
    for group, features in GROUPS.items():
        for feature in features:
            if feature.build is not None:
                job = SESSION if feature.is_alone else JOB_OF.get(group, group)
                jobs.setdefault(job, []).append(feature)
    return jobs


JOBS = _jobs()
"""What one elastic job trains, by the job's name."""


def named(name: str) -> Feature:
    """Return the feature of this name."""
    return next(one for features in GROUPS.values() for one in features if one.name == name)


REFUSED_TOGETHER = [
    Listed(None, "loops", "break from the outer loop on one replica", "`step.stop()`"),
    Listed(None, "structure", "context parallelism inside a replica", "`shard`, `tp` and `pp`"),
]
"""What several processes show: ``test_elastic_session.py`` and ``test_device_mesh.py``."""


def refused_of(group: str) -> Iterator[tuple[str, str]]:
    """Yield the names of what a group does not have, and what to do instead."""
    for row in (*SCRIPTS.values(), *REFUSED_TOGETHER):
        if isinstance(row, Listed) and row.group == group:
            yield row.name, row.instead
