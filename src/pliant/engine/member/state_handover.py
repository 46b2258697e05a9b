"""State handover: how the members of a new generation come to hold the same state.

Owns who sends, who receives, who loads a checkpoint for all, and whom the coordinator is told to
do without.  Must not know what the state is: it calls back (``TrainingCallbacks``).

    load a checkpoint, if that was ordered -> send, at once or after this replica's tail
                                           -> or receive
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import torch

from pliant.core.errors import UsageError
from pliant.core.events import Event, Refused, Unrestorable
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.values import NO_CHECKPOINT, Order, ReplicaId, Restore
from pliant.engine import probe
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.group import Group, Ticket
from pliant.engine.member.followers import NO_FOLLOWERS, Followers, PartDamaged, StateRefused
from pliant.engine.member.membership_port import TrainingCallbacks
from pliant.engine.member.rendezvous import Meeting
from pliant.engine.state.durable import CheckpointDamaged
from pliant.engine.state.tagged_codec import CodecError
from pliant.engine.state.transfer import (
    Stamp,
    SurvivorsDiffer,
    TensorSpec,
    TransferRefused,
    receive_state,
    send_state,
)

_DATASET = "dataset"
"""Name under which members say what their datasets are like."""

RESTORE_S = 3600.0
"""For how long a replica that reads a checkpoint asks to be waited for, in seconds."""


class HandoverRuntime(Protocol):
    """What it asks of the protocol's runtime."""

    @property
    def member(self) -> Member:
        """The protocol's value."""

    def tell(self, message: Event) -> None:
        """Tell the coordinator."""

    def tell_busy(self, max_s: float) -> None:
        """Tell that no step will end for a while."""

    def receive(self, order: Order, resolution: Resolution) -> None:
        """Hold the state that was received, or loaded."""


