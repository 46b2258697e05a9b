"""Writer: one replica's part in making boundaries of a run durable, on a thread of its own.

Owns when there is one, what it costs the training, the thread, and what follows if bringing a save
to storage (``publisher``) fails.  Must not know how members agree on a boundary, nor what
the items mean.

A save that a loss cuts short is dropped and taken again at the next boundary; one that the storage
refused is tried again later and later.  Training never waits for any of it, except where the caller
says that this boundary is needed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import torch

from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.layout import Piece
from pliant.checkpoint.dcp.shares import NotAllowedError
from pliant.checkpoint.failures import DamagedError, LeaseHeldError, StoppedError, StorageError
from pliant.checkpoint.publisher import CheckpointPublisher, Save, ShareMissing, told
from pliant.core import durability
from pliant.core.durability import Progress
from pliant.engine.device import here, host
from pliant.engine.device.base import Check
from pliant.engine.state.durable import Snapshot

CLOSE_S = 5.0
"""Longest wait for the thread where nothing else can be done meanwhile: it may be in an operation
that hangs, in seconds."""

TIDY_S = 15.0
"""Longest wait of a save that is needed for one that is durable to let go: of a slow storage it
removes an older one, which may take many requests, in seconds."""

REPLACED_S = 1.0
"""Longest that training waits for the thread to let go of a snapshot that a newer one replaces."""

NEEDED_TRIES, NEEDED_WAIT_S = 5, 4.0
"""How often a save is tried that the end of a job or a hold needs, and a share that a leader waits
for; and the longest wait between two times, in seconds: 16 s in all, and batch systems give 30 s
from SIGTERM on."""

LEFT = "the storage is slow: older checkpoints are left in it, and go with the next save"

NOT_LET_GO = "the storage does not let go of the save before it"

PACE_STEPS = 32
"""How many steps in peace tell how long one takes."""


@dataclass(slots=True)
class StepPace:
    """How long steps take in peace, and by how much those of a save are longer."""

    quiet: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_STEPS))
    slower_s: float = 0.0
    _last_s: float | None = None
    _was_saving: bool = False

    def step(self, now_s: float, *, is_saving: bool) -> None:
        """Take note that a step has ended."""
        last_s, self._last_s = self._last_s, now_s
        was_saving, self._was_saving = self._was_saving, is_saving
        if last_s is None:
            return
        if not (is_saving or was_saving):
            self.quiet.append(now_s - last_s)
        elif self.quiet:
            self.slower_s += max(0.0, now_s - last_s - median(self.quiet))


class Writer:
    """See the module's text.  Its methods are the main thread's; they block only where they say."""

    def __init__(self, publisher: CheckpointPublisher) -> None:
        """Start the thread, which beats the lease from now on."""
        self._publisher = publisher
        self._options = publisher.options
        self._channel = publisher.channel
        self._lease = publisher.lease
        now_s = time.monotonic()
        self._progress = Progress(began_s=now_s, kept_at_s=now_s)
        self._was_asked = False
        self._pace = StepPace()
        self._copier = Copier()
        self._save: Save | None = None
        self._is_closed = False
        self._has_given_up = False
        self._is_unproved = False  # the last share went into a checkpoint of another leader's
        self._beaten_s = time.monotonic()
        self._said = ""
        self._explained = ""
        self._changed = threading.Condition()
        self.stall_s = 0.0
        """How long the last snapshot kept the training waiting."""
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    # --- main thread ------------------------------------------------------------------

    def is_due(self, committed: int, asked_after: int) -> bool:
        """Whether the boundary after so many steps is to be saved; asked once a step."""
        now_s = time.monotonic()
        with self._changed:
            is_saving = self._save is not None
            self._pace.step(now_s, is_saving=is_saving)
            if not self._was_asked:  # what lies there may be damaged, or ahead of this history
                self._was_asked = True
                self._progress = replace(self._progress, kept=committed - 1)
            self._check_limit(now_s)
            if self._is_unproved:  # its leader is gone, and whether it came to publish is not known
                self._is_unproved = False
                self._progress = replace(self._progress, is_owed=True)
            return not is_saving and durability.is_due(
                self._options.interval,
                self._progress,
                committed,
                asked_after=asked_after,
                now_s=now_s,
            )

    def begin(self, snapshot: Snapshot, *, is_needed: bool) -> bool:
        """Copy this replica's share and hand it to the thread; see ``Durability``.

        What is still on its way is given up: whoever led it has come to its end, or would not have
        proposed this boundary.
        """
        began_s = time.monotonic()
        with self._changed:
            self._drop()
            wait_s = REPLACED_S
            if is_needed:
                wait_s = TIDY_S if self._is_tidying else CLOSE_S
            if not self._changed.wait_for(lambda: self._save is None, wait_s):
                if is_needed:  # nobody else would say so
                    self._failed(snapshot, NOT_LET_GO, is_needed=True, is_last=True)
                return False
        whole = Contents(
            tensors=snapshot.tensors,
            objects={layout.DOCUMENT: snapshot.document, **snapshot.objects},
            parts=snapshot.parts,
            num_workers=snapshot.num_workers,
        )
        contents = self._copier.copy(whole, rank=snapshot.rank, num_shares=snapshot.size)
        with self._changed:
            self._save = Save(
                name=layout.name_of(snapshot.committed, snapshot.lineage),
                snapshot=replace(snapshot, tensors={}),
                contents=contents,
                taken_s=time.monotonic(),
                is_needed=is_needed,
            )
            self.stall_s = time.monotonic() - began_s
            self._pace.slower_s = 0.0
            self._changed.notify_all()
        return True

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way that a save of the next boundary should wait for."""
        save = self._save
        return save is None or (save.stuck.is_set() and not save.is_needed)

    @property
    def may_be_left(self) -> bool:
        """Whether who leaves need not wait for what is on its way: it is published, or given up."""
        save = self._save
        return save is None or save.durable.is_set() or save.dropped.is_set()

    @property
    def unsaved(self) -> str:
        """Why the last save that was tried failed; empty if it did not."""
        return self._said if self._progress.failures else ""

    def lose(self) -> None:
        """Drop what is on its way: a member that had a share of it is gone."""
        with self._changed:
            self._progress = durability.lost(self._progress, was_saving=self._save is not None)
            self._drop()

    def close(self, *, wait_s: float) -> bool:
        """End the thread; wait so long for what is on its way.

        False: it has not ended, as the storage does not answer.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._save is None, wait_s)
            self._is_closed = True
            if self._is_tidying:
                self._channel.noted(LEFT)
            self._drop()
        self._thread.join(CLOSE_S)
        return not self._thread.is_alive()

    @property
    def _is_tidying(self) -> bool:
        return self._save is not None and self._save.durable.is_set()

    def _drop(self) -> None:
        if self._save is not None:
            self._save.dropped.set()
        self._changed.notify_all()

    def _check_limit(self, now_s: float) -> None:
        """End the job rather than train unprotected for ever."""
        limit_s = self._options.max_unprotected_s
        waited_s = durability.unprotected_s(self._progress, now_s=now_s)
        if limit_s is None or waited_s <= limit_s or self._has_given_up:
            return
        waited = f"none could be written for {waited_s:.0f} s, and max_unprotected is {limit_s:g} s"
        self._give_up(f"{waited}; last: {self._said}", self._progress.kept)

    # --- the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._save is not None or self._is_closed, self._lease.beat_every_s
                )
                save = self._save
                if save is None and self._is_closed:
                    return
            self._beat()
            if save is not None:
                self._work(save)

    def _beat(self) -> None:
        """Show that the job lives, as often as its lease asks for."""
        every_s = self._lease.beat_every_s
        if every_s is not None and time.monotonic() - self._beaten_s >= every_s:
            self._beaten_s = time.monotonic()
            with told(self._channel, "the lease"):
                self._lease.beat()

    def _is_dropped(self, save: Save) -> bool:
        self._beat()
        return save.dropped.is_set()

    def _check_wanted(self, save: Save) -> None:
        if self._is_dropped(save):
            raise StoppedError(f"{save.name} was given up")

    def _work(self, save: Save) -> None:
        """Bring one snapshot to its end; one that is needed has several tries."""
        is_follower = save.snapshot.rank > 0  # the leader waits for its share
        tries = NEEDED_TRIES if save.is_needed or is_follower else 1
        while tries and not save.dropped.is_set():
            tries -= 1
            try:
                self._bring(save)
                break
            except StoppedError:
                break  # a loss, or the end: whoever stopped it knows
            except LeaseHeldError as error:
                self._give_up(str(error), save.snapshot.committed)
                break
            except ShareMissing as error:
                needed = save.is_needed
                self._failed(save.snapshot, str(error), is_needed=needed, is_last=needed)
                break  # its writer has given up: waiting again would be as long, and as vain
            except Exception as error:  # a thread boundary: silence would be taken for success
                is_known = isinstance(error, StorageError | DamagedError | NotAllowedError)
                wait_s = self._failed(
                    save.snapshot,
                    str(error) if is_known else f"{type(error).__name__}: {error}",
                    is_needed=save.is_needed,
                    is_last=save.is_needed and not tries,
                )
            if is_follower and not tries:
                self._publisher.give_up(save, self._said)
            if tries:
                save.stuck.set()
                save.dropped.wait(wait_s)
                save.stuck.clear()
        with self._changed:
            self._save = None
            self._changed.notify_all()

    def _bring(self, save: Save) -> None:
        snapshot = save.snapshot
        self._copier.wait(lambda: self._check_wanted(save))
        self._publisher.bring(save, stop=lambda: self._is_dropped(save))
        with self._changed:
            cost_s = self.stall_s + self._pace.slower_s
            self._progress = replace(
                durability.kept(self._progress, snapshot.committed, at_s=save.taken_s),
                cost_s=max(cost_s, 1e-3),
            )
            self._is_unproved = snapshot.rank != 0
        if snapshot.rank == 0:
            self._publisher.tidy(save)
            self._explain()

    def _explain(self) -> None:
        """Say how often there will be a checkpoint, once it is another interval than before."""
        said = durability.explain(self._options.interval, self._progress, now_s=time.monotonic())
        if said.split(":")[0] != self._explained:
            self._explained = said.split(":")[0]
            self._channel.explained(said)

    def _failed(
        self, snapshot: Snapshot, reason: str, *, is_needed: bool, is_last: bool = False
    ) -> float:
        is_short = is_needed or snapshot.rank > 0  # its leader waits, and not for long
        with self._changed:
            self._progress, wait_s = durability.failed(self._progress, now_s=time.monotonic())
            wait_s = min(wait_s, NEEDED_WAIT_S) if is_short else wait_s
            self._said = reason
        told_s = 0.0 if is_last else wait_s
        self._channel.failed(reason, committed=snapshot.committed, retry_s=told_s)
        return wait_s

    def _give_up(self, reason: str, committed: int) -> None:
        """End the job: it must not go on unprotected."""
        self._has_given_up = True
        self._channel.failed(reason, committed=committed, retry_s=None)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is copied of tensors that look like this: the same from one save to the next."""

    key: object
    """How the tensors look, and whose share of how many."""
    pieces: tuple[Piece, ...]
    described: Mapping[str, torch.Tensor]
    """All tensors, without memory."""


