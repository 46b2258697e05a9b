"""Steps: the two loops of a training script.

Owns the iterators that ``session.steps(n)`` and each step are, and what leaving them early means.
Must not know how a step is computed or committed.

    for step in session.steps(1000):      ends when the job has committed 1000 steps, or stops
        for batch in step:                ends when the step is committed
            step.backward(loss)
        ...                               the tail
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

import torch

from pliant.core.errors import UsageError
from pliant.engine.sharding.stages import run_schedule, shapes_of
from pliant.engine.training import Training


class Step:
    """One step: an iterable of the micro-batches that this replica computes of it."""

    def __init__(
        self, training: Training, index: int, *, steps_per_epoch: int, is_last: bool
    ) -> None:
        self._training = training
        self._loss: float | None = None
        self._logged: Mapping[str, tuple[float, float]] = {}
        self.is_iterated = False
        """Whether a loop over this step has begun."""
        self.index = index
        """Number of this step, from 0; the same on every replica."""
        self.is_last = is_last
        """Whether this call of ``steps()`` ends with it, unless it is stopped before."""
        self.epoch = index // steps_per_epoch
        """Number of the pass over the data that this step belongs to, from 0."""
        self.is_last_of_epoch = (index + 1) % steps_per_epoch == 0
        """Whether that pass ends with it."""

    def __iter__(self) -> Iterator[Any]:
        if self.is_iterated:
            raise UsageError(f"step {self.index} was iterated twice; its micro-batches come once")
        self.is_iterated = True
        return map(itemgetter(0), iter(self._next_batch, None))

    @property
    def is_committed(self) -> bool:
        """Whether the loop over this step has ended."""
        return self._loss is not None

    @property
    def loss(self) -> float:
        """Mean loss over the global batch, weighted; known once the step is committed."""
        if self._loss is None:
            raise UsageError("step.loss is known after the loop over the step, not inside it")
        return self._loss

    @property
    def grad_norm(self) -> float:
        """Norm of the global gradient before clipping; ask in the tail of the step."""
        if self._loss is None or self._training.done is None:
            raise UsageError("step.grad_norm is known in the tail of its step, not elsewhere")
        return self._training.update.grad_norm

    def backward(self, loss: torch.Tensor, *, weight: float | None = None) -> None:
        """Run backward on the mean loss of this micro-batch; once per micro-batch.

        Args:
            loss: the mean over the micro-batch, of whatever ``weight`` counts.
            weight: how much this micro-batch counts; its number of samples unless given, for
                instance its number of tokens.  0 leaves it out.

        Raises:
            UsageError: called twice, outside of the loop, or with an impossible weight; or the
                loss goes back to another micro-batch, or to what differs elsewhere.
        """
        self._training.backward(loss, weight)

    @property
    def slot(self) -> int:
        """Which micro-batch of the step is being computed, from 0; the same in every history.

        Raises:
            UsageError: outside of the loop over the step.
        """
        slot = self._training.slots.open_slot
        if slot < 0 or self._loss is not None:
            raise UsageError("step.slot is known inside the loop over a step, not outside")
        return slot

    def log(self, *, weight: float | None = None, **values: Any) -> None:
        """Log numbers of this micro-batch: ``step.log(accuracy=hits / size)``.

        When the step is committed, ``step.logged`` has the mean of each over the whole step, with
        the same bits on every replica and for every number of them.

        Args:
            weight: how much this micro-batch counts; its number of samples unless given.
            values: numbers, or tensors of one element; each name once per micro-batch.

        Raises:
            UsageError: outside of the loop, no number, a name twice, or an impossible weight.
        """
        self._training.slots.log(values, weight)

    @property
    def logged(self) -> dict[str, float]:
        """Weighted means of what ``step.log`` was given, by name; once the step is committed."""
        return {name: mean for name, (mean, _) in self._known_logged().items()}

    @property
    def logged_weights(self) -> dict[str, float]:
        """Total weight of each of these means, for a mean over several steps."""
        return {name: weight for name, (_, weight) in self._known_logged().items()}

    def _known_logged(self) -> Mapping[str, tuple[float, float]]:
        if self._loss is None:
            raise UsageError("step.logged is known after the loop over the step, not inside it")
        return self._logged

    def pipeline(
        self, schedule: Any, *args: Any, weight: float | None = None, **options: Any
    ) -> None:
        """Run a schedule of ``torch.distributed.pipelining``; once per micro-batch.

        In place of ``backward``, on every worker of the replica: the schedule runs the forward and
        the backward of this micro-batch, in chunks.  The loss is the mean of those of the chunks.

        Args:
            schedule: made with a ``loss_fn``, over ``pliant.mesh(pp=...)``; the same in all steps.
            args: as ``schedule.step`` takes them, with ``options`` such as ``target=``.
            weight: how much this micro-batch counts; its number of samples unless given.

        Raises:
            UsageError: called twice, outside of the loop, with tensors of other shapes than
                before, or nobody has a loss.
        """
        self._training.slots.pipeline(
            lambda: run_schedule(schedule, args, options), weight, shapes_of(args)
        )

    def stop(self) -> None:
        """Let the job end: all replicas stop after the same step.

        Called inside the loop that is this step; in its tail it is the one after it.
        """
        self._training.wants_stop = True

    def _next_batch(self) -> tuple[Any] | None:
        batch = self._training.next_batch(self.index)
        if batch is None and self._loss is None:
            done = self._training.done
            self._loss = float("nan") if done is None else done.loss
            self._logged = {} if done is None else done.logged
        return batch


class Steps:
    """The iterator over the steps of one ``steps()`` call."""

    def __init__(self, training: Training, total: int, steps_per_epoch: int) -> None:
        self._training = training
        self._total = total
        self._steps_per_epoch = steps_per_epoch
        self._step: Step | None = None
        self._is_over = not training.arrive(total)
        self._num_to_come = 0 if self._is_over else max(0, total - training.committed)
        if self._is_over:
            training.guards.on_head(None)

    def __iter__(self) -> Iterator[Step]:
        return self

    def __len__(self) -> int:
        """Return how many steps this replica had before it when the call began.

        What was committed before, by others or in an earlier life of the run, is not among them.
        """
        return self._num_to_come

    def __next__(self) -> Step:
        self._check_step()
        if self._is_over:
            raise StopIteration
        index = self._training.next_step(self._total)
        if index is None:
            self._is_over = True
            raise StopIteration
        self._step = Step(
            self._training,
            index,
            steps_per_epoch=self._steps_per_epoch,
            is_last=index == self._total - 1,
        )
        return self._step

    @property
    def is_computing(self) -> bool:
        """Whether the loop over a step is running: between its beginning and its commit."""
        return self._step is not None and not self._step.is_committed

    def leave(self) -> None:
        """Say that nobody will ask for another step; before its end that stops the job.

        Raises:
            UsageError: the script left the loop over a step before its end.
        """
        self._check_step()
        if not self._is_over:
            self._is_over = True
            self._training.leave_loop()

    def _check_step(self) -> None:
        step, self._step = self._step, None
        if step is not None and not step.is_iterated:
            raise UsageError(
                f"step {step.index} was passed over: nobody asked for its micro-batches; write "
                "`for batch in step:` inside the loop over the steps, with step.backward(loss) in "
                "it"
            )
        if step is not None and not step.is_committed:
            raise UsageError(
                f"the loop over step {step.index} was left before its end; a step ends when it is "
                "committed (to end the job call step.stop())"
            )
