"""Why the policy decides for a size, and what would change its mind, in sentences for people.

Owns the words.  Decides nothing, and reads only what ``decide`` has decided by.
"""

from __future__ import annotations

from pliant.core.policy.case import PolicyCase, PolicyView, fit
from pliant.core.policy.costs import marginal_efficiency
from pliant.core.policy.hysteresis import Wait
from pliant.core.step.batching import efficiency
from pliant.core.text import counted

AS_REQUESTED = "as requested"
"""Why the size is one that somebody asked for, and nothing stands in its way."""


def reason(case: PolicyCase, now: int, target: int, possible: int, wait: Wait | None) -> str:
    """Say from which size (``now``: the one that people see) to which, and why.

    ``possible`` is the size once nothing holds it back, and ``wait`` what does.
    """
    move = f"stay at {counted(now, 'replica')}"
    if target != now:
        verb = "grow" if target > now else "shrink"
        move = f"{verb} from {now} to {counted(target, 'replica')}"
    cause = _cause(case, target, possible, wait)
    return f"{move}{cause}{_idle_share(case.view, target)}"


def _cause(case: PolicyCase, target: int, possible: int, wait: Wait | None) -> str:
    why = _why(case, target, possible, wait)
    return f", {why}" if why == AS_REQUESTED else f": {why}"


def _why(case: PolicyCase, target: int, possible: int, wait: Wait | None) -> str:
    if wait is not None and possible > target:
        return f"{possible} possible, but {wait.why}"
    if wait is not None:
        is_lack = case.view.pace.lost_at is not None and case.capacity <= target
        return wait.why if is_lack else f"{possible} would do, but {wait.why}"
    if possible < fit(case.policy, min(case.bound, case.capacity)):
        return _not_worth_it(case, possible)
    if target < case.wanted:
        return _shortage(case)
    asked, ask = case.asked, case.bound
    if asked is None:
        return case.because if ask == case.ceiling else f"{case.because}, and {_allowed(case)}"
    if asked > ask:
        return f"{asked} requested, but {case.because if ask == case.ceiling else _allowed(case)}"
    if asked < ask:
        return f"{asked} requested, but minReplicas={case.policy.min_replicas}"
    return AS_REQUESTED


def _allowed(case: PolicyCase) -> str:
    """Say what makes a size of one that the bounds would allow."""
    policy = case.policy
    if policy.replica_increment_step or policy.replica_discrete_values:
        return f"{case.bound} is the largest of {policy.sizes_text()}"
    return f"minReplicas={policy.min_replicas}"


def _shortage(case: PolicyCase) -> str:
    policy, view = case.policy, case.view
    cause = f"{case.wanted} wanted, room for {case.capacity}"
    if view.reclaimed:
        cause += f" after {view.reclaimed} reclaimed" + f" ({view.taken_for})" * bool(
            view.taken_for
        )
    cause += beside(view)
    if view.offer_reason and view.offered is not None and view.offered <= view.devices:
        cause += f" ({view.offer_reason})"
    if case.capacity < policy.min_replicas:
        return f"{cause}, too few to train (minReplicas={policy.min_replicas})"
    fitting = fit(policy, case.capacity)
    if fitting < min(case.capacity, case.wanted):
        cause += f", of which {fitting} is the largest of {policy.sizes_text()}"
    return cause


def beside(view: PolicyView) -> str:
    """Say which devices there are of which none can be made use of, if there are such."""
    said = ""
    if view.apart:
        said = f", and {view.apart} more on nodes that do not reach those who train"
    if view.silent:
        said += f", and {view.silent} more on nodes whose agents are silent"
    return said


def _not_worth_it(case: PolicyCase, size: int) -> str:
    view, policy = case.view, case.policy
    larger = next(other for other in policy.sizes(case.bound) if other > size)
    adds = marginal_efficiency(view.costs, size, larger, view.num_slots)
    return (
        f"each replica above {size} would add {adds:.0%} of one of them, below "
        f"minMarginalEfficiency={policy.min_marginal_efficiency:g}"
    )


def would_change(case: PolicyCase, target: int, possible: int, wait: Wait | None) -> str:
    """Say what would have to change for another answer."""
    view, policy = case.view, case.policy
    if wait is not None:
        if possible > target:
            return f"time alone, when it looks again; or pliant scale {possible}"
        return "time alone, when it looks again; or capacity that comes back before"
    if possible < fit(policy, min(case.bound, case.capacity)):
        return f"pliant scale {case.bound}; or a lower minMarginalEfficiency"
    if target < case.wanted:
        larger = next((s for s in policy.sizes(case.wanted) if s > target), case.wanted)
        return f"room for {counted(larger, 'replica')}: a larger offer, or more devices"
    if case.asked is not None and case.asked <= case.bound:
        return "another size: pliant scale N"
    has_cores = view.core_replicas is None or view.core_replicas > target
    if has_cores and view.num_slots is not None and case.ceiling == target == view.num_slots:
        return "a smaller micro_batch_size, so that a step has more micro-batches"
    if policy.max_replicas is not None:
        return "pliant scale N; or another bound: pliant policy set maxReplicas=N"
    return "more devices, or pliant scale N"


def _idle_share(view: PolicyView, target: int) -> str:
    if view.num_slots is None or target < 1:
        return ""
    busy = efficiency(view.num_slots, target)
    if busy == 1.0:
        return ""
    return (
        f"; {view.num_slots} micro-batches do not divide evenly by {target}: replicas idle "
        f"{1 - busy:.0%} of each step"
    )
