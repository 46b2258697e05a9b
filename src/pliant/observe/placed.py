"""Where replicas are, by what their job goes by: ``rack a: r1, r3; rack b: r2``.

Owns what a log says of it, in a status and in one line.  What a site is, ``core.placement`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pliant.core.errors import ConfigError
from pliant.core.placement import Placement, PlacementRule, site_of
from pliant.core.printable import printable
from pliant.core.values import NodeId
from pliant.observe.living_replicas import LivingReplicas
from pliant.observe.log import Record


def placed(about: Record, living: LivingReplicas) -> dict[str, Any] | None:
    """Return {rule, sites: {site: [replicas]}}; None: they may be anywhere."""
    try:
        rule = PlacementRule.of(str(about.get("placement") or Placement.FREE))
    except ConfigError:  # damaged
        return None
    if rule.how is Placement.FREE:
        return None
    known = {NodeId(node): own for node, own in living.labels.items()}
    sites: dict[str, list[str]] = {}
    for one in living.named.values():
        sites.setdefault(site_of(NodeId(one.node), known, rule.label), []).append(one.name)
    return {"rule": str(rule), "sites": sites}


def placed_line(values: Mapping[str, Any]) -> str:
    """Say it to a person."""
    rule = PlacementRule.of(values["rule"])
    sites = (f"{site}: {', '.join(names)}" for site, names in sorted(values["sites"].items()))
    return printable(f"{rule.how} by {rule.label}: " + ("; ".join(sites) or "nobody yet"))
