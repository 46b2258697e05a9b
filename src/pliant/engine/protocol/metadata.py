"""StepMetadata: what the members say beside their votes for a step.

Owns its form, and the refusal to commit what differs between members.  Must not know how it
travels, or what a commit does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pliant.core.errors import UsageError
from pliant.core.membership import member as protocol
from pliant.core.membership.member_value import Member
from pliant.engine.groups.group import Group
from pliant.engine.protocol.membership_port import Condition, VoteRequests


class StepMetadata(NamedTuple):
    """Of one member; all integers, for they travel as one small tensor."""

    ready: int
    """Number of the generation that it is ready to enter; 0: none (R7)."""

    stop: int
    settings: int
    weights: int
    save: int

    @classmethod
    def of(
        cls, member: Member, condition: Condition | None, requests: VoteRequests
    ) -> StepMetadata:
        """Return what ``member`` says; without a condition it votes for no step."""
        return cls(
            ready=protocol.ready_number(member),
            stop=int(requests.stop or member.stopping),
            settings=0 if condition is None else condition.settings,
            weights=0 if condition is None else condition.weights,
            save=int(requests.save),
        )

    def exchange(self, group: Group) -> list[StepMetadata]:
        """Return what each member says, in rank order.  All members must call."""
        rows = group.all_gather(torch.tensor(self, dtype=torch.int64)).tolist()
        return [StepMetadata(*row) for row in rows]


def check_alike(said: Sequence[StepMetadata], step: int, condition: Condition) -> None:
    """Refuse to commit what would differ from a run of one replica.

    Raises:
        UsageError: the members' weights or hyper-parameters are not the same.
    """
    if len({one.settings for one in said}) > 1:
        what = "the optimizers' settings"
    elif len({one.weights for one in said}) > 1:
        what = f"the weights in {condition.names}"
    else:
        return
    raise UsageError(
        f"at step {step} {what} differ between replicas: the script changed them on some "
        "replicas only; do it on every replica alike, not where session.leader is true"
    )
