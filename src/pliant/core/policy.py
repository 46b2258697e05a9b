"""How many replicas the job should have: wishes, bounds and capacity in, one number out.

Owns the choice of a size and the sentence that explains it.  Must not know which replicas there
are, how a change is carried out, or the wall clock; the caller passes ``now_s`` in.

This first policy takes no account of time: every decision may be carried out at once.  Offers and
reclaims are the seam for an outside that gives and takes capacity; nothing else delays, groups or
weighs a change yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.batching import efficiency
from pliant.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPolicy:
    """The bounds that the user sets."""

    min_replicas: int = 1
    """Below it nothing trains; the members hold until a replacement has come."""

    max_replicas: int | None = None
    """None: as many as there are devices, and no more than a step has slots."""

    start_replicas: int | None = None
    """Size to start with, kept until someone wishes for another.  None: the maximum."""

    def __post_init__(self) -> None:
        for name in ("min_replicas", "max_replicas", "start_replicas"):
            value = getattr(self, name)
            if value is None and name != "min_replicas":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} must be a positive integer, got {value!r}")
        if self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise ConfigError(
                f"min_replicas={self.min_replicas} is above max_replicas={self.max_replicas}"
            )
        if self.start_replicas is not None:
            _require_in_bounds(self, "start_replicas", self.start_replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the policy looks at; counts only."""

    num_replicas: int
    """Replicas that train or are on their way in, without those that leave."""

    devices: int
    """Replicas that the nodes can run at a time, in all."""

    wished: int | None = None
    """What someone asked for last; None: nobody has."""

    num_slots: int | None = None
    """K; None until the first script has reported it."""

    offered: int | None = None
    """Replicas that the outside grants in all; None: whatever there are devices for."""

    reclaimed: int = 0
    """Devices that the outside takes back and that still run a replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How many replicas there should be, and why."""

    ask_replicas: int
    """What the outside should grant: the size wanted if capacity were no question."""

    target_replicas: int
    """What to head for now, given the capacity there is."""

    reason: str
    """One sentence for people."""

    earliest_s: float
    """When it may be carried out, in monotonic seconds; this policy always says now."""


def decide(view: View, policy: ElasticPolicy, *, now_s: float) -> Decision:
    """Choose the size of the job.

    Never above ``max_replicas``, the slots of a step, or what is offered; below ``min_replicas``
    only where the capacity is.
    """
    ceiling, because = _ceiling(view, policy)
    wished = _wished(view, policy)
    ask = max(policy.min_replicas, ceiling if wished is None else min(wished, ceiling))
    if view.num_slots is not None:
        ask = min(ask, view.num_slots)
    capacity = view.devices if view.offered is None else min(view.devices, view.offered)
    capacity = max(0, capacity - view.reclaimed)
    target = min(ask, capacity)
    if target < ask:
        cause = _shortage(view, policy, ask, capacity)
    elif wished is None:
        cause = because
    elif wished > ask:
        cause = f"{wished} asked for, but {because}"
    elif wished < ask:
        cause = f"{wished} asked for, but min_replicas={policy.min_replicas}"
    else:
        cause = f"{wished} asked for"
    return Decision(
        ask_replicas=ask,
        target_replicas=target,
        reason=f"{_move(view.num_replicas, target)}: {cause}{_idle_share(view, target)}",
        earliest_s=now_s,
    )


def require_slots(policy: ElasticPolicy, num_slots: int) -> None:
    """Check the bounds against ``K``, once the first script has reported it.

    Raises:
        ConfigError: a bound that the user set is above ``K``.
    """
    for name in ("min_replicas", "max_replicas", "start_replicas"):
        value = getattr(policy, name)
        if value is not None and value > num_slots:
            slots = "1 slot" if num_slots == 1 else f"{num_slots} slots"
            raise ConfigError(
                f"{name}={value} is above the {slots} of a step, and each replica needs "
                f"one; lower {name} to {num_slots}, or make micro_batch_size smaller"
            )


def objection(wished: int, view: View, policy: ElasticPolicy) -> str | None:
    """Return why a wish for this size must be refused, or None."""
    if wished < policy.min_replicas:
        return f"{_count(wished, 'replica')} would be below min_replicas={policy.min_replicas}"
    if policy.max_replicas is not None and wished > policy.max_replicas:
        return f"{wished} replicas would be above max_replicas={policy.max_replicas}"
    if view.num_slots is not None and wished > view.num_slots:
        return f"{wished} replicas cannot share the {view.num_slots} slots of a step"
    return None


def _ceiling(view: View, policy: ElasticPolicy) -> tuple[int, str]:
    """Return the largest size allowed, and what allows no more."""
    if policy.max_replicas is not None:
        ceiling, because = policy.max_replicas, f"max_replicas={policy.max_replicas}"
    else:
        ceiling, because = view.devices, f"there are {_count(view.devices, 'device')}"
    if view.num_slots is not None and view.num_slots < ceiling:
        return view.num_slots, f"a step has {_count(view.num_slots, 'slot')}"
    return ceiling, because


def _wished(view: View, policy: ElasticPolicy) -> int | None:
    return view.wished if view.wished is not None else policy.start_replicas


def _shortage(view: View, policy: ElasticPolicy, ask: int, capacity: int) -> str:
    cause = f"{ask} wanted, room for {capacity}"
    if view.reclaimed:
        cause += f" after {view.reclaimed} reclaimed"
    if capacity < policy.min_replicas:
        cause += f", too few to train (min_replicas={policy.min_replicas})"
    return cause


def _move(now: int, target: int) -> str:
    if target == now:
        return f"stay at {_count(now, 'replica')}"
    return f"{'grow' if target > now else 'shrink'} from {now} to {_count(target, 'replica')}"


def _idle_share(view: View, target: int) -> str:
    if view.num_slots is None or target < 1:
        return ""
    busy = efficiency(view.num_slots, target)
    return "" if busy == 1.0 else f"; {view.num_slots} slots keep them {busy:.0%} busy"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _require_in_bounds(policy: ElasticPolicy, name: str, value: int) -> None:
    if value < policy.min_replicas:
        raise ConfigError(f"{name}={value} is below min_replicas={policy.min_replicas}")
    if policy.max_replicas is not None and value > policy.max_replicas:
        raise ConfigError(f"{name}={value} is above max_replicas={policy.max_replicas}")
