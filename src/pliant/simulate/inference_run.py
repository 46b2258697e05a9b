"""A service in a simulated cluster: a fixed claim whose number follows the load."""

from __future__ import annotations

from collections.abc import Sequence

from pliant.core.allocation import (
    Action,
    Asked,
    Claim,
    Grant,
    Overdue,
    Refuse,
    Shrink,
    Suspend,
)
from pliant.core.tenancy import Demand
from pliant.simulate.simulated_pool import Claimant, SimulatedPool
from pliant.spec.cluster import InferenceEntry
from pliant.spec.trace import Change


class InferenceRun(Claimant):
    """Asks for what the load needs, and gives back what it does not."""

    def __init__(self, entry: InferenceEntry, load: Sequence[Change], pool: SimulatedPool) -> None:
        super().__init__(f"/{entry.name}", pool)  # no job's name has a slash before it
        self.entry = entry
        self.need = 0
        self.short_device_s = 0.0
        """Device-seconds that the load needed and that it did not have."""

        self.sizes: list[tuple[float, int]] = []
        self._load = load
        self._next = 0
        self._round_s = 0.0

    def arrive(self) -> None:
        """Begin with the first line of the load."""
        self.pool.claimants[self.name] = self
        self._plan()

    def _plan(self) -> None:
        """Let the next change of the load come."""
        if self._next == len(self._load):
            if self.entry.repeat_in_seconds is None:
                return
            self._next = 0
            self._round_s += self.entry.repeat_in_seconds
        at_s = self._round_s + self._load[self._next].at_s
        self.pool.queue.at(max(at_s, self.pool.now_s), self._change)

    def _change(self) -> None:
        self.account()
        self.need = self._load[self._next].devices
        self._next += 1
        self.pool.tell(Asked(claim=self.claim(self.need)))
        self._plan()

    def claim(self, need: int) -> Claim:
        """Return what it asks for with this load."""
        entry = self.entry
        wanted = Demand(
            kind="fixed",
            team=entry.team,
            priority=entry.priority,
            device_kind=entry.kind,
            min_replicas=max(1, need),
            ask_replicas=need,
        )
        return Claim.of(self.name, wanted, since=0.0)

    def follow(self, action: Action) -> None:
        """Take what is granted, and give back at once what is not needed any more."""
        self.account()
        match action:
            case Grant(devices=devices):
                self.held.update(devices)
            case Shrink(to=to, devices=drained):
                surplus = self.held.intersection(drained)
                rest = sorted(self.held - surplus)
                self.give_back(surplus.union(rest[to:]))
            case Suspend():
                self.give_back(set(self.held))
            case Overdue() | Refuse():
                pass
        self._count()

    def lose(self, devices: set[int]) -> None:
        """Go on with what is left."""
        self.account()
        self.give_back(self.held & devices)
        self._count()

    def _count(self) -> None:
        """Tell how many devices serve now; the accounts are up to now."""
        before = self.sizes[-1][1] if self.sizes else 0
        if len(self.held) != before:
            self.sizes.append((self.pool.now_s, len(self.held)))

    def account(self) -> None:
        """Bring the accounts up to now."""
        passed_s = self.pool.now_s - self._since_s
        if passed_s > 0:
            self.pool.accounts.spent["serving"] += len(self.held) * passed_s
            self.short_device_s += max(0, self.need - len(self.held)) * passed_s
            self._since_s = self.pool.now_s
