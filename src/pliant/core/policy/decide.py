"""How many replicas the job should have: wishes, bounds and capacity in, one number out.

Owns the choice of a size, and the sentences that say why it is this one and what would have to
change for another.  Must not know which replicas there are, how a change is carried out, or the
wall clock; the caller passes ``now_s`` in and keeps the ``Pace`` for the next time.

    wanted     what wishes, bounds and slots allow, were capacity no question
    possible   the same within the capacity there is
    base       what remains of the settled size: less whatever was taken away, or wished away
    target     base, or possible once nothing holds that change back

From the settled size down to the base nothing waits: reclaims, losses and wishes are never
delayed.  Only what the policy does of its own accord is voluntary, and waits (``thrashing``).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from pliant.core.counts import counted
from pliant.core.policy import hysteresis
from pliant.core.policy.costs import Costs, is_faster, marginal_efficiency, worthwhile
from pliant.core.policy.fields import Policy, PolicyBackoff, require_slots
from pliant.core.policy.hysteresis import Pace, Wait
from pliant.core.step.batching import efficiency

__all__ = [
    "Decision",
    "Policy",
    "PolicyBackoff",
    "PolicyView",
    "consider",
    "decide",
    "objection",
    "require_slots",
]

NOTHING_KNOWN = Costs()
NOTHING_DONE = Pace()


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

    wished: int | None = None
    """What someone asked for last; None: nobody has."""

    num_slots: int | None = None
    """K; None until the first script has reported it."""

    offered: int | None = None
    """Replicas that the outside grants in all; None: whatever there are devices for."""

    offer_reason: str = ""
    """What the outside says about that, for people."""

    reclaimed: int = 0
    """Devices that the outside takes back and that still run a replica."""

    is_urgent: bool = False
    """Nothing is held back: the job starts, or someone has just wished for a size or a policy."""

    pace: Pace = NOTHING_DONE
    costs: Costs = NOTHING_KNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How many replicas there should be, and why."""

    ask_replicas: int
    """What the outside should grant: the size wanted if capacity were no question, and spares."""

    target_replicas: int
    """What to head for now."""

    possible_replicas: int
    """What to head for once nothing holds it back any more."""

    spare_replicas: int = 0
    """Replicas to keep ready beside them."""

    settled_replicas: int
    """What it counts as: up to it replacements come at once."""

    is_voluntary: bool = False
    """Nothing but the policy's own choice makes it a change."""

    reason: str
    """One sentence for people."""

    would_change: str
    """What would have to change for another answer, in one sentence."""

    earliest_s: float
    """When it looks again though nothing happens, in monotonic seconds; ``now_s``: no need to."""

    is_waiting: bool = False
    """Something is held back, so that time alone may bring another answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
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


def consider(view: PolicyView, policy: Policy, *, now_s: float) -> tuple[Decision, Pace]:
    """Decide, and return with it what must be remembered for the next time."""
    pace = hysteresis.watched(view.pace, _capacity(view), now_s)
    decision = decide(replace(view, pace=pace), policy, now_s=now_s)
    if pace.lost_at is not None and decision.settled_replicas == decision.target_replicas:
        pace = replace(pace, lost_at=None)
    if decision.is_voluntary:
        pace = hysteresis.changed(pace, policy, now_s)
    if pace.settled != decision.settled_replicas:
        pace = replace(pace, settled=decision.settled_replicas)
    return decision, pace


def decide(view: PolicyView, policy: Policy, *, now_s: float) -> Decision:
    """Choose the size of the job.

    Never above ``max_replicas``, the slots of a step, or what is offered; below ``min_replicas``
    only where the capacity is; one of the allowed sizes, but where fewer than the smallest are
    possible, and where survivors wait for a replacement.  Changes nothing of ``view.pace``;
    ``consider`` does.
    """
    case = _case(view, policy)
    settled = view.pace.settled if view.pace.settled is not None else view.num_replicas
    kept = min(settled, case.limit, case.capacity)
    wait = None if view.is_urgent else _for_replacement(case, settled, now_s)
    is_awaiting = wait is not None
    least = min(policy.min_replicas, case.limit, case.capacity)
    base = target = kept if is_awaiting else _fit(policy, max(kept, least))
    # Who trains does not make room for a spare, unless someone has just asked for it.
    bound = case.bound if view.is_urgent or is_awaiting else max(case.bound, base)
    possible = _worth(case, min(bound, case.capacity))
    if not is_awaiting:
        target, wait = _target(case, base, possible, now_s)
    held_back = wait is not None and possible > target
    now = view.num_replicas
    if target <= now and not held_back:  # the fall lasts until they have left
        now += view.leaving
    now = max(now, min(view.num_replicas + view.taken, settled))
    return Decision(
        ask_replicas=case.wanted + policy.spares,
        target_replicas=target,
        possible_replicas=possible,
        spare_replicas=max(0, min(policy.spares, case.capacity - target)),
        settled_replicas=settled if is_awaiting else target,
        is_voluntary=target != base and not view.is_urgent,
        reason=f"{_move(now, target)}: "
        f"{_cause(case, target, possible, wait)}{_idle_share(view, target)}",
        would_change=_would_change(case, target, possible, wait),
        earliest_s=now_s if wait is None else wait.until_s,
        is_waiting=wait is not None,
    )


def objection(wished: int, view: PolicyView, policy: Policy) -> str | None:
    """Return why a wish for this size must be refused, or None."""
    if wished < policy.min_replicas:
        return f"{counted(wished, 'replica')} would be below minReplicas={policy.min_replicas}"
    if policy.max_replicas is not None and wished > policy.max_replicas:
        return f"{wished} replicas would be above maxReplicas={policy.max_replicas}"
    if view.num_slots is not None and wished > view.num_slots:
        return f"{wished} replicas cannot share the {view.num_slots} slots of a step"
    if policy.fitted(wished) is None:
        return f"{counted(wished, 'replica')} would be none of {policy.sizes_text()}"
    return None


# --- the size ------------------------------------------------------------------------------


def _case(view: PolicyView, policy: Policy) -> _Case:
    asked = view.wished if view.wished is not None else policy.start_replicas
    ceiling, because = _ceiling(view, policy, is_asked=asked is not None)
    bounds = [asked, policy.max_replicas]
    limit = max(policy.min_replicas, min((n for n in bounds if n is not None), default=sys.maxsize))
    bound = max(policy.min_replicas, min(limit, ceiling))
    if view.num_slots is not None:
        limit, bound = min(limit, view.num_slots), min(bound, view.num_slots)
    bound = _fit(policy, bound)
    case = _Case(
        view=view,
        policy=policy,
        ceiling=ceiling,
        because=because,
        asked=asked,
        limit=limit,
        bound=bound,
        wanted=bound,
        capacity=_capacity(view),
    )
    return replace(case, wanted=_worth(case, bound))


def _worth(case: _Case, limit: int) -> int:
    """Return the largest allowed size up to this one without replicas that are not worth it."""
    policy, view = case.policy, case.view
    largest = _fit(policy, limit)
    if case.asked is not None or not policy.min_marginal_efficiency:
        return largest
    least = policy.min_marginal_efficiency
    return worthwhile(view.costs, policy.sizes(largest), least, view.num_slots) or largest


def _ceiling(view: PolicyView, policy: Policy, *, is_asked: bool) -> tuple[int, str]:
    """Return the largest size that the bounds allow, and what allows no more."""
    if policy.max_replicas is not None:
        ceiling, because = policy.max_replicas, f"maxReplicas={policy.max_replicas}"
    else:
        ceiling, because = view.devices, f"there are {counted(view.devices, 'device')}"
        if policy.spares and not is_asked:
            ceiling, because = max(0, ceiling - policy.spares), f"{because}, spares={policy.spares}"
    if view.num_slots is not None and view.num_slots < ceiling:
        return view.num_slots, f"a step has {counted(view.num_slots, 'slot')}"
    return ceiling, because


def _capacity(view: PolicyView) -> int:
    """Return the replicas that there is room for, whatever the policy says."""
    capacity = view.devices if view.offered is None else min(view.devices, view.offered)
    return max(0, capacity - view.reclaimed)


def _fit(policy: Policy, size: int) -> int:
    """Return the largest allowed size up to this one; too few to train stay what they are."""
    largest = policy.largest(size)
    return size if largest is None else largest


def _for_replacement(case: _Case, settled: int, now_s: float) -> Wait | None:
    """Return how long survivors are kept as they are, for a replacement to come first."""
    lost_at, timeout_s = case.view.pace.lost_at, case.policy.faulty_scale_down_timeout_s
    if lost_at is None or case.capacity >= settled or lost_at + timeout_s <= now_s:
        return None
    why = (
        f"{case.capacity} of {settled} are left, and a replacement may come within {timeout_s:g} s "
        "of the loss (faultyScaleDownTimeoutInSeconds)"
    )
    return Wait(until_s=lost_at + timeout_s, why=why)


def _target(case: _Case, base: int, possible: int, now_s: float) -> tuple[int, Wait | None]:
    """Return how much of the way from the base to what is possible may be gone now."""
    pace, policy = case.view.pace, case.policy
    if possible == base or case.view.is_urgent:
        return possible, None
    is_growth = possible > base
    if is_growth:
        first = next((size for size in policy.sizes(possible) if size > base), possible)
        waits = hysteresis.before_growth(pace, policy, first)
    else:
        waits = hysteresis.rest(pace, policy)
    longest = max(waits, key=lambda wait: wait.until_s, default=None)
    if longest is not None and longest.until_s > now_s:
        return base, longest
    return _paying(case, base, possible, now_s) if is_growth else (possible, None)


def _paying(case: _Case, base: int, possible: int, now_s: float) -> tuple[int, Wait | None]:
    """Return the largest size of which growth is expected to pay, and when to look for more."""
    view, policy = case.view, case.policy
    if not policy.amortization or not view.pace.falls or base < policy.min_replicas:
        return possible, None
    soonest: Wait | None = None
    for size in reversed(policy.sizes(possible)):
        if size <= base:
            break
        if size < possible and not is_faster(view.costs, base, size, view.num_slots):
            continue
        wait = hysteresis.until_it_pays(
            view.pace, view.costs, base, size, view.num_slots, now_s=now_s
        )
        if wait is None or wait.until_s <= now_s:
            return size, soonest
        if soonest is None or wait.until_s < soonest.until_s:
            soonest = wait
    return base, soonest


# --- the sentences -------------------------------------------------------------------------


def _cause(case: _Case, target: int, possible: int, wait: Wait | None) -> str:
    if wait is not None and possible > target:
        return f"{possible} possible, but {wait.why}"
    if wait is not None:
        is_lack = case.view.pace.lost_at is not None and case.capacity <= target
        return wait.why if is_lack else f"{possible} would do, but {wait.why}"
    if possible < _fit(case.policy, min(case.bound, case.capacity)):
        return _not_worth_it(case, possible)
    if target < case.wanted:
        return _shortage(case)
    asked, ask = case.asked, case.bound
    if asked is None:
        return case.because if ask == case.ceiling else f"{case.because}, and {_allowed(case)}"
    if asked > ask:
        return f"{asked} asked for, but {case.because if ask == case.ceiling else _allowed(case)}"
    if asked < ask:
        return f"{asked} asked for, but minReplicas={case.policy.min_replicas}"
    return f"{asked} asked for"


def _allowed(case: _Case) -> str:
    """Say what makes a size of one that the bounds would allow."""
    policy = case.policy
    if policy.replica_increment_step or policy.replica_discrete_values:
        return f"{case.bound} is the largest of {policy.sizes_text()}"
    return f"minReplicas={policy.min_replicas}"


def _shortage(case: _Case) -> str:
    policy, view = case.policy, case.view
    cause = f"{case.wanted} wanted, room for {case.capacity}"
    if view.reclaimed:
        cause += f" after {view.reclaimed} reclaimed"
    if view.offer_reason and view.offered is not None and view.offered <= view.devices:
        cause += f" ({view.offer_reason})"
    if case.capacity < policy.min_replicas:
        return f"{cause}, too few to train (minReplicas={policy.min_replicas})"
    fitting = _fit(policy, case.capacity)
    if fitting < min(case.capacity, case.wanted):
        cause += f", of which {fitting} is the largest of {policy.sizes_text()}"
    return cause


def _not_worth_it(case: _Case, size: int) -> str:
    view, policy = case.view, case.policy
    larger = next(other for other in policy.sizes(case.bound) if other > size)
    adds = marginal_efficiency(view.costs, size, larger, view.num_slots)
    return (
        f"each replica above {size} would add {adds:.0%} of one of them, below "
        f"minMarginalEfficiency={policy.min_marginal_efficiency:g}"
    )


def _would_change(case: _Case, target: int, possible: int, wait: Wait | None) -> str:
    view, policy = case.view, case.policy
    if wait is not None:
        if possible > target:
            return f"time alone, when it looks again; or a wish: pliant scale {possible}"
        return "time alone, when it looks again; or capacity that comes back before"
    if possible < _fit(policy, min(case.bound, case.capacity)):
        return f"a wish: pliant scale {case.bound}; or a lower minMarginalEfficiency"
    if target < case.wanted:
        larger = next((s for s in policy.sizes(case.wanted) if s > target), case.wanted)
        return f"room for {counted(larger, 'replica')}: a larger offer, or more devices"
    if case.asked is not None and case.asked <= case.bound:
        return "another wish: pliant scale N"
    if view.num_slots is not None and case.ceiling == view.num_slots and target == view.num_slots:
        return "a smaller micro_batch_size, so that a step has more slots"
    if policy.max_replicas is not None:
        return "a wish: pliant scale N; or another bound: pliant policy set maxReplicas=N"
    return "more devices, or a wish: pliant scale N"


def _move(now: int, target: int) -> str:
    if target == now:
        return f"stay at {counted(now, 'replica')}"
    return f"{'grow' if target > now else 'shrink'} from {now} to {counted(target, 'replica')}"


def _idle_share(view: PolicyView, target: int) -> str:
    if view.num_slots is None or target < 1:
        return ""
    busy = efficiency(view.num_slots, target)
    return "" if busy == 1.0 else f"; {view.num_slots} slots keep them {busy:.0%} busy"
