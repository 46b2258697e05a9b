"""What ``kubectl get jobs -A -o json`` prints, read as jobs.

Owns the fields that are needed, and the sentence for what cannot be read.  A Job's devices are
those of its containers' limits, times the pods that it has at a time.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pliant.core.errors import ConfigError
from pliant.spec.exported_jobs import Export, ExportedJob, unix_s, workload_of
from pliant.spec.pool import MOST_DEVICES

EXPORT = "`kubectl get jobs -A -o json`"
ACCELERATORS = ("/gpu", "/tpu", "/gaudi", "/neuron")
"""How resources that are accelerators end: nvidia.com/gpu, amd.com/gpu, google.com/tpu,
habana.ai/gaudi, aws.amazon.com/neuron."""


def is_kubernetes(text: str) -> bool:
    """Whether this begins as JSON does."""
    return text.lstrip().startswith("{")


def parse_kubernetes_jobs(text: str, *, source: str) -> Export:
    """Read an export.

    Raises:
        ConfigError: it is no list of Jobs, or a field of one cannot be read; it is named.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        what = getattr(error, "msg", "it is too deep")
        raise ConfigError(f"{source} line {line} is no JSON: {what}; expected {EXPORT}") from None
    items = document.get("items", [document])
    if not isinstance(items, list):
        raise ConfigError(f"{source}: items is no list; expected {EXPORT}")
    found: list[ExportedJob] = []
    left_out: Counter[str] = Counter()
    for at, item in enumerate(items):
        job = _job(item, f"{source}: items[{at}]")
        if isinstance(job, str):
            left_out[job] += 1
        else:
            found.append(job)
    return workload_of(found, left_out, source=source)


def _job(item: object, where: str) -> ExportedJob | str:
    """Return a job, or why it is none."""
    kind = item.get("kind", "Job") if isinstance(item, dict) else type(item).__name__
    if not isinstance(item, dict) or kind != "Job":
        raise ConfigError(f"{where} is a {str(kind)[:40]}; expected Jobs, as from {EXPORT}")
    about, wanted, status = (_mapping(item, name, where) for name in ("metadata", "spec", "status"))
    name = f"{about.get('namespace', 'default')}/{about.get('name', '')}"
    where = f"{where} ({name[:80]})"
    devices = _devices(wanted, where)
    if not devices:
        return "jobs without an accelerator"
    submitted_s = _moment(about, "creationTimestamp", where)
    began_s = _moment(status, "startTime", where)
    if submitted_s is None:
        raise ConfigError(f"{where}: metadata.creationTimestamp is missing; expected a time")
    if began_s is None:
        return "jobs that never began"
    ended_s = _moment(status, "completionTime", where)
    for condition in _list(status, "conditions", where):
        is_over = condition.get("type") == "Failed" and condition.get("status") == "True"
        if ended_s is None and is_over:
            ended_s = _moment(condition, "lastTransitionTime", where)
    if began_s < submitted_s or (ended_s is not None and ended_s < began_s):
        raise ConfigError(f"{where}: it ended before it began, or began before it was made")
    return ExportedJob(
        name=name, submitted_s=submitted_s, began_s=began_s, ended_s=ended_s, devices=devices
    )


def _devices(wanted: dict[str, Any], where: str) -> int:
    pod = _mapping(_mapping(wanted, "template", where), "spec", where)
    each = 0
    for container in _list(pod, "containers", where):
        limits = _mapping(_mapping(container, "resources", where), "limits", where)
        for name, number in limits.items():
            if name.endswith(ACCELERATORS):
                each += _count(number, f"{where}: limits of {name[:40]}")
    pods = _count(wanted.get("parallelism", 1), f"{where}: spec.parallelism")
    if wanted.get("completions") is not None:
        pods = min(pods, _count(wanted["completions"], f"{where}: spec.completions"))
    if each * pods > MOST_DEVICES:
        raise ConfigError(
            f"{where}: {each * pods} accelerators; at most {MOST_DEVICES} can be simulated"
        )
    return each * pods


def _count(value: object, where: str) -> int:
    text = str(value)
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ConfigError(f"{where} {text[:40]!r} cannot be read; expected a whole number")
    return int(text)


def _moment(values: dict[str, Any], name: str, where: str) -> float | None:
    if values.get(name) is None:
        return None
    moment_s = unix_s(str(values[name]))
    if moment_s is None:
        raise ConfigError(
            f"{where}: {name} {str(values[name])[:40]!r} is no time; expected 2026-10-01T08:00:00Z"
        )
    return moment_s


def _mapping(values: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    found = values.get(name) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {name} is no mapping; expected {EXPORT}")
    return found


def _list(values: dict[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    found = values.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ConfigError(f"{where}: {name} is no list of mappings; expected {EXPORT}")
    return found
