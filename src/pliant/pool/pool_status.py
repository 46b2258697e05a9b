"""What a pool looks like from outside: one JSON object, drawn by every view.

Owns its shape.  Decides nothing: everything is read from the core and from the claimants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pliant.core.allocation import Standing, Summary, kinds
from pliant.core.device_masks import Accelerator
from pliant.core.device_names import kind_of
from pliant.pool.allocator import classes_of
from pliant.pool.claims import Claimant
from pliant.pool.driver import PoolDriver
from pliant.pool.state import name_of, names_of


def board_of(driver: PoolDriver) -> dict[str, Any]:
    """Return the documented shape of ``pliant pool status --json``."""
    summary = kinds.summary_of_kinds(driver.allocator.core)
    core, now_s = driver.allocator.core, driver.claims.allocator.clock.now_s()
    names, claimants = names_of(driver.saved), driver.claims.by_name
    claims = [
        claim_of(core, name, names=names, now_s=now_s, claimant=claimants.get(name))
        for name in _in_order(driver, summary)
    ]
    in_use = sum(len(claim["devices"]) for claim in claims)
    return {
        "pool": driver.saved.name,
        "life": driver.saved.life,
        "size": driver.saved.size,
        "limit": summary.limit,
        "usable": summary.usable,
        "in_use": in_use,
        "free": max(0, min(len(summary.free), summary.limit - in_use)),
        "recovering": driver.awaited(),
        "failure": driver.failure or None,
        "devices": _devices(driver, claims),
        "claims": claims,
        "teams": teams_of(summary),
        "classes": classes_of(driver.saved),
    }


def teams_of(summary: Summary) -> list[dict[str, Any]]:
    """Return the teams, with what each may use and uses."""
    return [
        {
            "team": use.team.name,
            "quota": use.team.quota,
            "borrow_limit": use.team.borrow_limit,
            "reclaim_from": use.team.reclaim.from_,
            "reclaim_by": use.team.reclaim.by,
            "share": use.share,
            "claims": use.claims,
        }
        for use in summary.teams
    ]


def _in_order(driver: PoolDriver, summary: Summary) -> list[str]:
    """Return the claims: who has devices, oldest first, then who waits, as they are served."""
    since = {name: claimant.since for name, claimant in driver.claims.by_name.items()}
    names = kinds.claims_of_kinds(driver.allocator.core)
    others = [name for name in names if name not in summary.waiting]
    return [*sorted(others, key=lambda name: since.get(name, 0.0)), *summary.waiting]


def claim_of(
    core: kinds.KindedPool,
    name: str,
    *,
    names: Mapping[int, str],
    now_s: float,
    claimant: Claimant | None = None,
) -> dict[str, Any]:
    """Return how a claim stands, of which a claimant that lives has reported.

    Raises:
        KeyError: there is none of this name.
    """
    standing = kinds.standing_of(core, name)
    if standing is None:
        raise KeyError(name)
    claim = standing.claim
    leave_s = standing.leave_by_s - now_s
    return {
        "name": name,
        "kind": claim.kind,
        "device_kind": claim.device_kind or None,
        "team": claim.team,
        "priority": claim.priority,
        "state": _state(standing, claimant),
        "devices": list(standing.devices),
        "replicas": standing.replicas,
        "share": standing.share,
        "min": claim.min_replicas,
        "ask": claim.ask_replicas,
        "leave_s": None if math.isinf(leave_s) else round(max(0.0, leave_s), 1),
        "since": claim.since,
        "pid": claimant.report.pid if claimant is not None else None,
        "reason": kinds.why_of(core, name, has_notes=False, names=names),
    }


def _state(standing: Standing, claimant: Claimant | None) -> str:
    if standing.is_withdrawn:
        return "ending"
    if standing.is_suspended:
        return "suspending" if standing.devices else "suspended"
    if standing.replicas < standing.claim.min_replicas:
        return "waiting"
    if not math.isinf(standing.leave_by_s):
        return "shrinking"
    if standing.claim.kind == "elastic" and claimant is not None and not claimant.report.is_running:
        return "starting"
    return "running"


def _devices(driver: PoolDriver, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those that there are, and of those that there were the ones that are not done with."""
    owners = {device: claim["name"] for claim in claims for device in claim["devices"]}
    leaving, saved = driver.claims.leaving, driver.saved

    def known(device: int) -> Accelerator | None:
        return driver.accelerators.get(name_of(saved, device))

    return [
        {
            "device": device,
            "name": name_of(driver.saved, device) or None,
            "kind": kind_of(name_of(driver.saved, device)) or None,
            "model": None if (one := known(device)) is None else one.model,
            "memory_bytes": None if one is None else one.memory_bytes,
            "claim": owners.get(device),
            "is_leaving": device in leaving,
            "is_cordoned": device in saved.cordoned or device in driver.ailing,
            "is_drained": device in saved.drained,
            "is_blocked": device in driver.blocked,
            "note": driver.saved.notes.get(device) or driver.why_ailing(device),
        }
        for device in sorted(driver.known_devices())
    ]