class StateHandover:
    """What one worker does for it, generation after generation."""

    def __init__(
        self,
        runtime: HandoverRuntime,
        callbacks: TrainingCallbacks,
        followers: Followers = NO_FOLLOWERS,
    ) -> None:
        """``followers``: the other workers of its replica, if it speaks for them."""
        self._followers = followers
        self._runtime = runtime
        self._callbacks = callbacks
        self._due: Callable[[], None] | None = None
        self._sent: Ticket[None] | None = None
        self.received = 0, 0.0
        """Bytes of tensors that came here in the newest generation, and how long that took."""

    def check(self) -> None:
        """Make sure that what broke a group was not that the survivors' states differ.

        Raises:
            UsageError: it was: whoever trains again would only differ again.
        """
        error = None if self._sent is None else self._sent.error
        if isinstance(error, SurvivorsDiffer):
            raise UsageError(str(error))

    def start(self, order: Order, group: Group, meeting: Meeting, *, owes_tail: bool) -> None:
        """Give or take state; what is given waits for ``complete`` if this replica owes a tail.

        Raises:
            GroupBroken: it did not come about; the coordinator was told if somebody is to blame.
        """
        self._due = None
        self.received = 0, 0.0
        resolution = meeting.resolution
        if resolution.restore is not None and group.rank in resolution.survivors:
            self._restore(order, resolution, resolution.restore)
        if not resolution.joiners:
            return
        if meeting.apart:
            self._keep_apart(order, resolution, meeting.apart)
        stamp = Stamp(
            generation=order.generation, step=resolution.committed, lineage=resolution.lineage
        )
        if group.rank in resolution.joiners:
            self._receive(order, group, resolution, stamp)
            return
        self._due = lambda: self._send(order, group, resolution, stamp)
        if not owes_tail:  # else the tail comes first: extra_state moves there
            self.complete()

    def complete(self) -> None:
        """Send the state that had to wait for this replica's tail."""
        due, self._due = self._due, None
        if due is not None:
            due()

    def _restore(self, order: Order, resolution: Resolution, restore: Restore) -> None:
        """Take the state of a checkpoint for all members; tell the coordinator if it is damaged."""
        probe.at("restore", restore.committed)
        self._runtime.tell_busy(RESTORE_S)
        try:
            if restore.checkpoint != NO_CHECKPOINT:
                self._callbacks.restore(restore.checkpoint, restore.committed)
            self._receive_everywhere(order, resolution)
        except (CheckpointDamaged, PartDamaged) as error:
            reason = error.reason if isinstance(error, PartDamaged) else str(error)
            self._runtime.tell(
                Unrestorable(
                    replica=self._runtime.member.replica,
                    generation=order.generation,
                    checkpoint=restore.checkpoint,
                    reason=reason,
                )
            )
            raise GroupBroken(order.generation, f"{restore.checkpoint}: {reason}") from error
        finally:
            self._runtime.tell_busy(0.0)

    def _send(self, order: Order, group: Group, resolution: Resolution, stamp: Stamp) -> None:
        probe.at("transfer", resolution.committed)

        def refuse(why: str) -> None:
            for rank in resolution.joiners:
                self._refuse(order, order.replicas[rank], f"the state cannot be sent: {why}")

        try:
            self._sent = send_state(
                group,
                stamp=stamp,
                survivors=resolution.survivors,
                joiners=resolution.joiners,
                replicas=order.replicas,
                value=self._callbacks.state_to_send(),
                unable=refuse,
            )
        except CodecError as error:  # the script put something into its state since it began
            refuse(str(error))
            raise GroupBroken(order.generation, str(error)) from error
        attributes = self._callbacks.dataset_attributes()
        group.submit(lambda comm: comm.share(_DATASET, attributes))

    def _receive(self, order: Order, group: Group, resolution: Resolution, stamp: Stamp) -> None:
        probe.at("transfer", resolution.committed)
        began_s = time.monotonic()
        num_bytes = 0

        def allocate(document: Any, specs: Sequence[TensorSpec]) -> Sequence[torch.Tensor]:
            nonlocal num_bytes
            tensors = self._callbacks.allocate(document, specs)
            num_bytes = sum(tensor.nbytes for tensor in tensors)
            return tensors

        try:
            state = receive_state(
                group,
                stamp=stamp,
                survivors=resolution.survivors,
                joiners=resolution.joiners,
                replicas=order.replicas,
                allocate=allocate,
            )
            self.received = num_bytes, time.monotonic() - began_s
            self._callbacks.take_state(state)
        except SurvivorsDiffer as error:  # who train end the job
            raise GroupBroken(order.generation, str(error)) from error
        except TransferRefused as error:
            self._refuse(order, self._runtime.member.replica, str(error))
            raise GroupBroken(order.generation, str(error)) from error
        shared = group.share(_DATASET, self._callbacks.dataset_attributes())
        self._callbacks.compare_dataset([shared[rank] for rank in resolution.survivors])
        self._receive_everywhere(order, resolution)

    def _receive_everywhere(self, order: Order, resolution: Resolution) -> None:
        """Hold the state once every worker of this replica has its part."""
        try:
            self._followers.await_received(order.generation)
        except StateRefused as refused:
            self._refuse(order, self._runtime.member.replica, refused.reason)
            raise
        self._runtime.receive(order, resolution)

    def _keep_apart(self, order: Order, resolution: Resolution, calls: int) -> NoReturn:
        """Give no state: a joiner would run code between two calls of ``steps()`` on top of it.

        It was in the members' call when the Switch was sent; some have come to the next one since.
        The members go on without the joiners, which come again.
        """
        reason = "the members are not in the same call of steps() as the joiner"
        for rank in resolution.joiners:
            self._refuse(order, order.replicas[rank], reason, calls=calls)
        raise GroupBroken(order.generation, reason)

    def _refuse(self, order: Order, joiner: ReplicaId, reason: str, *, calls: int = 0) -> None:
        number = order.generation
        self._runtime.tell(
            Refused(replica=joiner, generation=number, reason=reason, joiner=True, calls=calls)
        )
