"""What the policy looks at, and what follows from it and the policy at once.

Owns the values that both the choice of a size (``decide``) and its sentences (``wording``) read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pliant.core.policy.costs import Costs
from pliant.core.policy.fields import Policy
from pliant.core.policy.hysteresis import Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """What the policy looks at; counts, and what was measured and remembered."""

    num_replicas: int
    """Replicas that train or are on their way in, without those that leave, and without spares."""

    leaving: int = 0
    """Replicas that still train, though they are too many or drained: they leave at a boundary."""

    taken: int = 0
    """Replicas that still train on devices that the outside takes back; others may follow them."""

    devices: int
    """Replicas that the nodes can run at a time, in all."""

    core_replicas: int | None = None
    """Replicas whose workers have a core each; more are slower.  None: not known."""

    apart: int = 0
    """Devices beside these on nodes that could not reach those who train."""

    silent: int = 0
    """Devices beside these on nodes whose agents say nothing."""

    requested: int | None = None
    """What someone asked for last; None: nobody has."""

    num_slots: int | None = None
    """K; None until the first script has reported it."""

    offered: int | None = None
    """Replicas that the outside grants in all; None: whatever there are devices for."""

    offer_reason: str = ""
    """What the outside says about that, for people."""

    taken_for: str = ""
    """Why nodes leave, as the outside has said."""

    reclaimed: int = 0
    """Devices that the outside takes back and that still run a replica."""

    is_urgent: bool = False
    """Nothing is held back: the job starts, or someone has just asked for a size or a policy."""

    pace: Pace = field(default_factory=Pace)
    costs: Costs = field(default_factory=Costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCase:
    """One view under one policy, with what follows from both at once."""

    view: PolicyView
    policy: Policy
    ceiling: int
    because: str
    """What allows no more than ``ceiling``."""

    asked: int | None
    """The size that someone asked for."""

    limit: int
    """Largest size that wishes, bounds and slots allow, whatever devices there are."""

    bound: int
    """Largest allowed size within that and the devices."""

    wanted: int
    """The same without replicas that are not worth it."""

    capacity: int
    """Replicas there is room for."""


def capacity_of(view: PolicyView) -> int:
    """Return the replicas that there is room for, whatever the policy says."""
    capacity = view.devices if view.offered is None else min(view.devices, view.offered)
    return max(0, capacity - view.reclaimed)


def fit(policy: Policy, size: int) -> int:
    """Return the largest allowed size up to this one; too few to train stay what they are."""
    return policy.largest(size) or size
