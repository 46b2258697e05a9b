"""Bringing one save to storage: this replica's share, and on rank 0 the checkpoint of all of them.

Owns the order of what is written and asked, and what is tidied up afterwards.  Must not know when
anything is saved, nor what follows from a failure (``writer``).

    every member    share on storage
    rank 0          -> all shares there -> leave to publish -> manifest -> retention
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pliant.checkpoint import catalogue
from pliant.checkpoint.catalogue import Milestones
from pliant.checkpoint.dcp import layout, shares
from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.manifest import own_digest
from pliant.checkpoint.dcp.shares import NotAllowedError
from pliant.checkpoint.failures import DamagedError, StoppedError, StorageError
from pliant.checkpoint.lease import JobLease
from pliant.checkpoint.store.base import Storage
from pliant.core.durability import Interval
from pliant.core.errors import PliantError
from pliant.engine import probe
from pliant.engine.state.durable import CheckpointChannel, Snapshot

SHARES_S = 20.0
"""How long the leader waits for the others' shares beyond four times what its own took: a member
that is gone without notice is told by the loss, one whose storage fails is not.  That one tries
again for 15 s; a run that is to end waits for this."""

LATE_S = 5.0
"""After so long, beyond four times what the leader's own took, the others' shares are late: what is
to be saved next need not wait for this save, in seconds."""

LOOK_S, LONG_LOOK_S = 0.02, 0.5
"""Between two looks for shares: first and longest, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOptions:
    """What the user asked for."""

    interval: Interval
    keep: int
    milestones: Milestones
    max_unprotected_s: float | None
    """After so long without a checkpoint that was due the job is ended; None: never."""


class ShareMissing(PliantError):  # noqa: N818  an event of a run, not a mistake
    """A member did not write its part in time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Save:
    """One snapshot on its way."""

    name: str
    snapshot: Snapshot
    contents: Contents
    taken_s: float
    is_needed: bool
    dropped: threading.Event = field(default_factory=threading.Event)
    """Set by whoever gives it up."""

    stuck: threading.Event = field(default_factory=threading.Event)
    """Set while it waits to be tried again, or for shares that are late."""

    durable: threading.Event = field(default_factory=threading.Event)
    """Set once it is published: what is left to do is to remove older ones."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckpointPublisher:
    """Writes to one checkpoint root for one session; used from one thread."""

    storage: Storage
    options: SaveOptions
    job: str
    run: str = ""
    """The same for all replicas; told from other runs that used this place before."""

    identity: Mapping[str, str]
    """What must agree for a run to go on with the same bits."""

    origin: Mapping[str, Any] | None = None
    """What tells another run whether it may go on from here."""

    channel: CheckpointChannel
    lease: JobLease

    def bring(self, save: Save, *, stop: Callable[[], bool]) -> None:
        """Write this replica's share; on rank 0 make the checkpoint of all of them.

        ``stop`` is asked between pieces, and while others are waited for.

        Raises:
            StoppedError: ``stop`` said so.
            ShareMissing: a member did not write its part in time, or cannot.
            LeaseHeldError: another job holds the place, or another process has gone on with this
                one while its register was gone.
            NotAllowedError: the coordinator says that this history is no longer the job's.
        """
        snapshot = save.snapshot
        probe.at("share", snapshot.committed)
        began_s = time.monotonic()
        shares.write_share(
            self.storage,
            save.name,
            save.contents,
            rank=snapshot.rank,
            num_shares=snapshot.size,
            generation=snapshot.generation,
            run=self.run,
            stop=stop,
        )
        own_s = time.monotonic() - began_s
        if snapshot.rank == 0:
            self._await_shares(save, stop, usual_s=time.monotonic() + 4 * own_s)
            self._publish(save)

    def give_up(self, save: Save, reason: str) -> None:
        """Tell the leader, who waits for it, that this replica's share will not come."""
        with contextlib.suppress(Exception):  # then it finds out by the time
            shares.give_up_share(
                self.storage,
                save.name,
                rank=save.snapshot.rank,
                generation=save.snapshot.generation,
                run=self.run,
                reason=reason,
            )

    def tidy(self, save: Save) -> None:
        """Keep what is to be kept; a failure is told, not raised.

        Once the save is dropped, no further one is removed: the next save does that.
        """
        with told(self.channel, "old checkpoints"):
            catalogue.prune(
                self.storage,
                keep=self.options.keep,
                milestones=self.options.milestones,
                known_sound=(save.name,),
                stop=save.dropped.is_set,
            )
            if not save.dropped.is_set():
                catalogue.sweep(self.storage, sparing=self._under_way(save))

    def _await_shares(self, save: Save, stop: Callable[[], bool], *, usual_s: float) -> None:
        """Wait until every member's share is on storage; ``usual_s``: when they should be."""
        size, generation, pause_s = save.snapshot.size, save.snapshot.generation, LOOK_S
        while True:
            there = shares.present(self.storage, save.name, generation=generation)
            if len(there) == size:
                save.stuck.clear()
                return
            first = min(rank for rank in range(size) if rank not in there)
            why = shares.why_given_up(
                self.storage, save.name, rank=first, generation=generation, run=self.run
            )
            if why:
                raise ShareMissing(f"rank {first} of {size} could not write its share: {why}")
            if time.monotonic() > usual_s + LATE_S:
                save.stuck.set()
            if time.monotonic() > usual_s + SHARES_S:
                missing = ", ".join(str(rank) for rank in range(size) if rank not in there)
                raise ShareMissing(f"the share of rank {missing} of {size} did not come in time")
            save.dropped.wait(pause_s)
            if stop():
                raise StoppedError(f"{save.name} was given up")
            pause_s = min(pause_s * 1.5, LONG_LOOK_S)

    def _publish(self, save: Save) -> None:
        snapshot = save.snapshot
        if not self.channel.may_publish(
            save.name, committed=snapshot.committed, lineage=snapshot.lineage
        ):
            raise NotAllowedError("the coordinator did not allow to publish it")
        if save.dropped.is_set():
            raise StoppedError(f"{save.name} was given up")
        probe.at("publish", snapshot.committed)
        manifest = shares.publish(
            self.storage,
            save.name,
            generation=snapshot.generation,
            num_shares=snapshot.size,
            job=self.job,
            run=self.run,
            identity=self.identity,
            facts={"calls": snapshot.calls, "origin": self.origin},
            aliases=snapshot.aliases,
            allowed=self.lease.is_kept if self.channel.is_register_gone else self.lease.ensure,
        )
        self.channel.saved(
            save.name,
            committed=snapshot.committed,
            lineage=snapshot.lineage,
            calls=snapshot.calls,
            seconds=time.monotonic() - save.taken_s,
            place=self.storage.place(save.name),
            digest=own_digest(manifest),
        )
        save.durable.set()

    def _under_way(self, save: Save) -> list[str]:
        """Return what is not there yet, but may be written by others: all that is newer."""
        parsed = (layout.parse_name(entry.name) for entry in self.storage.entries())
        newest = (save.snapshot.lineage, save.snapshot.committed)
        return [str(n) for n in parsed if n is not None and (n.lineage, n.committed) > newest]


@contextlib.contextmanager
def told(channel: CheckpointChannel, what: str) -> Iterator[None]:
    """Turn a failure of what is not the checkpoint itself into a sentence."""
    try:
        yield
    except Exception as error:  # or the thread would end, and with it all saving
        kind = "" if isinstance(error, StorageError | DamagedError) else f"{type(error).__name__}: "
        channel.noted(f"{what} could not be seen to: {kind}{error}")
