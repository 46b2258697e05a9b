"""Who asks something of a pool, and whether they may: the rules of ``core.tenancy``, applied.

Owns what is known of each user between two requests, and the translation of a connection's
credentials.  Decides nothing.  In a pool of one user everybody who knows the token may do all, and
claims are called what they call themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request

from pliant.core import tenancy
from pliant.core.tenancy import Allowance, Visitor
from pliant.machine.interfaces import Credentials, user_name
from pliant.pool.driver import PoolDriver
from pliant.wire.offers import Report

FORBIDDEN, TOO_MANY = 403, 429


class ForbiddenError(Exception):
    """Who asks may not do this; the sentence says who may."""

    def __init__(self, sentence: str, status: int = FORBIDDEN) -> None:
        super().__init__(sentence)
        self.status = status


class Gate:
    """What a pool asks about who asks; in a pool of one user whoever knows the token may do all."""

    def claim_of(self, request: Request, name: str) -> str:
        """Return what the asker's claim of this name is called in the pool."""
        return name

    def report_of(self, request: Request, claim: str, report: Report) -> tuple[Report, int | None]:
        """Return a report with what is certain about its sender, and whose it is."""
        return report, None

    def process_of(self, request: Request, pid: int | None) -> int | None:
        """Return the process that withdraws a claim."""
        return pid

    def administration(self, request: Request) -> str:
        """Return who changes what is everybody's; empty: whoever knows the token."""
        return ""


class SharedGate(Gate):
    """Of a pool that users share: who asks is known by the kernel's word.

    Each may raise ``ForbiddenError``.
    """

    def __init__(self, driver: PoolDriver, *, owner_uid: int) -> None:
        self._driver = driver
        self._owner_uid = owner_uid
        self._owner = user_name(owner_uid)
        self._allowances: dict[int, Allowance] = {}

    def visitor(self, request: Request) -> Visitor:
        """Return who asks."""
        peer: Credentials | None = getattr(request.state, "peer", None)
        if peer is None:
            raise ForbiddenError("it is not known who asks")
        return Visitor(
            uid=peer.uid,
            pid=peer.pid,
            user=user_name(peer.uid),
            is_owner=peer.uid in (0, self._owner_uid),
        )

    def claim_of(self, request: Request, name: str) -> str:
        """Return the name, with the user's before it."""
        return tenancy.claim_name(self.visitor(request).user, name)

    def report_of(self, request: Request, claim: str, report: Report) -> tuple[Report, int | None]:
        """Return the report as far as it can be believed, if who sends it may claim that.

        The process is the one that asks.  It holds only what it was given.  Nobody is told by
        ``url``: who has a job's token could do with the job what it likes.
        """
        visitor, wanted = self.visitor(request), report.wanted
        if visitor.pid <= 0:
            raise ForbiddenError(
                "your process cannot be seen from here: it is in another container"
            )
        saved = self._driver.saved
        before = self._driver.wanted(claim, pid=visitor.pid)
        refusal = tenancy.claim_refusal(
            visitor,
            wanted,
            before=before,
            teams=_access({team.name: team.users for team in saved.teams}),
            classes=_access(dict(saved.class_users)),
        )
        if refusal:
            raise ForbiddenError(refusal)
        holds = self._driver.watch.granted(claim, report.holds)
        sure = {"pid": visitor.pid, "holds": holds, "url": "", "token": ""}
        report = report.model_copy(update=sure)
        if before != wanted or self._driver.claims.gives_unasked(claim, report):
            self._limit(visitor, claim, is_new=before is None)
        return report, visitor.uid

    def process_of(self, request: Request, pid: int | None) -> int | None:
        """Return the process that asks."""
        return self.visitor(request).pid

    def administration(self, request: Request) -> str:
        """Return the user, if it is the pool's owner."""
        visitor = self.visitor(request)
        if refusal := tenancy.administration_refusal(visitor, owner=self._owner):
            raise ForbiddenError(refusal)
        return visitor.user

    def _limit(self, visitor: Visitor, claim: str, *, is_new: bool) -> None:
        """Refuse a claim or a change too many; what says nothing new is none."""
        if is_new:
            others = [name for name in self._driver.claims_of(visitor.user) if name != claim]
            if refusal := tenancy.crowd_refusal(visitor, claims=len(others)):
                raise ForbiddenError(refusal)
        now_s = self._driver.claims.allocator.clock.now_s()
        before = self._allowances.get(visitor.uid, Allowance(at_s=now_s))
        self._allowances[visitor.uid], again_s = tenancy.spend(before, now_s=now_s)
        if again_s:
            sentence = f"{visitor.user} changes its claims too often; again in {again_s:.1f} s"
            raise ForbiddenError(sentence, TOO_MANY)


def _access(users: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(map(str, those))
        for name, those in users.items()
        if isinstance(those, list | tuple)
    }
