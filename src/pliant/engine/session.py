"""Session: what a training script sees of pliant.

Owns the public object, when what of it may be called, and that a process has one.  Must not know
how any of its collaborators does its work.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from pliant.core.errors import ConfigError, UsageError
from pliant.engine import randomness, settings
from pliant.engine.assembly import Assembly
from pliant.engine.data import loading
from pliant.engine.data.from_loader import data_arguments, evaluation_arguments
from pliant.engine.data.loading import Samples
from pliant.engine.evaluation import Evaluation
from pliant.engine.guard import files
from pliant.engine.guard.samples import SampleWords, words_of_samples
from pliant.engine.recording import Recorder
from pliant.engine.settings import SessionSettings, UserObjects
from pliant.engine.state.durable import Durability
from pliant.engine.state.training_state import Stateful
from pliant.engine.step_log import BEFORE, Moment, StepLog
from pliant.engine.steps import Steps
from pliant.engine.update import Scheduler
from pliant.engine.worker.bootstrap import (
    end_if_device_is_over,
    launched_together,
    worker_context,
)
from pliant.engine.worker.once import path_of_job
from pliant.engine.worker.refusals_alone import meet_session, note_failure
from pliant.engine.worker.script_errors import in_one_line

MakeScheduler = Callable[[Any, int], Scheduler]
"""Makes a scheduler of the optimizer, or the list of them, and the steps of an epoch."""

BUSY_AFTER_S = 1.0
"""How long ``session.busy`` goes on until supervision hears of it: much less than any time-out."""

UNTOLD = 500
"""Calls of ``session.log`` that a replica keeps which does not lead: more than a leader that dies
may have queued."""

_live: Session | None = None
"""The one session of this process that is open."""


class Session:
    """Trains one model; alone or together with replicas that come and go.

    Used as a context manager; one at a time in a process.

    Args:
        model: on the CPU or on accelerators of one kind, unwrapped.
        optimizer: one or several over the model's parameters, stepped at one commit.
        dataset: map-style; fetched by index.  Or a DataLoader, which says its dataset and, where
            they are not given here, ``collate_fn``, ``num_workers``, ``micro_batch_size`` (its
            ``batch_size``), ``drop_last`` and the order.
        global_batch_size: samples per optimizer step over all replicas.
        micro_batch_size: samples per forward and backward; divides the global batch.
        scheduler: one or several, stepped after every update that was not skipped; or functions
            that make one of the optimizer and the number of steps in an epoch.
        scheduler_every: ``epoch`` steps them where an epoch ends instead.
        max_grad_norm: clip the global gradient to this norm.
        reduction: ``exact`` gives the same bits for every membership; ``fast`` gives speed.
        collate_fn: makes a micro-batch of a list of items.
        num_workers: loader processes.
        scaler: for float16; scales inside ``step.backward``.
        extra_state: what else belongs to the run: a ``pliant.State``, or another object with
            ``state_dict`` and ``load_state_dict``, or several by name, dicts among them.
        threads: of torch.
        drop_last: leave out the short batch at the end of an epoch.
        shuffle: give every epoch its own order; True unless given.
        sampler: what gives the indices of an epoch, as a DataLoader takes it.  Its draws become a
            function of ``seed`` and the epoch, and each counts once.
        buffers: rule by buffer name: ``mean``, ``agree``, ``sum``, ``max`` or ``local``.
        seed: of data order and random numbers; by default what ``pliant.seed`` got, else 0.
        plateau: ``ReduceLROnPlateau`` by name, each stepped by ``session.feed(name=value)``.
        on_nonfinite: what becomes of a step whose loss or gradient is nan or inf: ``warn`` tells,
            ``stop`` ends the run before it, ``skip`` counts it and changes nothing.
        warmup: takes a micro-batch and returns its loss, on every replica before it reports ready:
            what compiles at first use compiles here.  Nothing of it remains in the run.
        checkpoint: where the run is kept, and how often: ``pliant.Checkpoint(...)``.  A run goes on
            from the newest checkpoint there that verifies.

    Raises:
        ConfigError: an argument cannot work; the sentence says what to change.
        UsageError: another session of this process is still open.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        dataset: Samples | DataLoader[Any],
        global_batch_size: int,
        micro_batch_size: int | None = None,
        scheduler: Scheduler | MakeScheduler | Sequence[Scheduler | MakeScheduler] | None = None,
        scheduler_every: Literal["step", "epoch"] = "step",
        max_grad_norm: float | None = None,
        reduction: Literal["exact", "fast"] = "exact",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int | None = None,
        scaler: torch.amp.GradScaler | None = None,
        extra_state: Stateful | Mapping[str, Stateful | dict[str, Any]] | None = None,
        threads: int = 1,
        drop_last: bool | None = None,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        buffers: Mapping[str, str] | None = None,
        seed: int | None = None,
        plateau: Mapping[str, ReduceLROnPlateau] | None = None,
        on_nonfinite: Literal["warn", "stop", "skip"] = "warn",
        warmup: Callable[[Any], torch.Tensor] | None = None,
        checkpoint: Durability | None = None,
    ) -> None:
        if _live is not None:
            raise UsageError(
                "another session of this process is still open; a script has one at a time"
            )
        self._context = worker_context()
        if self._context is not None and self._context.session is not None:
            raise UsageError(
                "this is the script's second session, and a job trains one; train everything in "
                "one session, with a call of steps() for each phase"
            )
        meet_session(self._context)
        self._untold: deque[tuple[int, dict[str, float]]] = deque(maxlen=UNTOLD)
        recorder = self._recorder = Recorder.asked(self._context)
        settings.check_checkpoint(checkpoint)
        data = data_arguments(
            dataset,
            collate_fn=collate_fn,
            micro_batch_size=micro_batch_size,
            sampler=sampler,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=num_workers,
        )
        self._settings = SessionSettings(
            global_batch_size=global_batch_size,
            micro_batch_size=settings.check_micro_batch_size(data.micro_batch_size),
            seed=randomness.chosen_seed() if seed is None else seed,
            reduction=reduction,
            max_grad_norm=max_grad_norm,
            num_workers=data.num_workers,
            threads=threads,
            shuffle=data.shuffle,
            drop_last=data.drop_last,
            on_nonfinite=on_nonfinite,
            scheduler_every=scheduler_every,
        )
        self._objects = UserObjects.check(
            model=model,
            optimizers=optimizer,
            schedulers=scheduler,
            plateau=plateau,
            scaler=scaler,
            extra_state=extra_state,
        )
        if self._context is None:
            settings.check_launcher(*launched_together())
        with files.paused():
            self._parts = Assembly(
                self._objects,
                self._settings,
                self._context,
                data=data,
                buffer_rules=buffers or {},
                checkpoint=checkpoint,
                recorder=recorder,
            )
        self._training = self._parts.training
        self._state = self._parts.state
        self._collate_fn = data.collate_fn
        self._warmup = warmup
        self._looked_at: tuple[Samples, SampleWords] | None = None
        """The dataset that was evaluated last, and some of its samples in words."""
        self._evaluated = (0, 0)  # in which tail the last evaluation was, and its number there
        self._steps: Steps | None = None
        self._planned = 0  # what the calls of steps() have come to
        self._unwritten: dict[Path, int] = {}
        self._is_finished = False
        self._is_closed = False

    def __enter__(self) -> Self:
        global _live  # a process has one main loop
        if _live is not None or self._is_closed:
            raise UsageError("a session is opened once, and one at a time in a process")
        _live = self
        try:
            with files.paused():
                self._parts.open(self._warmup)
        except BaseException:
            self._release()
            raise
        if self._context is not None:
            self._context.open_session(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        is_device_over = end_if_device_is_over(self._context, rest[0] if rest else None)
        self._parts.look_for_cause(rest)
        self._note_failure(rest[0] if rest else None)
        is_stopped = kind is SystemExit and self._training.is_stopped
        try:
            if (kind is None or is_stopped) and not self._is_closed:
                self._leave_steps()
                self._finish()
        except Exception as error:
            self._note_failure(error)
            raise
        finally:  # a device that has failed says so again, and nothing new
            with suppress(RuntimeError) if is_device_over else nullcontext():
                self._release()

    def close(self) -> None:
        """End the session as leaving its ``with`` block does; a second call does nothing."""
        self.__exit__(None)

    # --- the loop -------------------------------------------------------------------

    def steps(self, total: int | None = None, *, epochs: int | None = None) -> Steps:
        """Iterate until the job has committed ``total`` steps, or has been ``epochs`` times over.

        The number counts from the job's first step, on every replica and across ``steps()``
        calls: ``steps(50)`` followed by ``steps(100)`` makes 100 steps.  A call that the job had
        finished before this replica came falls through.  ``len()`` of it is what is left when the
        call begins.  ``step.epoch`` says which pass over the data a step is of,
        ``step.is_last_of_epoch`` where one ends.

        Raises:
            SystemExit: this replica leaves, or the job was stopped; on every later call again.
            UsageError: a call before it went as far.
        """
        self._check_open()
        self._training.check_stopped()
        total = settings.total_steps(total, epochs, self.steps_per_epoch)
        self._planned = settings.further(total, self._planned, self.steps_per_epoch)
        if self._recorder is not None:
            total = self._recorder.last(total)
        self._leave_steps()
        if (record := files.here()) is not None:
            record.begin_call()
        self._steps = Steps(self._training, total, self.steps_per_epoch)
        self._parts.reporter.planned(self._parts.planned(total))  # by who may train
        return self._steps

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass over the data, or over a sampler's draws; the last may be short."""
        return self._parts.schedule.steps_per_epoch

    @property
    def max_grad_norm(self) -> float | None:
        """To which norm the gradient is clipped; None: it is not.

        It may be set inside the loop over a step, for this step and all that follow: all
        micro-batches that set it must agree.  Set elsewhere it has to be the same on all replicas.
        """
        return self._parts.update.max_grad_norm

    @max_grad_norm.setter
    def max_grad_norm(self, norm: float | None) -> None:
        settings.check_max_grad_norm(norm)
        if not self._training.slots.set_clip(norm):
            self._parts.update.max_grad_norm = norm

    def log(self, **values: Any) -> None:
        """Report numbers of the step whose tail is running; every replica may call it."""
        self._check_open()
        numbers = {name: float(value) for name, value in values.items()}
        self._untold.append((self.committed - 1, numbers))
        self._tell_logged()
        if self._training.leads and self._recorder is not None:
            self._recorder.logged(self.committed - 1, numbers)

    def feed(self, **values: float) -> None:
        """Step the schedulers of ``plateau`` that have these names, with these values.

        In a tail, on every replica alike: ``session.feed(val_loss=session.evaluate(...))``.
        """
        self._check_open()
        if self._training.done is None:
            raise UsageError("session.feed belongs in the tail of a step: after its inner loop")
        self._training.feed(values)

    def evaluate(
        self,
        dataset: Samples | DataLoader[Any],
        fn: Callable[[Any], Any],
        *,
        micro_batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> float | dict[str, float]:
        """Evaluate the model on a dataset, a part of it on each replica; the same bits on all.

        In a tail, on every replica.  The model is in evaluation mode meanwhile, no gradient is
        recorded, and generators and buffers are afterwards as they were before.

        Args:
            dataset: map-style; or a DataLoader, of which dataset, ``collate_fn`` and ``batch_size``
                count: the samples are fetched in this process, each once.
            fn: takes a micro-batch; returns its mean as a number or tensor of one element, or a
                dict of such by name; or a pair of that and its weight, which is the number of
                samples otherwise.
            micro_batch_size: samples of one call of ``fn``; the session's unless given.
            collate_fn: makes a micro-batch of a list of items; the session's unless given.

        Returns:
            The weighted mean over the dataset: a float, or a dict of floats.

        Raises:
            UsageError: called outside of a tail, or ``fn`` returned something else.
            ConfigError: the dataset is empty or not map-style.
        """
        self._check_open()
        done = self._training.done
        if done is None:
            raise UsageError(
                "session.evaluate belongs in the tail of a step, after its inner loop; for a last "
                "evaluation ask there for step.is_last"
            )
        if isinstance(dataset, DataLoader):
            said = evaluation_arguments(dataset)
            collate_fn = collate_fn or said.collate_fn
            micro_batch_size = micro_batch_size or said.micro_batch_size
            samples: Samples = said.dataset
        else:
            samples = dataset
        size = loading.check_dataset(samples)
        if micro_batch_size is None:
            micro_batch_size = self._settings.micro_batch_size
        if size < 1 or micro_batch_size < 1:
            raise ConfigError(
                f"cannot evaluate {size} samples in micro-batches of {micro_batch_size}"
            )
        step, count = self._evaluated
        self._evaluated = (self.committed, count + 1 if step == self.committed else 0)
        work = Evaluation(
            dataset=samples,
            size=size,
            fn=fn,
            collate_fn=collate_fn or self._collate_fn,
            micro_batch_size=micro_batch_size,
            coordinates=(self._settings.seed, *self._evaluated),
            replica=self.replica,
            words=lambda: self._words_of(samples),
        )
        team = self._training.team_of_tail(done.decision.generation)
        return work.run(self._objects.model, self._parts.buffers, team)

    @property
    def leader(self) -> bool:
        """Whether this replica speaks for all: true on exactly one replica in each tail.

        If that one dies or is cut off before the others know that the step is committed, one of
        them leads its tail, too.

        Raises:
            UsageError: ``steps()`` was not called yet.
        """
        settings.check_leader(has_begun=self._planned > 0)
        return self._training.ask_leader()

    @property
    def committed(self) -> int:
        """Number of steps the job has committed, as far as this replica knows."""
        return self._training.committed

    @property
    def replica(self) -> str:
        """Name of this replica; ``alone`` without an agent."""
        return self._training.membership.member.replica

    @property
    def leaving(self) -> bool:
        """Whether this replica leaves the job, or that is stopped before the script is done.

        True in the ``finally`` blocks on the way out; what stands behind the loop does not run.
        """
        return self._training.is_leaving

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model's weights, for ``torch.load(path, weights_only=True)``.

        Every replica may call it; the leader writes, and the file is whole or the old one.  After
        the last step it is written even if the leader dies: another does it at the end.  Of a
        model that is sharded or in stages every worker has to call it.
        """
        self._check_open()
        path = path_of_job(Path(path))
        settings.check_saving(
            is_elastic=self._context is not None, has_begun=self._steps is not None
        )
        if self._parts.is_to_write(leads=self._training.leads):
            self._parts.weights.write(path)
        else:  # those of earlier steps have been written, or are of no use any more
            now = self.committed
            unwritten = {one: count for one, count in self._unwritten.items() if count == now}
            self._unwritten = unwritten | {path: now}

    def open_log(self, path: str | os.PathLike[str]) -> StepLog:
        """Return a text file for tails: what is written in the tail of a step is there once.

        Call it on every replica, and write on every replica alike, without ``session.leader``:
        one of them appends the rows when the tail has ended, so that they survive the death of any
        replica.  A run that goes on from a checkpoint first cuts off the rows of the steps that it
        does again; a run that begins at step 0 begins the file anew.  Before the first step a
        header can be written, and between two calls of ``steps()`` a row of what was reached.
        Where the rows end is in ``.NAME.steps`` beside the file.  Replicas on several hosts write
        to one file only if it lies on storage that they share.

        Args:
            path: of the file, in a directory that is there; taken from the working directory.

        Raises:
            ConfigError: the file was written by something else, or cannot be written.
        """
        self._check_open()
        return self._parts.logs.open(path_of_job(Path(path)), self._moment)

    def state_digest(self) -> str:
        """Return a hash of the whole state: equal if and only if two runs are, bit for bit."""
        return self._parts.digest()

    @contextmanager
    def busy(self, max_s: float) -> Iterator[None]:
        """Tell supervision that this replica is at work for up to ``max_s`` seconds without a step.

        What takes less than a second is not told, and leaves no record.
        """
        self._check_open()
        watch, tell = self._parts.kernels, self._training.membership.tell_busy
        told: list[float] = []

        def tell_late() -> None:
            told.append(max_s)
            tell(max_s)

        late = threading.Timer(BUSY_AFTER_S, tell_late)
        late.daemon = True
        late.start()
        if watch is not None:
            watch.busy(max_s)
        try:
            yield
        finally:
            late.cancel()
            late.join()  # it tells now, or never
            if told:
                tell(0.0)
            if watch is not None:
                watch.busy(0.0)

    # --- helpers --------------------------------------------------------------------

    def _moment(self) -> Moment | None:
        """Return what a row of a log belongs to; None: to a phase that was over before."""
        if self._training.done is None and not self._planned:
            return BEFORE
        if self._steps is not None and self._steps.is_computing:
            raise UsageError(
                "a log of session.open_log is written in the tail of a step, behind the loop over "
                "its micro-batches, of which each replica has its own"
            )
        if not self.committed:
            return None
        return Moment(self.committed - 1, part=0 if self._training.done is not None else 1)

    def _tell_logged(self) -> None:
        """Report what was logged, if this replica leads; what a dead leader may have told, too."""
        while self._training.leads and self._untold:
            self._parts.reporter.logged(*self._untold.popleft())

    def _finish(self) -> None:
        """Wait until nobody needs this replica; then do what a dead leader has left undone."""
        self._training.land_logs()
        self._training.finish()
        self._is_finished = True
        self._training.land_logs()
        self._tell_logged()
        if self._context is None:
            note_failure("")
        undone = [target for target, count in self._unwritten.items() if count == self.committed]
        if undone and self._parts.is_to_write(leads=self._training.membership.leads):
            for target in undone:
                self._parts.weights.write(target)

    def _words_of(self, dataset: Samples) -> SampleWords:
        """Return some samples of a dataset in words; looked at once while it is evaluated."""
        if self._looked_at is None or self._looked_at[0] is not dataset:
            self._looked_at = dataset, words_of_samples(dataset, self._settings.seed)
        return self._looked_at[1]

    def _note_failure(self, error: object) -> None:
        """Tell what is left undone, and keep the failure in mind, which the script may catch."""
        if not isinstance(error, Exception):
            return
        if self._context is None:
            note_failure(in_one_line(error))
            return
        self._context.failure = error
        if self._training.is_alone_in_tail:
            self._parts.reporter.noted(
                f"{self.replica} failed in the tail of step {self.committed - 1}, which it led: "
                "what the leader alone was to write there may be missing",
                lasting=True,
            )
            self._training.guards.on_lead(None)  # told by itself

    def _leave_steps(self) -> None:
        if self._steps is not None:
            steps, self._steps = self._steps, None
            steps.leave()

    def _check_open(self) -> None:
        if _live is not self:
            raise UsageError("the session is used outside of its `with` block")

    def _release(self) -> None:
        """Give everything back; the second call does nothing."""
        global _live  # see __enter__
        if self._is_closed:
            return
        self._is_closed = True
        if _live is self:
            _live = None
        is_over = self._is_finished or self._context is None
        self._parts.close(is_leaving=self.leaving, is_over=is_over)
