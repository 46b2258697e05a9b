"""How many replicas the job should have: wishes, bounds and capacity in, one number out.

Owns the choice of a size; its reasons are told by ``wording``.  Must not know which replicas there
are, how a change is carried out, or the wall clock; the caller passes ``now_s`` in and keeps the
``Pace`` for the next time.

    wanted     what wishes, bounds and slots allow, were capacity no question
    possible   the same within the capacity there is
    base       what remains of the settled size: less whatever was taken away, or given back
    target     base, or possible once nothing holds that change back

From the settled size down to the base nothing waits: reclaims, losses and wishes are never
delayed.  Only what the policy does of its own accord is voluntary, and waits (``hysteresis``).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from pliant.core.policy import hysteresis, wording
from pliant.core.policy.case import PolicyCase, capacity_of, fit
from pliant.core.policy.case import PolicyView as PolicyView
from pliant.core.policy.costs import is_faster, worthwhile
from pliant.core.policy.fields import Policy as Policy
from pliant.core.policy.fields import PolicyBackoff as PolicyBackoff
from pliant.core.policy.fields import require_slots as require_slots
from pliant.core.policy.hysteresis import Pace, Wait
from pliant.core.text import counted

FIRST_REPLICAS = 4
"""Started first on the cores of a machine where nobody says how many: a step may have fewer slots
than there are cores."""


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


def consider(view: PolicyView, policy: Policy, *, now_s: float) -> tuple[Decision, Pace]:
    """Decide, and return with it what must be remembered for the next time."""
    pace = hysteresis.watched(view.pace, capacity_of(view), now_s)
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
    base = target = kept if is_awaiting else fit(policy, max(kept, least))
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
        reason=wording.reason(case, now, target, possible, wait),
        would_change=wording.would_change(case, target, possible, wait),
        earliest_s=now_s if wait is None else wait.until_s,
        is_waiting=wait is not None,
    )


def objection(requested: int, view: PolicyView, policy: Policy) -> str | None:
    """Return why a wish for this size must be refused, or None."""
    if requested < policy.min_replicas:
        return f"{counted(requested, 'replica')} would be below minReplicas={policy.min_replicas}"
    if policy.max_replicas is not None and requested > policy.max_replicas:
        return f"{requested} replicas would be above maxReplicas={policy.max_replicas}"
    if view.num_slots is not None and requested > view.num_slots:
        return f"a step has only {view.num_slots} micro-batches, too few for {requested} replicas"
    if policy.fitted(requested) is None:
        return f"{counted(requested, 'replica')} would be none of {policy.sizes_text()}"
    return None


# --- the size ------------------------------------------------------------------------------


def _case(view: PolicyView, policy: Policy) -> PolicyCase:
    asked = view.requested if view.requested is not None else policy.start_replicas
    ceiling, because = _ceiling(view, policy, is_asked=asked is not None)
    bounds = [asked, policy.max_replicas]
    limit = max(policy.min_replicas, min((n for n in bounds if n is not None), default=sys.maxsize))
    bound = max(policy.min_replicas, min(limit, ceiling))
    if view.num_slots is not None:
        limit, bound = min(limit, view.num_slots), min(bound, view.num_slots)
    bound = fit(policy, bound)
    case = PolicyCase(
        view=view,
        policy=policy,
        ceiling=ceiling,
        because=because,
        asked=asked,
        limit=limit,
        bound=bound,
        wanted=bound,
        capacity=capacity_of(view),
    )
    return replace(case, wanted=_worth(case, bound))


def _worth(case: PolicyCase, limit: int) -> int:
    """Return the largest allowed size up to this one without replicas that are not worth it."""
    policy, view = case.policy, case.view
    largest = fit(policy, limit)
    if case.asked is not None or not policy.min_marginal_efficiency:
        return largest
    least = policy.min_marginal_efficiency
    return worthwhile(view.costs, policy.sizes(largest), least, view.num_slots) or largest


def _ceiling(view: PolicyView, policy: Policy, *, is_asked: bool) -> tuple[int, str]:
    """Return the largest size that the bounds allow, and what allows no more."""
    if policy.max_replicas is not None:
        ceiling, because = policy.max_replicas, f"maxReplicas={policy.max_replicas}"
    else:
        ceiling, because = view.devices, f"there are {counted(view.devices)}{wording.beside(view)}"
        is_early = view.core_replicas is not None and view.num_slots is None and not is_asked
        if is_early and ceiling > FIRST_REPLICAS:
            return FIRST_REPLICAS, "the script has yet to say how many micro-batches a step has"
        if policy.spares and not is_asked:
            ceiling, because = max(0, ceiling - policy.spares), f"{because}, spares={policy.spares}"
    if view.num_slots is not None and view.num_slots < ceiling:
        return (
            view.num_slots,
            f"a step has only {view.num_slots} micro-batch{'es' * (view.num_slots != 1)}",
        )
    return ceiling, because


def _for_replacement(case: PolicyCase, settled: int, now_s: float) -> Wait | None:
    """Return how long survivors are kept as they are, for a replacement to come first."""
    lost_at, timeout_s = case.view.pace.lost_at, case.policy.faulty_scale_down_timeout_s
    if lost_at is None or case.capacity >= settled or lost_at + timeout_s <= now_s:
        return None
    why = (
        f"{case.capacity} of {settled} are left, and a replacement may come within {timeout_s:g} s "
        "of the loss (faultyScaleDownTimeoutInSeconds)"
    )
    return Wait(until_s=lost_at + timeout_s, why=why)


def _target(case: PolicyCase, base: int, possible: int, now_s: float) -> tuple[int, Wait | None]:
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


def _paying(case: PolicyCase, base: int, possible: int, now_s: float) -> tuple[int, Wait | None]:
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
        slots = view.num_slots
        wait = hysteresis.until_it_pays(view.pace, view.costs, base, size, slots, now_s=now_s)
        if wait is None or wait.until_s <= now_s:
            return size, soonest
        if soonest is None or wait.until_s < soonest.until_s:
            soonest = wait
    return base, soonest