class Copier:
    """Copies shares, one at a time: the one before must have been written, or given up.

    On one thread, so that of two copies into one memory the later one comes last.
    """

    def __init__(self) -> None:
        self._memory: dict[Piece, torch.Tensor] = {}
        self.wait: Callable[[Check], None] = lambda check: None
        """Waits until the last copy is there, on any thread; see ``Device.fetch``."""
        self._plan: _Plan | None = None

    @property
    def num_bytes(self) -> int:
        """Memory held now."""
        return sum(tensor.nbytes for tensor in self._memory.values())

    def copy(self, whole: Contents, *, rank: int, num_shares: int) -> Contents:
        """Return a state of which this rank's share is held, and the rest only described."""
        plan = self._planned(whole, rank=rank, num_shares=num_shares)
        had, self._memory = self._memory, {}
        boxes = [whole.memory_of(piece).detach() for piece in plan.pieces]
        for piece, box in zip(plan.pieces, boxes, strict=True):
            memory = had.get(piece)
            if memory is None or memory.dtype != box.dtype:
                is_far = not host.is_here(box)
                memory = torch.empty(
                    piece.sizes, dtype=box.dtype, device=host.LOCATION, pin_memory=is_far
                )
            self._memory[piece] = memory
        self.wait = here.device.fetch(boxes, list(self._memory.values()))
        return replace(whole, tensors=plan.described, held=self._memory)

    def _planned(self, whole: Contents, *, rank: int, num_shares: int) -> _Plan:
        """Return the plan of these tensors; training waits, and making one takes 10 ms of 600."""
        tensors = whole.tensors
        looks = {name: (t.shape, t.dtype) for name, t in tensors.items()}
        key = (looks, dict(whole.parts), rank, num_shares)
        if self._plan is None or self._plan.key != key:
            self._plan = _Plan(
                key=key,
                pieces=tuple(whole.pieces(rank=rank, num_shares=num_shares)),
                described={name: tensor.to("meta") for name, tensor in tensors.items()},
            )
        return self._plan
