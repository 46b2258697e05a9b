"""The catalogue: every feature by group, and which are trained together in one job."""

from __future__ import annotations

from tests.features import data, optimizers, precision, structure
from tests.features.feature import Feature

GROUPS: dict[str, list[Feature]] = {
    "optimizers and schedulers": optimizers.FEATURES,
    "precision": precision.FEATURES,
    "structure": structure.FEATURES,
    "data": data.FEATURES,
}


def _jobs() -> dict[str, list[Feature]]:
    jobs: dict[str, list[Feature]] = {}
    for group, features in GROUPS.items():
        for feature in features:
            if feature.build is not None:
                jobs.setdefault(feature.job or group, []).append(feature)
    return jobs


JOBS = _jobs()
"""What one elastic job trains, by the job's name."""
