"""``status`` of an ElasticJob as JSON, and back: what people read, and the operator's memory.

Owns the form: camelCase names of ``JobStatus``' fields, conditions as Kubernetes has them, nothing
for what is None.  What is written reads as what it was, so an operator that was started anew finds
nothing to write.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from pliant.core.operator.state import JobStatus
from pliant.core.operator.status import moment
from pliant.observe.core_values import value_of, written


def status_document(status: JobStatus) -> dict[str, Any]:
    """Return what is written of a status."""
    found: dict[str, Any] = _renamed(written(JobStatus, status), _camel)
    for condition in found.get("conditions", ()):
        condition["lastTransitionTime"] = moment(condition.pop("sinceS"))
        condition["observedGeneration"] = status.observed_generation
    return found


def read_status(document: dict[str, Any] | None) -> JobStatus:
    """Return the status that was written; an empty one of a job that has none yet.

    Raises:
        ValueError: it is none; somebody else wrote it.
    """
    fields = _renamed(document or {}, _snake)
    fields.pop("selector", None)  # the same for as long as the job is there
    conditions = [dict(one) for one in fields.get("conditions", ())]
    for condition in conditions:
        condition["since_s"] = seconds_of(condition.get("last_transition_time")) or 0.0
    found: JobStatus = value_of(JobStatus, fields | {"conditions": conditions})
    return found


def seconds_of(text: str | None) -> float | None:
    """Return a moment in seconds since 1970; None: there is none."""
    return None if not text else datetime.fromisoformat(text).timestamp()


def _renamed(data: Any, rename: Any) -> Any:
    if isinstance(data, dict):
        return {rename(k): _renamed(v, rename) for k, v in data.items() if v is not None}
    return [_renamed(item, rename) for item in data] if isinstance(data, list) else data


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", name)
