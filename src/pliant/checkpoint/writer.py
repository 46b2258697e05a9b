"""Writer: one replica's part in making boundaries of a run durable, on a thread of its own.

Owns what happens between a snapshot and a published checkpoint: this replica's share, the wait for
the others', leave to publish, retention and the copy; and what happens if any of it fails.  Must
not know how members agree on a boundary, nor what the items mean.

    every member    copy (training waits) -> share on storage
    rank 0          -> all shares there -> leave to publish -> manifest -> retention -> copy

A save that a loss cuts short is dropped and taken again at the next boundary; one that the storage
refused is tried again later and later.  Training never waits for any of it, except where the caller
says that this boundary is needed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from pliant.checkpoint import catalogue
from pliant.checkpoint.catalogue import Milestones
from pliant.checkpoint.dcp import layout, shares
from pliant.checkpoint.dcp.shares import Contents, NotAllowedError
from pliant.checkpoint.failures import DamagedError, LeaseHeldError, StoppedError, StorageError
from pliant.checkpoint.job_lease import Tenure
from pliant.checkpoint.snapshot import Copier
from pliant.checkpoint.store.base import Storage
from pliant.core import durability
from pliant.core.durability import Interval, Progress
from pliant.core.errors import PliantError
from pliant.engine import probe
from pliant.engine.state.durable import CheckpointChannel, Snapshot

DOCUMENT = "pliant.document"

SHARES_S = 60.0
"""How long the leader waits for the others' shares beyond four times what its own took: a member
that is gone without notice is told by the loss, one whose storage fails is not."""

CLOSE_S = 5.0
"""Longest wait for the thread where nothing else can be done meanwhile: it may be in an operation
that hangs, in seconds."""

REPLACED_S = 1.0
"""Longest that training waits for the thread to let go of a snapshot that a newer one replaces."""

LOOK_S, LONG_LOOK_S = 0.02, 0.5
"""Between two looks for shares: first and longest, in seconds."""

NEEDED_TRIES = 5
"""How often a save is tried that the end of a job or a hold needs: over half a minute."""

STEPS = 32
"""How many steps in peace tell how long one takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterRules:
    """What the user asked for."""

    interval: Interval
    keep: int
    milestones: Milestones
    max_unprotected_s: float | None
    """After so long without a checkpoint that was due the job is ended; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What every checkpoint of this session says of its run."""

    job: str
    values: Mapping[str, str]
    run: str = ""
    """The same for all replicas; told from other runs that used this place before."""


class _ShareMissing(PliantError):  # noqa: N818  an event of a run, not a mistake
    """A member did not write its part in time."""


@dataclass(slots=True, kw_only=True)
class _Save:
    """One snapshot on its way."""

    name: str
    snapshot: Snapshot
    contents: Contents
    taken_s: float
    is_needed: bool
    is_dropped: bool = False


