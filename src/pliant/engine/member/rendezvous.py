"""Meeting: what the members of a generation tell each other in a few integers.

Owns the headers of a new generation with what follows from them for this replica (which state
counts is decided in ``core.membership.resolve``), and what is said beside the votes for a step
with the refusal to commit what differs.  Must not know what is trained, or what a commit does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pliant.core.agreement import another_total
from pliant.core.errors import NoStateError, UsageError
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Header, Resolution, resolve
from pliant.core.step.times import MemberTimes
from pliant.core.values import Order
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.group import Group
from pliant.engine.device import host
from pliant.engine.guard.comparison import ASPECTS, UNKNOWN, part_with_the_wrong
from pliant.engine.member.membership_port import Condition, Ending, VoteRequests
from pliant.engine.member.runtime import ProtocolRuntime
from pliant.engine.state import naming

_HEADER_INTS = 7


class LoopFlags(NamedTuple):
    """What a member says of its script, beside its header."""

    ending: Ending
    """It knows that all have agreed to end after the last committed step."""

    has_left_loop: bool
    """It left the loop over steps early."""

    asked: Ending
    """What its last vote asked for."""

    total: int = 0
    """How far its call of ``steps()`` goes; 0: it is in none."""

    @classmethod
    def of(cls, ending: int, has_left_loop: int, asked: int, total: int) -> LoopFlags:
        """Return what a row of integers says."""
        return cls(Ending(ending), bool(has_left_loop), Ending(asked), total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What the members of a new generation learned of each other."""

    resolution: Resolution
    ending: Ending
    """What a survivor knows that all have agreed on for the last committed step."""

    apart: int
    """If somebody is to receive state and not all are in the same ``steps()`` call: how many calls
    the one ahead has finished, else 0."""

    paces_us: tuple[int, ...] = ()
    """How long each takes for what it computes at once, in rank order."""


def meet(
    runtime: ProtocolRuntime, order: Order, group: Group, flags: LoopFlags, pace_us: int
) -> Meeting:
    """Exchange headers and take this member's part of the resolution.

    Raises:
        GroupBroken: somebody failed, a newer Reform has come, or nobody holds state.
        UsageError: some survivors left the loop early and others did not.
    """
    header = protocol.header(runtime.member)
    row = torch.tensor(
        [*header.to_ints(), *map(int, flags), pace_us], dtype=torch.int64, device=host.LOCATION
    )
    with runtime.waits(order.generation):
        rows = group.all_gather(row).tolist()
    headers = [Header.from_ints(row[:_HEADER_INTS]) for row in rows]
    said = [LoopFlags.of(*row[_HEADER_INTS:-1]) for row in rows]
    origin = None if order.origin is None else order.replicas.index(order.origin)
    try:
        resolution = resolve(headers, origin, order.restore)
    except NoStateError as error:
        raise GroupBroken(order.generation, str(error)) from error
    runtime.resolve(order, resolution, group.rank)
    _check_loops([said[r] for r in resolution.survivors if r not in resolution.commits])
    survivors = [said[rank] for rank in resolution.survivors]
    # Where all commit late nobody has seen what the metadata of their votes asked for.
    all_late = set(resolution.survivors) <= set(resolution.commits)
    known = [max(one.ending, one.asked) if all_late else one.ending for one in survivors]
    here = [rank for rank, header in enumerate(headers) if header.calls == resolution.calls]
    _check_totals({rank: said[rank].total for rank in here}, resolution, order, group.rank)
    calls = {headers[rank].calls for rank in (*resolution.survivors, *resolution.joiners)}
    return Meeting(
        resolution=resolution,
        ending=max(known, default=Ending.NONE),
        apart=max(calls) if resolution.joiners and len(calls) > 1 else 0,
        paces_us=tuple(row[-1] for row in rows),
    )


