"""Lead membership: the membership of worker 0 in a replica of several workers.

Owns the lockstep: each call is made by every worker of the replica, and ends on the followers as it
has ended here.  What a call does in between, the followers are told by ``ElasticMembership`` itself
(``Followers``).  Must not know how the protocol works.

    call of the script  -->  ElasticMembership  -->  value        told: CallReturned
                                                     GroupBroken  told: CallBroke
                                                     SystemExit   told: LeaveNow
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from pliant.core.errors import StateCorruptError, UsageError
from pliant.core.membership.follower_answers import Voted, joint_digests
from pliant.core.membership.member import Member
from pliant.core.values import Generation
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.evaluation import EvaluationTeam
from pliant.engine.guard.comparison import ASPECTS, UNKNOWN
from pliant.engine.member.elastic import ElasticMembership
from pliant.engine.member.formed import Formed
from pliant.engine.member.inner_channel import CallBroke, CallReturned, LeaveNow, MemberStanding
from pliant.engine.member.membership_port import (
    Condition,
    Ending,
    StepDecision,
    VoteRequests,
)
from pliant.engine.member.replica_workers import ReplicaWorkers


class LeadMembership:
    """See the module's text; one per process."""

    def __init__(self, elastic: ElasticMembership, followers: ReplicaWorkers) -> None:
        self._elastic = elastic
        self._followers = followers

    @property
    def member(self) -> Member:
        """The protocol's state."""
        return self._elastic.member

    @property
    def leads(self) -> bool:
        """Whether this replica is the first member of its generation."""
        return self._elastic.leads

    @property
    def asked_after(self) -> int:
        """Number of committed steps after which someone wants a checkpoint; -1: nobody does."""
        return self._elastic.asked_after

    @property
    def place(self) -> tuple[int, int]:
        """Rank of this replica in the generation it is in, and the number of its members.

        A call as any other: it ends with GroupBroken once that generation is over.
        """
        with self._ended_alike():
            place = self._elastic.place
        self._return("place")
        return place

    def arrive(self, total: int = 0) -> bool:
        """Be a member that holds state, once every worker has come."""
        self._followers.await_all()
        with self._ended_alike():
            has_arrived = self._elastic.arrive(total)
        self._return("arrive", number=int(has_arrived))
        return has_arrived

    def formed(self) -> Formed:
        """Return the generation to compute the next pass in."""
        with self._ended_alike():
            formed = self._elastic.formed()
        self._return("formed")
        return formed

    def reduce(self) -> list[torch.Tensor]:
        """Wait for the sums, on every worker."""
        with self._ended_alike():
            reduced = self._elastic.reduce()
            member = self.member
            self._followers.await_reduced(member.current, member.committed)
        self._return("reduce")
        return reduced

    def decide(self, step: int, condition: Condition, requests: VoteRequests) -> StepDecision:
        """Vote for all workers of this replica."""
        with self._ended_alike():
            votes = self._followers.await_voted(self.member.current, step)
            own = condition.alike(condition.digests)
            _check_alike(
                step, own, votes, self._followers.stage_of, is_verified=condition.is_verified
            )
            digests = joint_digests(
                condition.digests, [vote.digests for vote in votes], unknown=UNKNOWN
            )
            is_stop = requests.stop or any(vote.stop for vote in votes)
            decision = self._elastic.decide(
                step, replace(condition, digests=digests), replace(requests, stop=is_stop)
            )
        self._return(
            "decide",
            number=decision.generation,
            is_stopped=decision.is_stopped,
            is_saved=decision.is_saved,
            sizes=decision.sizes,
        )
        return decision

    def recover(self, reason: str) -> None:
        """Enter the generation that follows a broken one."""
        with self._ended_alike():
            self._elastic.recover(reason)
        self._return("recover")

    def settle(self, *, is_over: bool, is_last: bool = False) -> Ending:
        """Between steps: whatever is due there."""
        with self._ended_alike():
            ending = self._elastic.settle(is_over=is_over, is_last=is_last)
        self._return("settle", number=ending)
        return ending

    def team(self, generation: Generation) -> EvaluationTeam:
        """Return those who run the tail of a step together."""
        return _LeadTeam(self._elastic.team(generation), self)

    def tell_busy(self, max_s: float) -> None:
        """Tell supervision that no step will end for a while."""
        self._elastic.tell_busy(max_s)

    def told(self, call: str, flag: bool) -> bool:
        """Tell the others, each of which is in the same call or comes there."""
        self._followers.await_all()
        self._return(call, number=int(flag))
        return flag

    def await_kept(self) -> None:
        """Wait until this worker has done its part of what is being kept."""
        with self._ended_alike():
            self._elastic.await_kept()
        self._return("await_kept")

    def finish(self, *, has_left_loop: bool) -> None:
        """The script is done: wait until nobody needs this replica."""
        with self._ended_alike():
            self._elastic.finish(has_left_loop=has_left_loop)
        self._followers.end_orderly()
        self._return("finish")

    @contextmanager
    def _ended_alike(self) -> Iterator[None]:
        """Let a call that does not return end on the followers as it ends here."""
        try:
            yield
        except GroupBroken as broken:
            generation = Generation(broken.generation)
            self._followers.tell(CallBroke(generation=generation, reason=broken.reason))
            raise
        except SystemExit:
            self._followers.end_orderly()
            self._followers.tell(LeaveNow())
            raise

    def _return(
        self,
        call: str,
        *,
        number: int = 0,
        is_stopped: bool = False,
        is_saved: bool = False,
        sizes: tuple[int, ...] = (),
        parts: list[bytes] | None = None,
    ) -> None:
        self._followers.tell(
            CallReturned(
                call=call,
                standing=MemberStanding.of(self.member),
                number=number,
                is_stopped=is_stopped,
                is_saved=is_saved,
                sizes=sizes,
                parts=None if parts is None else tuple(part.decode("latin-1") for part in parts),
            )
        )


