"""Accelerate: an Accelerator whose prepared objects are a session's.

    from pliant.integrations.accelerate import ElasticAccelerator as Accelerator
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for step in accelerator.steps(epochs=3):    for epoch in range(3):
        for batch in step:                          for batch in loader: with accumulate(model):
            accelerator.backward(loss)                  as before, down to optimizer.zero_grad()
        ...                                         what is done once for each step

Owns what each call of a script means within a step.  ``optimizer.step``, ``scheduler.step`` and
``zero_grad`` are what the end of a step does anyway; anywhere else they are refused, as are
exchanges between processes that a replica is not one of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

import pliant
from pliant.core.errors import ConfigError, UsageError
from pliant.engine.steps import Step
from pliant.engine.worker.bootstrap import worker_context
from pliant.integrations.slots import batch_size_of, slots_of
from pliant.integrations.versions import require

require("accelerate", least="1.12", below="2")

from accelerate import Accelerator  # noqa: E402 - see above
from accelerate.utils import send_to_device  # noqa: E402


class Commanded:
    """An optimizer or a schedule that the end of a step moves; a script's calls only agree."""

    def __init__(self, own: Any, accelerator: ElasticAccelerator) -> None:
        """Stand for ``own``."""
        self.own = own
        self.is_called = False
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def step(self, *given: Any, **named: Any) -> None:
        """Agree that it moves at the end of this step.

        Raises:
            UsageError: no micro-batch is computed.
        """
        self._accelerator.check_within(f"{type(self.own).__name__}.step()")
        self.is_called = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Agree that gradients are forgotten at the end of this step."""


class AcceleratedStep:
    """A step of a session, for a script of Accelerate: iterate over its micro-batches."""

    def __init__(self, own: Step, accelerator: ElasticAccelerator) -> None:
        """Stand for ``own``."""
        self._own = own
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __iter__(self) -> Iterator[Any]:
        self._accelerator.enter(self._own)
        for batch in self._own:
            yield send_to_device(batch, self._accelerator.device)
            self._accelerator.check_commands()
        self._accelerator.enter(None)


class ElasticAccelerator(Accelerator):
    """An ``accelerate.Accelerator`` that is elastic.

    Args:
        slots: micro-batches of a step, of which each replica needs one: a multiple of
            ``gradient_accumulation_steps``, which is the default, and a divisor of the batch.
        checkpoint: where the run is kept, and how often: ``pliant.Checkpoint(...)``.
        session_options: further arguments of ``pliant.Session``, such as ``seed`` or ``threads``.
        others: of the Accelerator.

    Raises:
        ConfigError: it is to do what an elastic run cannot.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        checkpoint: pliant.Checkpoint | None = None,
        session_options: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        taken = ("gradient_accumulation_steps", "cpu", "mixed_precision", "project_dir")
        for name, value in others.items():
            if name not in taken and value:
                raise ConfigError(
                    f"Accelerator({name}=...) has no part in an elastic run; of its options "
                    f"{', '.join(taken)} are taken"
                )
        self._leads = worker_context() is None
        self._slots, self._checkpoint = slots, checkpoint
        self._options = dict(session_options or {})
        self._own: dict[str, Any] = {}
        self._commanded: list[Commanded] = []
        self._session: Any = None
        self._step: Step | None = None
        super().__init__(**others)
        if self.scaler is not None:
            raise ConfigError("mixed_precision='fp16' scales the loss itself; take 'bf16'")

    # --- before the loop ---------------------------------------------------------------

    def prepare(self, *given: Any, **named: Any) -> Any:
        """Take model, optimizer, training loader and schedules; return what stands for them.

        The first loader is trained on; others, for evaluation, come back as Accelerate's.

        Raises:
            ConfigError: there are two of what there is one of.
        """
        found = [self._prepare(one) for one in given]
        return found[0] if len(found) == 1 else tuple(found)

    def _prepare(self, one: Any) -> Any:
        if isinstance(one, torch.nn.Module):
            self._keep("model", one)
            return self.prepare_model(one)
        if isinstance(one, torch.optim.Optimizer | LRScheduler):
            self._keep("optimizer" if isinstance(one, torch.optim.Optimizer) else "scheduler", one)
            self._commanded.append(Commanded(one, self))
            return self._commanded[-1]
        if isinstance(one, DataLoader) and "loader" not in self._own:
            self._keep("loader", one)
            return one
        return super().prepare(one)

    def _keep(self, name: str, one: Any) -> None:
        if name in self._own:
            raise ConfigError(f"a second {name} was prepared, and a session has one; combine them")
        self._own[name] = one

    def steps(self, total: int | None = None, *, epochs: int | None = None) -> Iterator[Any]:
        """Iterate over the steps of the run, in place of the loops over epochs and the loader.

        Raises:
            ConfigError: not everything was prepared, or the batch cannot be cut.
        """
        missing = [name for name in ("model", "optimizer", "loader") if name not in self._own]
        if missing:
            raise ConfigError(f"accelerator.prepare was given no {missing[0]}")
        loader, accumulated = self._own["loader"], self.gradient_accumulation_steps
        batch, option = batch_size_of(loader) * accumulated, "gradient_accumulation_steps"
        slots = slots_of(batch, self._slots, accumulated=accumulated, option=option)
        self._weight = None if slots > accumulated else 1.0
        self._session = pliant.Session(
            model=self._own["model"],
            optimizer=self._own["optimizer"],
            scheduler=self._own.get("scheduler"),
            dataset=loader,
            global_batch_size=batch,
            micro_batch_size=batch // slots,
            checkpoint=self._checkpoint,
            **self._options,
        )
        return self._iterate(total, epochs)

    def _iterate(self, total: int | None, epochs: int | None) -> Iterator[Any]:
        with self._session as session:
            try:
                for step in session.steps(total, epochs=epochs):
                    self._leads = session.leader
                    yield AcceleratedStep(step, self)
                self._leads = session.leader
            except GeneratorExit:  # the script broke out of its loop: the job ends here
                self._leads = session.leader

    # --- within a step -----------------------------------------------------------------

    def enter(self, step: Step | None) -> None:
        """Compute the micro-batches of a step from now on; None: it is committed."""
        self._step = step
        if step is None:
            self._leads = self._session.leader

    def check_within(self, what: str) -> None:
        """Refuse what belongs to a micro-batch elsewhere.

        Raises:
            UsageError: none is computed.
        """
        if self._step is None:
            raise UsageError(
                f"{what} stands outside of the loop over the micro-batches of a step, at whose end "
                "the session does it; write it there, or leave it out (a schedule per epoch is "
                "session_options={'scheduler_every': 'epoch'})"
            )

    def check_commands(self) -> None:
        """Refuse a micro-batch without its optimizer.step() or scheduler.step().

        Raises:
            UsageError: one is missing: the script counts its micro-batches itself.
        """
        by_epoch = self._options.get("scheduler_every") == "epoch"
        for one in self._commanded:
            if not one.is_called and not (by_epoch and isinstance(one.own, LRScheduler)):
                raise UsageError(
                    f"{type(one.own).__name__}.step() was not called for a micro-batch, and it "
                    "moves at the end of each step; call it for all, and let "
                    "gradient_accumulation_steps= say how many make a step"
                )
            one.is_called = False

    def accumulate(self, *models: Any) -> Any:
        """Do nothing: a step accumulates."""
        self.check_within("accelerator.accumulate()")
        return nullcontext()

    def backward(self, loss: torch.Tensor, *, weight: float | None = None, **named: Any) -> None:
        """Run backward on the mean loss of this micro-batch; ``weight``: see ``step.backward``."""
        self.check_within("accelerator.backward()")
        step: Any = self._step
        step.backward(loss, weight=self._weight if weight is None else weight)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: int = 2) -> None:
        """Clip the gradient of this step to a norm, which ``step.grad_norm`` has afterwards.

        Raises:
            ConfigError: it is another norm.
        """
        self.check_within("accelerator.clip_grad_norm_()")
        if norm_type != 2:
            raise ConfigError(f"clip_grad_norm_ with norm_type={norm_type!r}: a session has 2")
        self._session.max_grad_norm = float(max_norm)

    def _alone(self, what: str) -> None:
        if self._step is not None:
            raise UsageError(
                f"accelerator.{what} within a step has only this replica's micro-batches; log "
                "numbers by step.log(name=value), and read step.logged behind the loop"
            )

    def gather(self, tensor: Any) -> Any:
        """Return the tensor: behind a step every replica has all."""
        self._alone("gather()")
        return super().gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return the data: behind a step every replica evaluates all."""
        self._alone("gather_for_metrics()")
        return super().gather_for_metrics(input_data, use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the tensor: behind a step every replica has the same."""
        self._alone("reduce()")
        return super().reduce(tensor, reduction, scale)

    def clip_grad_value_(self, *given: Any, **named: Any) -> None:
        """Refuse it: a session clips norms."""
        raise ConfigError("clip_grad_value_ has no counterpart in a session; call clip_grad_norm_")

    def save_state(self, *given: Any, **named: Any) -> None:
        """Refuse it: a run has its own checkpoints."""
        raise ConfigError(
            "accelerator.save_state keeps the state of one replica; pass "
            "checkpoint=pliant.Checkpoint(...) to the Accelerator, from which a run goes on"
        )

    load_state = save_state

    # --- who speaks --------------------------------------------------------------------

    @property
    def is_main_process(self) -> bool:
        """Whether this replica speaks for all; ask each time anew."""
        return self._leads

    @property
    def is_local_main_process(self) -> bool:
        """Whether this replica speaks for all; ask each time anew."""
        return self._leads

    def print(self, *given: Any, **named: Any) -> None:
        """Print on the replica that speaks for all."""
        if self._leads:
            print(*given, **named)  # noqa: T201 - it is asked to

    def save(self, *given: Any, **named: Any) -> None:
        """Save on the replica that speaks for all."""
        if self._leads:
            super().save(*given, **named)

    def save_model(self, *given: Any, **named: Any) -> None:
        """Save on the replica that speaks for all."""
        if self._leads:
            super().save_model(*given, **named)