def _check_totals(
    totals: Mapping[int, int], resolution: Resolution, order: Order, own: int
) -> None:
    """Take nobody in whose call of ``steps()`` goes elsewhere: it would end the job, or go on.

    ``totals``: by rank, of those who are in the same call.
    """
    total = max(totals.get(rank, 0) for rank in resolution.survivors)
    for rank in resolution.joiners:
        its = totals.get(rank, 0)
        if its == total or 0 in (its, total):
            continue
        name = order.replicas[rank]
        if rank == own:
            raise UsageError(another_total(its, total))
        raise GroupBroken(order.generation, f"{name} goes to step {its} instead of {total}")


def _check_loops(settled: Sequence[LoopFlags]) -> None:
    """Make sure that those who committed the last step in time left the loop alike."""
    if len({one.has_left_loop for one in settled}) > 1:
        raise UsageError(
            "one replica left the loop over session.steps() early and another did not; call "
            "step.stop(), which all replicas obey after the same step"
        )


class StepMetadata(NamedTuple):
    """What a member says beside its vote; all integers, for they travel as one small tensor."""

    ready: int
    """Number of the generation that it is ready to enter; 0: none (R7)."""

    stop: int
    """Which ``Ending`` it wants after this step."""

    save: int
    slot_us: int
    times: MemberTimes
    digests: tuple[int, ...]
    """Of the aspects of its state; 0: it does not know."""

    @classmethod
    def of(
        cls, member: Member, condition: Condition | None, requests: VoteRequests
    ) -> StepMetadata:
        """Return what ``member`` says; without a condition it votes for no step."""
        outside = Ending.OUTSIDE if member.stopping else Ending.NONE
        return cls(
            ready=protocol.ready_number(member),
            stop=Ending.SCRIPT if requests.stop else outside,
            save=int(requests.save),
            slot_us=requests.slot_us,
            times=requests.times,
            digests=(UNKNOWN,) * len(ASPECTS) if condition is None else condition.digests,
        )

    def exchange(self, group: Group) -> list[StepMetadata]:
        """Return what each member says, in rank order.  All members must call."""
        numbers = (self.ready, self.stop, self.save, self.slot_us, *self.times)
        row = torch.tensor([*numbers, *self.digests], dtype=torch.int64, device=host.LOCATION)
        rows = group.all_gather(row).tolist()
        return [
            StepMetadata(ready, stop, save, slot_us, MemberTimes(*rest[:3]), tuple(rest[3:]))
            for ready, stop, save, slot_us, *rest in rows
        ]


Share = Callable[[bytes], Sequence[bytes]]
"""Gives something to all members, and returns what each gave, in rank order."""


def check_alike(
    digests: Sequence[Sequence[int]],
    replicas: Sequence[str],
    step: int,
    named: Callable[[int], Mapping[str, str]],
    share: Share,
    *,
    verified_for: str = "",
) -> str:
    """Refuse to go on with what would differ from a run of one replica.

    All members must call, and come to the same conclusion.  Returns what is wrong with the tensors
    of others, who leave by themselves; empty if all is alike.

    Args:
        digests: of each aspect of its state, by member.
        replicas: names of the members, in the same order.
        step: for the sentence.
        named: says what an aspect of this member's state consists of.
        share: of the members.
        verified_for: this replica, where those leave whose tensors are not those of most; else
            empty.

    Raises:
        UsageError: the members' states are not the same; names what differs, and on whom.
        StateCorruptError: it is this replica that leaves.
    """
    for aspect, column in enumerate(zip(*digests, strict=True)):
        if len(set(column) - {UNKNOWN}) > 1:
            found = [naming.unpack(part) for part in share(naming.pack(named(aspect)))]
            what = naming.difference(found, replicas) or f"the {ASPECTS[aspect]} differ"
            if verified_for and ASPECTS[aspect] == "tensors":
                what = f"at step {step} {what}"
                return part_with_the_wrong(column, replicas, verified_for, what)
            raise UsageError(naming.sentence(step, what))
    return ""