def _check_alike(
    step: int,
    own: Sequence[int],
    votes: Sequence[Voted],
    stage_of: Callable[[int], int],
    *,
    is_verified: bool,
) -> None:
    """Refuse workers of one replica that differ in what is not sharded over them.

    Those are compared that have the same stage of the model.

    Raises:
        UsageError: names the worker and the aspect.
        StateCorruptError: the state is verified, and they were alike before.
    """
    firsts = {stage_of(0): (0, own)}
    for vote in sorted(votes, key=lambda vote: vote.place):
        first, its = firsts.setdefault(stage_of(vote.place), (vote.place, vote.alike))
        for aspect, here, there in zip(ASPECTS, its, vote.alike, strict=True):
            if UNKNOWN in (here, there) or here == there:
                continue
            what = (
                f"at step {step} the {aspect} of worker {vote.place} of this replica are not "
                f"those of worker {first}"
            )
            if is_verified and step and aspect == "tensors":
                raise StateCorruptError(what)
            raise UsageError(
                f"{what}; every worker runs the same script, so give all the same seed and the "
                "same weights, not others by RANK"
            )


class _LeadTeam:
    """The team of a tail: worker 0 exchanges for all, and tells what came."""

    def __init__(self, team: EvaluationTeam, lead: LeadMembership) -> None:
        self._team = team
        self._lead = lead

    @property
    def place(self) -> tuple[int, int]:
        return self._team.place

    def attend(self) -> None:
        with self._lead._ended_alike():  # noqa: SLF001  # one thing, in two classes
            self._team.attend()
        self._lead._return("attend")  # noqa: SLF001

    def exchange(self, name: str, payload: bytes) -> list[bytes] | None:
        with self._lead._ended_alike():  # noqa: SLF001
            parts = self._team.exchange(name, payload)
        self._lead._return("exchange", parts=parts)  # noqa: SLF001
        return parts

    def gather_names(self, names: Mapping[str, str]) -> dict[str, str]:
        lead, found = self._lead, dict(names)
        with suppress(GroupBroken):  # as the exchange will find
            found |= lead._followers.await_named(lead.member.current)  # noqa: SLF001
        return found
