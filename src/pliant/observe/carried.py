"""What each part of a job's log says of the parts before it, so that these may go.

Owns the choice: the records without which a run cannot be resumed or audited, as they were written.
That is how the job was started, at which step it began, every plan that a replica reported, and the
newest of what is said seldom.
How often something happened is not among them: that is in the snapshot (``observe.history``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from pliant.observe.audit_plan import identity_in
from pliant.observe.log import Record

NEWEST = frozenset(
    {
        "coordinator_started",
        "plan",
        "policy_changed",
        "interval_chosen",
        "nodes_apart",
        "nodes_silent",
        "joint_nodes",
        "replicas_slow",
    }
)


@dataclass(slots=True)
class Carried:
    """Eats records in file order, in memory that does not grow with their number.

    A replica that was refused as a joiner never computed anything, and its plan counts for nothing.
    Until a replica trains it may still be refused; so all who reported a plan are kept until
    one of them trains, and then this one is enough.
    """

    newest: dict[str, Record] = field(default_factory=dict)
    """The last record of each kind in ``NEWEST``, since the job was started."""

    began: Record | None = None
    """The order that made the first generation."""

    plans: dict[str, list[Record]] = field(default_factory=dict)
    """Who reported each plan."""

    settled: dict[str, str] = field(default_factory=dict)
    """Plan -> who trained by it."""

    def add(self, record: Record) -> None:
        """Take in one record; kinds it does not know change nothing."""
        match record.get("kind"):
            case "job_started":
                self.newest = {"job_started": record}
            case kind if kind in NEWEST:
                self.newest.pop(str(kind), None)  # they stand in the order in which they came
                self.newest[str(kind)] = record
            case "switch" if self.began is None and isinstance(record.get("order"), dict):
                self.began = record
            case "spare" | "registered" if identity := identity_in(record):
                plan = json.dumps(identity, sort_keys=True)
                known = self.plans.get(plan, [])
                if plan not in self.settled and not _of(str(record.get("replica")), known):
                    self.plans[plan] = [*known, record]
            case "switched":
                self._settle(str(record.get("replica")))
            case "refused" if record.get("joiner"):
                self._forget(str(record.get("replica")))
            case _:
                pass

    def records(self) -> list[Record]:
        """Return what to write; an older coordinator's before a newer one's, else it is void."""
        spares = [spare for spares in self.plans.values() for spare in spares]
        began = [] if self.began is None else [self.began]
        return sorted([*self.newest.values(), *spares, *began], key=_incarnation)

    def _settle(self, replica: str) -> None:
        for plan, spares in self.plans.items():
            if plan not in self.settled and (mine := _of(replica, spares)):
                self.plans[plan] = mine[:1]
                self.settled[plan] = replica

    def _forget(self, replica: str) -> None:
        for plan, spares in list(self.plans.items()):
            if self.settled.get(plan) != replica:
                rest = [spare for spare in spares if spare.get("replica") != replica]
                self.plans[plan] = rest
                if not rest:
                    del self.plans[plan]


def _incarnation(record: Record) -> int:
    number = record.get("incarnation")
    return number if isinstance(number, int) else 0


def _of(replica: str, spares: list[Record]) -> list[Record]:
    return [spare for spare in spares if spare.get("replica") == replica]
