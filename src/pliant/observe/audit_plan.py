"""The audit's plan: what every step of a run must consist of, as its replicas reported it.

Owns the reading of a plan from the identities in an event log, and the map from a slot of a step to
the positions of its epoch.  Knows nothing of ledgers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from pliant.core.step import order
from pliant.observe.log import MOST, Record, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """What fixes which sample belongs where."""

    seed: int
    num_samples: int
    num_slots: int
    global_batch: int
    micro_batch: int
    shuffle: bool = True
    drop_last: bool = False
    sampler: str = ""
    """Name of what gives the order in place of the seed; empty: nothing."""

    num_draws: int = 0
    """Of a sampler, in an epoch."""

    first_draws: str = ""
    """Of a sampler: hash of the draws of epoch 0."""

    @property
    def epoch_size(self) -> int:
        """Positions of an epoch."""
        return self.num_draws if self.sampler else self.num_samples

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in one pass over the data."""
        whole, rest = divmod(self.epoch_size, self.global_batch)
        return whole + bool(rest and not self.drop_last)

    def positions(self, step: int) -> range:
        """Return the positions of the epoch that a step takes."""
        first = step % self.steps_per_epoch * self.global_batch
        return range(first, min(first + self.global_batch, self.epoch_size))

    def num_committed(self, first: int, until: int) -> int:
        """Return how many positions the steps from one on and before another take."""
        length = self.steps_per_epoch
        short = self.global_batch - len(self.positions(length - 1))
        return (until - first) * self.global_batch - (until // length - first // length) * short

    def used_slots(self, step: int) -> range:
        """Return the slots of a step that have positions."""
        return range(min(-(-len(self.positions(step)) // self.micro_batch), self.num_slots))

    def slot_positions(self, step: int, slot: int) -> range:
        """Return the positions of one slot; empty past the end of a short batch."""
        whole = self.positions(step)
        return whole[slot * self.micro_batch : (slot + 1) * self.micro_batch]

    def sample(self, epoch: int, position: int) -> int:
        """Return which sample stands at a position of an epoch."""
        if not self.shuffle:
            return position
        return order.permute(position, size=self.num_samples, key=order.key(self.seed, epoch))


def plan_of(records: Iterable[Record]) -> tuple[AuditPlan | None, str]:
    """Return what the replicas of a run agreed on, and a sentence if they did not.

    A replica that was refused never computed anything that counts: its identity is left out.  So is
    that of one that was dismissed, or has ended and never trained, where it is another than that of
    the rest.  What a replica reported it says again to another coordinator.
    """
    refused: set[str] = set()
    dismissed: set[str] = set()
    ended: set[str] = set()
    trained: set[str] = set()
    reported: dict[AuditPlan, dict[str, None]] = {}
    for record in records:
        if record.get("kind") == "refused" and record.get("joiner"):
            refused.add(str(record.get("replica")))
        elif record.get("kind") == "dismiss":
            dismissed |= set(map(str, record.get("to", ())))
        elif record.get("kind") == "exited":
            ended.add(str(record.get("replica")))
        elif record.get("kind") == "switched":
            trained.add(str(record.get("replica")))
        elif (identity := identity_in(record)) is not None:
            plan = _plan(identity)
            if plan is not None:
                reported.setdefault(plan, {})[str(record.get("replica"))] = None
    plans = _without(reported, refused)
    if len(plans) > 1:
        plans = _without(reported, refused | dismissed)
    if len(plans) > 1:  # its coordinator may have been killed before it could log that
        plans = _without(reported, refused | dismissed | (ended - trained)) or plans
    if len(plans) > 1:
        return None, f"the replicas {' and '.join(plans.values())} had different plans"
    return next(iter(plans), None), ""


def identity_in(record: Record) -> object:
    """Return what a replica says in this record of its plan; None: nothing."""
    if record.get("kind") == "registered":
        spare = record.get("spare")
        return spare.get("identity") if isinstance(spare, dict) else None
    return record.get("identity") if record.get("kind") == "spare" else None


def _without(
    reported: Mapping[AuditPlan, Mapping[str, None]], left_out: Set[str]
) -> dict[AuditPlan, str]:
    """Return each plan that others than these have reported, and the first of them."""
    counting = {
        plan: [replica for replica in replicas if replica not in left_out]
        for plan, replicas in reported.items()
    }
    return {plan: replicas[0] for plan, replicas in counting.items() if replicas}


def first_step_of(records: Iterable[Record]) -> int:
    """Return the step at which the first generation began of which the ledger is here.

    An order of the register may be that of a coordinator whose files are elsewhere: where nobody
    follows it, the run begins here with the next one.
    """
    for record in records:
        order = record.get("order")
        if record.get("kind") == "switch" and isinstance(order, dict):
            if isinstance(restore := order.get("restore"), dict):
                return whole(restore.get("committed"), 0)
            if record.get("by") != "register":
                return 0
        elif record.get("kind") == "commit":
            return 0
    return 0


def _plan(identity: object) -> AuditPlan | None:
    """Read a plan from the (name, value) pairs of an identity; None if it is not all there."""
    try:
        named = {str(name): str(value) for name, value in identity}  # type: ignore[attr-defined]
        is_drawn = named.get("sampler", "none") != "none"
        plan = AuditPlan(
            seed=int(named["seed"]),
            num_samples=int(named["dataset_samples"]),
            num_slots=int(named["num_slots"]),
            global_batch=int(named["global_batch_size"]),
            micro_batch=int(named["micro_batch_size"]),
            shuffle=named["shuffle"] == "True",
            drop_last=named["drop_last"] == "True",
            sampler=named["sampler"] if is_drawn else "",
            num_draws=int(named["num_draws"]) if is_drawn else 0,
            first_draws=named["first_draws"] if is_drawn else "",
        )
    except (KeyError, TypeError, ValueError):
        return None
    sizes = (plan.num_samples, plan.num_slots, plan.global_batch, plan.micro_batch)
    is_sound = min(sizes) > 0 and max(*sizes, plan.num_draws) <= MOST and plan.steps_per_epoch > 0
    return plan if is_sound else None
