"""After a restart of the pool: who may hold devices, and who has said so by now.

Owns the rule by which a pool hands nothing out twice: before it gives or takes anything, each
claimant of the state file has reported, or its process is dead and its devices are free, or it was
waited for long enough.  What is in use even then is kept by who lives, and set aside of the dead.
Knows nothing of shares, and does no I/O: what is seen outside is passed in.

    file: gpt {0,1,2}, cnn {3}     gpt reports holds {0,1} -> gpt {0,1}, 2 is left once it is free
                                   cnn is dead, 3 is free  -> forgotten
                                   nobody is awaited       -> the pool opens
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pliant.core.tenancy import Demand
from pliant.pool.state import SavedClaim, SavedPool
from pliant.wire.offers import Offer, Report


@dataclass(frozen=True, slots=True)
class Returned:
    """A claimant of whom it is known what it holds."""

    claim: SavedClaim
    """As it is by now.  Its devices are those that it holds, those that it has not heard of yet,
    and those it is leaving; its revision is of the newest offer in the life before."""

    report: Report
    """What it said of itself."""

    @classmethod
    def unheard(cls, claim: SavedClaim) -> Returned:
        """Return one that lives and has said nothing: all is as it was."""
        return cls(claim, Report(wanted=claim.wanted, pid=claim.pid))

    def offer(self, life: str, *, size: int, names: tuple[str, ...] = ()) -> Offer:
        """Return what it may use until the pool opens: what it may use already."""
        claim = self.claim
        devices = tuple(device for device in claim.devices if device not in claim.leaving)
        return Offer(
            pool=life,
            revision=max(claim.revision, 1),
            pool_devices=size,
            devices=devices,
            names=tuple(names[device] for device in devices) if names else (),
            replicas=min(claim.replicas, len(devices)),
            notice_s=claim.wanted.notice_s,
            suspend=claim.suspend,
            reason="the pool was started anew, and asks everybody what they hold",
        )


class Recovery:
    """The time between the start of a pool and its opening."""

    def __init__(self, saved: SavedPool, *, life: str, now_s: float, silent_s: float) -> None:
        self._lives = {saved.life, life} - {""}
        self.until_s = now_s + silent_s
        self.returned: dict[str, Returned] = {}
        self.known = {claim.name: claim for claim in saved.claims}
        self.awaited = {claim.name: claim for claim in saved.claims if claim.devices}

    @property
    def accounted(self) -> set[int]:
        """Return the devices of which it is known whose they are."""
        claims = [*self.awaited.values(), *(one.claim for one in self.returned.values())]
        return {device for claim in claims for device in claim.devices}

    def wanted(self, name: str, *, pid: int) -> Demand | None:
        """Return what a process asks for by its claim of this name; None: it has none."""
        returned = self.returned.get(name)
        claim = self.known.get(name) if returned is None else returned.claim
        return claim.wanted if claim is not None and claim.pid == pid else None

    @property
    def holding(self) -> set[str]:
        """Return the claimants that have devices, as far as is known."""
        returned = {name for name, one in self.returned.items() if one.claim.devices}
        return self.awaited.keys() | returned

    def hear_early(
        self, name: str, report: Report, *, started: str, since: float, uid: int | None = None
    ) -> Returned:
        """Take note of what a claimant says it holds; a repeated report replaces the earlier."""
        known = self.known.get(name)
        if known is not None and (known.pid, known.started) != (report.pid, started):
            known = None  # another process of that name: it knows nothing of what was before
        owned = set(known.devices) if known else set()
        left = set(known.leaving) if known else set()
        if known and report.pool in self._lives and report.revision >= known.revision:
            left |= owned.difference(report.holds)
        theirs = self.awaited | {one: back.claim for one, back in self.returned.items()}
        others = [claim.devices for one, claim in theirs.items() if one != name]
        owned |= set(report.holds).difference(*others)
        claim = SavedClaim(
            name=name,
            since=known.since if known else since,
            wanted=report.wanted,
            pid=report.pid,
            started=started,
            revision=known.revision if known else 0,  # of a life that cannot be compared with
            replicas=known.replicas if known else len(owned),
            suspend=report.is_suspended or bool(known and known.suspend),
            devices=tuple(sorted(owned)),
            leaving=tuple(sorted(left & owned)),
            uid=uid,
        )
        returned = self.returned[name] = Returned(claim, report)
        if known is not None:
            self.awaited.pop(name, None)
        return returned

    def settle(
        self,
        *,
        now_s: float,
        is_alive: Callable[[SavedClaim], bool],
        used: Callable[[Iterable[int]], set[int]],
    ) -> dict[str, set[int]]:
        """Stop waiting for those who will not report; return who is dead and still uses what."""
        remains = {}
        for name, claim in list(self.awaited.items()):
            uses = used(claim.devices)
            is_dead, is_late = not is_alive(claim), now_s >= self.until_s
            if is_dead and uses:
                remains[name] = uses
            if is_late or (is_dead and not uses):
                del self.awaited[name]
            if is_late and uses and not is_dead:  # it cannot be heard: it keeps what it has
                self.returned[name] = Returned.unheard(claim)
        return remains

    def is_over(self, *, now_s: float, unaccounted: set[int]) -> bool:
        """Whether everybody who may hold a device is known.

        Devices in use of which the file says nothing (it was lost) are waited for as well; whoever
        has not claimed them by the end keeps them from everybody by their locks.
        """
        return not self.awaited and (not unaccounted or now_s >= self.until_s)
