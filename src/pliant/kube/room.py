"""What a namespace still has room for: its ResourceQuotas and LimitRanges, before pods are made.

Owns the sums; an API server refuses what is beyond, and a refusal says less.  Quotas with scopes
are left out: whether they hold for a pod is for the API server to say.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")

_UNITS = {"m": 1e-3, "k": 1e3} | {
    f"{unit}{binary}": (1024.0 if binary else 1000.0) ** power
    for power, unit in enumerate("KMGTPE", 1)
    for binary in ("i", "")
}


class Room(NamedTuple):
    """How many more pods of one kind, and what stands against more."""

    pods: int | None = None
    """None: any number."""

    reason: str = ""


def quantity(text: str | int) -> float:
    """Return a quantity as a number; 0 of what is none."""
    found = _QUANTITY.fullmatch(str(text))
    return float(found[1]) * _UNITS.get(found[2] or "", 1.0) if found else 0.0


def room_for(
    pod: Mapping[str, Any],
    quotas: Iterable[Mapping[str, Any]],
    ranges: Iterable[Mapping[str, Any]],
) -> Room:
    """Return how many more pods of this specification a namespace takes."""
    for one in ranges:
        if clause := _out_of_range(pod, one):
            return Room(0, clause)
    needs, room = _needs(pod), Room()
    for quota in quotas:
        spec, status = quota.get("spec") or {}, quota.get("status") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        used = status.get("used") or {}
        for resource, hard in (status.get("hard") or spec.get("hard") or {}).items():
            if not (need := needs.get(resource, 0.0)):
                continue
            left = quantity(hard) - quantity(used.get(resource, 0))
            pods = max(0, math.floor(left / need + 1e-9))
            if room.pods is None or pods < room.pods:
                name, taken = quota["metadata"]["name"], used.get(resource, 0)
                room = Room(pods, f"ResourceQuota {name}: {resource} {taken} of {hard} are used")
    return room


def _needs(pod: Mapping[str, Any]) -> Mapping[str, float]:
    """Return what one pod counts in each resource of a quota."""
    needs: defaultdict[str, float] = defaultdict(float, {"pods": 1.0, "count/pods": 1.0})
    for container in pod["containers"]:
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        for name, amount in {**limits, **(resources.get("requests") or {})}.items():
            for counted in (name, f"requests.{name}"):
                needs[counted] += quantity(amount)
        for name, amount in limits.items():
            needs[f"limits.{name}"] += quantity(amount)
    return needs


def _out_of_range(pod: Mapping[str, Any], limits: Mapping[str, Any]) -> str:
    """Say what of a pod a LimitRange refuses; empty: nothing."""
    name = limits["metadata"]["name"]
    for limit in limits["spec"].get("limits") or ():
        if limit.get("type") != "Container":
            continue
        for container in pod["containers"]:
            resources = container.get("resources") or {}
            asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
            for resource, most in (limit.get("max") or {}).items():
                if quantity(asked.get(resource, 0)) > quantity(most):
                    return (
                        f"LimitRange {name}: container {container['name']} asks for {resource} "
                        f"{asked[resource]}, and at most {most} are allowed"
                    )
    return ""
