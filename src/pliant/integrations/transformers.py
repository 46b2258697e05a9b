"""Hugging Face: a Trainer whose loop is a session's, by one changed line.

    from pliant.integrations.transformers import ElasticTrainer as Trainer

Owns the loop over the steps in place of the Trainer's.  All else is the Trainer's own: it makes
model, data, optimizer and schedule, computes the loss, logs, evaluates, saves and calls callbacks.

    Trainer's loop                          here
    accumulated micro-batches               micro-batches of a step, spread over replicas
    accelerator.backward(loss)              step.backward(loss, weight=its tokens)
    clip, optimizer.step, scheduler.step    the commit at the end of the loop over micro-batches
    log, evaluate, save, callbacks          the tail: on every replica; files and prints by one
    state of Trainer and callbacks          extra_state: see ``transformers_state``
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, RandomSampler

import pliant
from pliant.core.errors import ConfigError
from pliant.engine.worker.bootstrap import worker_context
from pliant.integrations.plain import local_values
from pliant.integrations.slots import slots_of
from pliant.integrations.transformers_options import (
    check_arguments,
    check_callbacks,
    check_class,
)
from pliant.integrations.transformers_state import Counted, KeptTrainer
from pliant.integrations.versions import require

require("transformers", least="5.19", below="6")
require("accelerate", least="1.12", below="2")

from accelerate.data_loader import SeedableRandomSampler  # noqa: E402 - see above
from transformers import (  # noqa: E402
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState  # noqa: E402

if TYPE_CHECKING:
    from typing import Any as Mixed

    from pliant.engine.steps import Step
else:
    Mixed = object

TAIL_S = 3600.0
"""How long an evaluation or a save may take before a replica counts as hung, in seconds."""

_PLATEAU = "metric"


class Elastic(Mixed):
    """Makes a Trainer elastic: ``class ElasticSFT(Elastic, SFTTrainer)``.

    Args:
        slots: micro-batches of a step, of which each replica needs one: a multiple of
            ``gradient_accumulation_steps``, which is the default, and a divisor of the batch.
        checkpoint: where the run is kept, and how often: ``pliant.Checkpoint(...)``; separate from
            what ``save_strategy`` writes.
        session_options: further arguments of ``pliant.Session``, such as ``threads``.
        others: of the Trainer.

    Raises:
        ConfigError: an option, a callback or the class itself cannot be elastic.
    """

    session: Any = None
    """While ``train`` runs."""

    step: Step | None = None
    """Whose micro-batches are computed.  What ``compute_loss`` gives ``self.step.log`` is among
    what the Trainer logs next, as a mean."""

    control: Any
    lr_scheduler: Any
    _created_lr_scheduler: bool

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Trainer in cls.__mro__ and cls.__mro__.index(Elastic) > cls.__mro__.index(Trainer):
            raise ConfigError(
                f"{cls.__name__} names Elastic behind its Trainer, whose loop would run; write "
                f"class {cls.__name__}(Elastic, ...)"
            )

    def __init__(
        self,
        *others: Any,
        slots: int | None = None,
        checkpoint: pliant.Checkpoint | None = None,
        session_options: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        self._slots, self._checkpoint = slots, checkpoint
        self._session_options = dict(session_options or {})
        self._leads = worker_context() is None
        """Whether this process speaks for all where no session is open."""
        check_class(type(self), Elastic, Trainer)
        super().__init__(*others, **named)
        self._has_metrics = hasattr(self, "_metrics")  # of trl
        if not self._has_metrics:
            self._metrics: dict[str, dict[str, list[float]]] = {"train": {}}
        check_arguments(self.args, TrainingArguments)
        if worker_context() is not None and self.pop_callback(ProgressCallback) is not None:
            self.add_callback(PrinterCallback)  # a bar is drawn by who began it

    # --- who speaks --------------------------------------------------------------------

    def is_world_process_zero(self) -> bool:
        """Whether this replica speaks for all; ask each time anew."""
        return self._leads

    is_local_process_zero = is_world_process_zero

    def save_model(self, *args: Any, **named: Any) -> None:
        """Write the model, on the replica that speaks for all."""
        if self._leads:
            super().save_model(*args, **named)

    def log(self, logs: dict[str, float], *args: Any, **named: Any) -> None:
        """Log as the Trainer does, with the means of what ``self.step.log`` was given."""
        if not self._has_metrics and "loss" in logs:
            lists = self._metrics["train"]
            logs |= {name: sum(values) / len(values) for name, values in lists.items() if values}
            lists.clear()
        super().log(logs, *args, **named)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint of the Trainer's on one replica; all learn where the best one is."""
        if self._leads:
            super()._save_checkpoint(model, trial)
        self.store_flos()
        if self.state.best_global_step == self.state.global_step:
            folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
            self.state.best_model_checkpoint = str(folder)

    def _load_best_model(self) -> None:
        """Load it where it is whole: who wrote it may have died.

        Raises:
            ConfigError: it is not.
        """
        best = Path(self.state.best_model_checkpoint)
        if not (best / "trainer_state.json").exists():
            raise ConfigError(
                f"the best checkpoint {best} is not whole here: the replica that wrote it died, or "
                "writes to another host; put output_dir on storage that all share, and take "
                "another checkpoint in place of this one"
            )
        super()._load_best_model()

    # --- before the loop ---------------------------------------------------------------

    def _get_train_sampler(self, *args: Any) -> Any:
        """Return the sampler, whose order is Accelerate's where that is a function of the epoch."""
        sampler = super()._get_train_sampler(*args)
        if type(sampler) is RandomSampler and self.args.accelerator_config.use_seedable_sampler:
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return SeedableRandomSampler(sampler.data_source, data_seed=seed)
        return sampler

    @contextmanager
    def _unprepared(self) -> Iterator[None]:
        """Let the Trainer make its loader without dividing it among processes."""
        self.accelerator.prepare = lambda loader: loader
        try:
            yield
        finally:
            del self.accelerator.prepare

    def _num_slots(self, batch: int) -> int:
        """Return the micro-batches of a step, of ``batch`` samples in all."""
        accumulated = self.args.gradient_accumulation_steps
        option = "gradient_accumulation_steps"
        slots = slots_of(batch, self._slots, accumulated=accumulated, option=option)
        if slots > 1 and self.loss_is_scaled_for_ga is None and self._has_own_loss():
            raise ConfigError(
                f"{type(self).__name__} has its own compute_loss and a step has {slots} "
                "micro-batches: say whether it divides by num_items_in_batch, in its class: "
                "loss_is_scaled_for_ga = True, or False for a mean over the micro-batch"
            )
        return slots

    def _has_own_loss(self) -> bool:
        owners = [cls for cls in type(self).__mro__ if "compute_loss" in vars(cls)]
        return owners[0].__module__.partition(".")[0] not in ("transformers", "trl")

    def _make(self, loader: DataLoader[Any], batch: int, max_steps: int) -> pliant.Session:
        """Make optimizer, schedule and the session over them."""
        if self._created_lr_scheduler:
            self.lr_scheduler, self._created_lr_scheduler = None, False
        self.create_optimizer()
        self.model_wrapped = self.accelerator.prepare_model(self.model)
        self.create_scheduler(max_steps)
        slots = self._num_slots(batch)
        self._is_several, self._is_cut = slots > 1, slots > self.args.gradient_accumulation_steps
        plateau = isinstance(self.lr_scheduler, ReduceLROnPlateau)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = loader
        return pliant.Session(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=None if plateau else self.lr_scheduler,
            plateau={_PLATEAU: self.lr_scheduler} if plateau else None,
            dataset=loader,
            global_batch_size=batch,
            micro_batch_size=batch // slots,
            max_grad_norm=self.args.max_grad_norm or None,
            seed=self.args.seed,
            extra_state={"trainer": KeptTrainer(self, ExportableState)},
            checkpoint=self._checkpoint,
            **self._session_options,
        )

    # --- the loop ----------------------------------------------------------------------

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **named: Any
    ) -> Any:
        """Train as the Trainer does; a run goes on from its own checkpoint.

        Raises:
            ConfigError: it is to go on from a checkpoint, and has none of its own.
        """
        self._resumed = resume_from_checkpoint
        if resume_from_checkpoint and self._checkpoint is None:
            raise ConfigError(
                "an elastic Trainer goes on from its own checkpoints, and not from "
                f"resume_from_checkpoint={resume_from_checkpoint!r}: pass "
                "checkpoint=pliant.Checkpoint(...) to it, or begin anew with the weights of that "
                "directory, by from_pretrained"
            )
        return super().train(None, *args, **named)

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        if trial is not None:
            raise ConfigError("hyper-parameter search starts runs of its own; start one job each")
        check_callbacks(self.callback_handler.callbacks, TrainerCallback)
        with self._unprepared():
            loader = self.get_train_dataloader()
        epochs, per_epoch, _, num_samples, batch, in_epoch, max_steps = (
            self.set_initial_training_values(self.args, loader)
        )
        self._init_training_state(max_steps, per_epoch, epochs, None, trial)
        self._steps_in_epoch, self._ignored = in_epoch, ignore_keys_for_eval
        self._tr_loss = torch.tensor(0.0, device=self.args.device)
        self._total_loss_scalar, self._globalstep_last_logged = 0.0, 0
        self._initial_num_input_tokens_seen = self._initial_global_step = 0
        self.current_gradient_accumulation_steps = 1
        session = self._make(loader, batch, max_steps)
        if session.steps_per_epoch != per_epoch:
            raise ConfigError(
                f"the framework makes {per_epoch} steps of an epoch and a session "
                f"{session.steps_per_epoch}, as dataloader_drop_last leaves a part of a batch: set "
                "it to False, or let gradient_accumulation_steps divide the batches of an epoch"
            )
        self._start_time = time.time()
        backward = self.accelerator.backward
        try:
            with session:
                self.session = session
                return self._train_in(session, max_steps, num_samples)
        finally:
            self.session = self.step = None
            self.accelerator.backward = backward

    def _train_in(self, session: pliant.Session, max_steps: int, num_samples: int) -> Any:
        self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
        counted = Counted(self)
        for step in session.steps(max_steps):
            self._lead(session)
            if not step.index and self._resumed:
                raise ConfigError(
                    f"resume_from_checkpoint={self._resumed!r} is to go on, and this run would "
                    "begin at step 0: checkpoint= has none of its own"
                )
            if not step.index and self.args.eval_on_start:
                with session.busy(TAIL_S):
                    self._evaluate(None, self._ignored, skip_scheduler=True)
            self._one_step(session, step, counted)
            if self.control.should_training_stop and not step.is_last:
                break
        self._lead(session)
        with session.busy(TAIL_S):
            return self._finalize_training(None, num_samples, self._start_time)

    def _one_step(self, session: pliant.Session, step: Step, counted: Counted) -> None:
        args, handler = self.args, self.callback_handler
        number = step.index % session.steps_per_epoch
        if number == 0:
            self.control = handler.on_epoch_begin(args, self.state, self.control)
        self.control = handler.on_step_begin(args, self.state, self.control)
        rate = self._get_learning_rate()
        self.step = step
        self.model.train()  # also where this replica has none of the micro-batches
        counted.begin_step()
        for inputs in step:
            self._one_micro_batch(step, inputs, counted)
        self.step = None
        self._lead(session)
        counted.end_step(step.logged, step.logged_weights)
        self._add_loss(step.loss)
        self.state.global_step = step.index + 1
        done = min((number + 1) * args.gradient_accumulation_steps, self._steps_in_epoch)
        self.state.epoch = step.epoch + done / self._steps_in_epoch
        session.log(loss=step.loss)
        self.control = handler.on_optimizer_step(args, self.state, self.control)
        self.control = handler.on_step_end(args, self.state, self.control)
        self._look_after(session, step, rate)
        if self.control.should_epoch_stop:
            raise ConfigError(
                "a callback ended the epoch (should_epoch_stop), and all epochs of an elastic run "
                "are as long; let it end the training"
            )
        if step.is_last_of_epoch or step.is_last or self.control.should_training_stop:
            self.control = handler.on_epoch_end(args, self.state, self.control)
            self._look_after(session, step, rate)

    def _look_after(self, session: pliant.Session, step: Step, rate: float) -> None:
        """Log, evaluate and save where it is due."""
        with session.busy(TAIL_S):
            self._maybe_log_save_evaluate(
                self._tr_loss, step.grad_norm, self.model, None, step.epoch, self._ignored,
                self._start_time, learning_rate=rate,
            )  # fmt: skip

    def _one_micro_batch(self, step: Step, inputs: Any, counted: Counted) -> None:
        counted.begin()
        items = self._get_num_items_in_batch([inputs], self.args.device)
        weight = self._weight_of(items)
        if weight == 0:
            items = items + 1  # no token counts: its loss is 0, and not 0 / 0
        self.accelerator.backward = lambda loss, **_: step.backward(loss, weight=weight)
        before = local_values(self)
        self.training_step(self.model_wrapped, inputs, items)
        if changed := sorted(k for k, v in local_values(self).items() if before.get(k) != v):
            raise ConfigError(
                f"compute_loss of {type(self).__name__} changes self.{changed[0]}, of which each "
                "replica would have its own; log numbers by self.step.log(name=...)"
            )
        self.current_flos += float(self.floating_point_ops(inputs))
        self._track_num_input_tokens(inputs)
        step.log(weight=1.0, **counted.end())

    def _weight_of(self, items: Any) -> float | None:
        """Return how much a micro-batch counts: its tokens, or all alike, or its samples if cut.

        Raises:
            ConfigError: the loss is said to be divided by a number that is not known.
        """
        is_scaled = self.loss_is_scaled_for_ga
        if is_scaled is None:
            is_scaled = self.compute_loss_func is not None or items is not None
        if is_scaled and items is None and self._is_several:
            raise ConfigError(
                "the loss is to be divided by num_items_in_batch, and the batch has no labels to "
                "count; let compute_loss return a mean and set loss_is_scaled_for_ga = False"
            )
        if is_scaled and items is not None and (self._is_several or not items):
            return float(items)
        return None if self._is_cut else float(self.args.per_device_train_batch_size)  # each alike

    def _add_loss(self, loss: float) -> None:
        """Add a step's loss to what is logged next."""
        if self.args.logging_nan_inf_filter and not -float("inf") < loss < float("inf"):
            steps = 1 + self.state.global_step - self._globalstep_last_logged
            self._tr_loss += self._tr_loss / steps
        else:
            self._tr_loss += loss

    def _lead(self, session: pliant.Session) -> None:
        """Learn who speaks for all."""
        self._leads = session.leader
        self.state.is_world_process_zero = self.state.is_local_process_zero = self._leads

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Evaluate on every replica alike, and tell a schedule that waits for the metric."""
        metrics: dict[str, float] = super()._evaluate(
            trial, ignore_keys_for_eval, skip_scheduler=True
        )
        if isinstance(self.lr_scheduler, ReduceLROnPlateau) and not skip_scheduler:
            name = self.args.metric_for_best_model
            name = name if name.startswith("eval_") else f"eval_{name}"
            if name not in metrics:
                raise ConfigError(
                    f"metric_for_best_model={name!r} is not among what was evaluated: "
                    f"{', '.join(sorted(metrics))}"
                )
            self.session.feed(**{_PLATEAU: metrics[name]})
        return metrics


class ElasticTrainer(Elastic, Trainer):
    """A ``transformers.Trainer`` that is elastic."""