@dataclass(slots=True)
class _Pace:
    """How long steps take in peace, and by how much those of a save are longer."""

    quiet: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
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

    def __init__(
        self,
        storage: Storage,
        *,
        rules: WriterRules,
        identity: Identity,
        office: CheckpointChannel,
        tenure: Tenure,
        second: Storage | None = None,
    ) -> None:
        """Start the thread.

        Args:
            storage: the checkpoint root.
            rules: how often, and what is kept.
            identity: goes into every manifest.
            office: what is asked and told.
            tenure: the right to write here; proved last before publishing.
            second: where published checkpoints are copied to.
        """
        self._storage = storage
        self._rules = rules
        self._identity = identity
        self._office = office
        self._tenure = tenure
        self._second = second
        now_s = time.monotonic()
        self._progress = Progress(began_s=now_s, kept_at_s=now_s)
        self._was_asked = False
        self._pace = _Pace()
        self._copier = Copier()
        self._save: _Save | None = None
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

    def is_due(self, committed: int) -> bool:
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
                self._rules.interval, self._progress, committed, now_s=now_s
            )

    def begin(self, snapshot: Snapshot, *, is_needed: bool) -> bool:
        """Copy this replica's share and hand it to the thread; see ``Durability``.

        What is still on its way is given up: whoever led it has come to its end, or would not have
        proposed this boundary.
        """
        began_s = time.monotonic()
        with self._changed:
            if self._save is not None:
                self._save.is_dropped = True
                self._changed.notify_all()
            wait_s = CLOSE_S if is_needed else REPLACED_S
            if not self._changed.wait_for(lambda: self._save is None, wait_s):
                return False
        contents = self._copier.copy(
            snapshot.tensors,
            {DOCUMENT: snapshot.document, **snapshot.objects},
            rank=snapshot.rank,
            num_shares=snapshot.size,
        )
        with self._changed:
            self._save = _Save(
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
        """Whether nothing is on its way."""
        return self._save is None

    def lose(self) -> None:
        """Drop what is on its way: a member that had a share of it is gone."""
        with self._changed:
            self._progress = durability.lost(self._progress, was_saving=self._save is not None)
            if self._save is not None:
                self._save.is_dropped = True
            self._changed.notify_all()

    def close(self, *, wait_s: float) -> None:
        """End the thread; wait so long for what is on its way."""
        with self._changed:
            self._changed.wait_for(lambda: self._save is None, wait_s)
            self._is_closed = True
            if self._save is not None:
                self._save.is_dropped = True
            self._changed.notify_all()
        self._thread.join(CLOSE_S)

    def _check_limit(self, now_s: float) -> None:
        """End the job rather than train unprotected for ever."""
        limit_s = self._rules.max_unprotected_s
        waited_s = durability.unprotected_s(self._progress, now_s=now_s)
        if limit_s is None or waited_s <= limit_s or self._has_given_up:
            return
        self._give_up(
            f"none could be written for {waited_s:.0f} s, and max_unprotected is {limit_s:g} s; "
            f"last: {self._said}",
            self._progress.kept,
        )

    # --- the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._save is not None or self._is_closed, self._tenure.beat_every_s
                )
                save = self._save
                if save is None and self._is_closed:
                    return
            self._beat()
            if save is not None:
                self._work(save)

    def _beat(self) -> None:
        """Show that the job lives, as often as its lease asks for."""
        every_s = self._tenure.beat_every_s
        if every_s is not None and time.monotonic() - self._beaten_s >= every_s:
            self._beaten_s = time.monotonic()
            with self._told("the lease"):
                self._tenure.beat()

    def _is_dropped(self, save: _Save) -> bool:
        self._beat()
        return save.is_dropped

    def _work(self, save: _Save) -> None:
        """Bring one snapshot to its end; one that is needed has several tries."""
        is_follower = save.snapshot.rank > 0  # the leader waits for its share
        tries = NEEDED_TRIES if save.is_needed or is_follower else 1
        while tries and not save.is_dropped:
            tries -= 1
            try:
                self._write(save)
                break
            except StoppedError:
                break  # a loss, or the end: whoever stopped it knows
            except LeaseHeldError as error:
                self._give_up(str(error), save.snapshot.committed)
                break
            except _ShareMissing as error:
                self._failed(save, str(error))
                break  # its writer has given up: waiting again would be as long, and as vain
            except (StorageError, DamagedError, NotAllowedError) as error:
                wait_s = self._failed(save, str(error))
            except Exception as error:  # a thread boundary: silence would be taken for success
                wait_s = self._failed(save, f"{type(error).__name__}: {error}")
            if tries:
                with self._changed:
                    self._changed.wait_for(lambda: save.is_dropped, wait_s)
        with self._changed:
            self._save = None
            self._changed.notify_all()

    def _write(self, save: _Save) -> None:
        """Write this replica's share; on rank 0 make the checkpoint of all of them."""
        snapshot = save.snapshot
        probe.at("share", snapshot.committed)
        began_s = time.monotonic()
        shares.write_share(
            self._storage,
            save.name,
            save.contents,
            rank=snapshot.rank,
            num_shares=snapshot.size,
            generation=snapshot.generation,
            run=self._identity.run,
            stop=lambda: self._is_dropped(save),
        )
        own_s = time.monotonic() - began_s
        if snapshot.rank == 0:
            self._await_shares(save, deadline_s=time.monotonic() + SHARES_S + 4 * own_s)
            self._publish(save)
        with self._changed:
            cost_s = self.stall_s + self._pace.slower_s
            self._progress = replace(
                durability.kept(self._progress, snapshot.committed, at_s=save.taken_s),
                cost_s=max(cost_s, 1e-3),
            )
            self._is_unproved = snapshot.rank != 0
        if snapshot.rank == 0:
            self._tidy(save)

    def _await_shares(self, save: _Save, *, deadline_s: float) -> None:
        """Wait until every member's share is on storage."""
        size, pause_s = save.snapshot.size, LOOK_S
        while True:
            there = shares.present(self._storage, save.name, generation=save.snapshot.generation)
            if len(there) == size:
                return
            if time.monotonic() > deadline_s:
                missing = ", ".join(str(rank) for rank in range(size) if rank not in there)
                raise _ShareMissing(f"the share of rank {missing} of {size} did not come in time")
            with self._changed:
                self._changed.wait_for(lambda: save.is_dropped, pause_s)
            if self._is_dropped(save):
                raise StoppedError(f"{save.name} was given up")
            pause_s = min(pause_s * 1.5, LONG_LOOK_S)

    def _publish(self, save: _Save) -> None:
        snapshot = save.snapshot
        if not self._office.may_publish(
            save.name, committed=snapshot.committed, lineage=snapshot.lineage
        ):
            raise NotAllowedError("the coordinator did not allow to publish it")
        if save.is_dropped:
            raise StoppedError(f"{save.name} was given up")
        probe.at("publish", snapshot.committed)
        shares.publish(
            self._storage,
            save.name,
            generation=snapshot.generation,
            num_shares=snapshot.size,
            job=self._identity.job,
            run=self._identity.run,
            identity=self._identity.values,
            facts={"calls": snapshot.calls},
            aliases=snapshot.aliases,
            allowed=self._tenure.ensure,
        )
        self._office.saved(
            save.name,
            committed=snapshot.committed,
            lineage=snapshot.lineage,
            calls=snapshot.calls,
            seconds=time.monotonic() - save.taken_s,
        )

    def _tidy(self, save: _Save) -> None:
        """Keep what is to be kept, copy, and say how often there will be one."""
        with self._told("the copy"):
            if self._second is not None:
                catalogue.copy_to(self._storage, save.name, self._second)
                self._prune(self._second, save.name)
        with self._told("old checkpoints"):
            self._prune(self._storage, save.name)
            catalogue.sweep(self._storage, sparing=self._under_way(save))
        said = durability.explain(self._rules.interval, self._progress, now_s=time.monotonic())
        if said.split(":")[0] != self._explained:
            self._explained = said.split(":")[0]
            self._office.explained(said)

    def _under_way(self, save: _Save) -> list[str]:
        """Return what is not there yet, but may be written by others: all that is newer."""
        parsed = (layout.parse_name(entry.name) for entry in self._storage.entries())
        newest = (save.snapshot.lineage, save.snapshot.committed)
        return [str(n) for n in parsed if n is not None and (n.lineage, n.committed) > newest]

    def _prune(self, storage: Storage, name: str) -> None:
        catalogue.prune(
            storage,
            keep=self._rules.keep,
            milestones=self._rules.milestones,
            known_sound=(name,),
        )

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn a failure of what is not the checkpoint itself into a sentence."""
        try:
            yield
        except (StorageError, DamagedError) as error:
            self._office.noted(f"{what} could not be seen to: {error}")
        except Exception as error:  # or the thread would end, and with it all saving
            why = f"{type(error).__name__}: {error}"
            self._office.noted(f"{what} could not be seen to: {why}")

    def _failed(self, save: _Save, reason: str) -> float:
        with self._changed:
            self._progress, wait_s = durability.failed(self._progress, now_s=time.monotonic())
            self._said = reason
        self._office.failed(reason, committed=save.snapshot.committed, retry_s=wait_s)
        return wait_s

    def _give_up(self, reason: str, committed: int) -> None:
        """End the job: it must not go on unprotected."""
        self._has_given_up = True
        self._office.failed(reason, committed=committed, retry_s=None)
