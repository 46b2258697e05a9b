"""Lightning: a Trainer whose fit loop is a session's, by a strategy.

    from pliant.integrations.lightning import ElasticStrategy
    trainer = Trainer(strategy=ElasticStrategy(), ...)

Owns the loop over steps in place of Lightning's loops over epochs and batches.  Hooks, callbacks,
loggers, validation and checkpoints are Lightning's own.

    Lightning                               here
    accumulated batches                     micro-batches of a step, spread over replicas
    training_step, for each batch           for each micro-batch, on the replica that has it
    self.log in training_step               step.log: the mean over the step, the same everywhere
    on_train_batch_start, ..._end           once per step, on every replica, without a batch
    validation, epoch hooks, checkpoints    the tail: on every replica; files and logs by one
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

import pliant
from pliant.core.errors import ConfigError
from pliant.engine.worker.bootstrap import worker_context
from pliant.integrations.lightning_options import check_fit
from pliant.integrations.plain import local_values
from pliant.integrations.slots import batch_size_of, slots_of
from pliant.integrations.versions import require

require("lightning", least="2.6", below="2.7")

from lightning.fabric.utilities.rank_zero import rank_zero_only  # noqa: E402 - see above
from lightning.pytorch.loggers.csv_logs import CSVLogger, ExperimentWriter  # noqa: E402
from lightning.pytorch.loggers.utilities import _log_hyperparams  # noqa: E402
from lightning.pytorch.loops.fit_loop import _FitLoop  # noqa: E402
from lightning.pytorch.loops.optimization.automatic import ClosureResult  # noqa: E402
from lightning.pytorch.strategies import SingleDeviceStrategy  # noqa: E402
from lightning.pytorch.trainer import call  # noqa: E402

from pliant.integrations.lightning_state import (  # noqa: E402
    KeptFit,
    SharedResults,
)

if TYPE_CHECKING:
    from pliant.engine.steps import Step

TAIL_S = 3600.0
"""How long a validation or a save may take before a replica counts as hung, in seconds."""


class ElasticStrategy(SingleDeviceStrategy):
    """Lets ``Trainer.fit`` run in a session, whose replicas come and go.

    Args:
        slots: micro-batches of a step, of which each replica needs one: a multiple of
            ``accumulate_grad_batches``, which is the default, and a divisor of the batch.
        checkpoint: where the run is kept, and how often: ``pliant.Checkpoint(...)``; separate from
            what ``ModelCheckpoint`` writes.
        session_options: further arguments of ``pliant.Session``, such as ``seed`` or ``threads``.
    """

    strategy_name = "pliant"

    def __init__(
        self,
        *,
        slots: int | None = None,
        checkpoint: pliant.Checkpoint | None = None,
        session_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(device=pliant.device())
        self.slots, self.checkpoint = slots, checkpoint
        self.session_options = dict(session_options or {})
        self._leads = worker_context() is None
        self.session: Any = None
        """While ``fit`` trains."""

    @property
    def is_global_zero(self) -> bool:
        """Whether this replica speaks for all; ask each time anew."""
        return self._leads

    def lead(self, leads: bool) -> None:
        """Speak for all from now on, or no more."""
        self._leads = leads
        rank_zero_only.rank = int(not leads)

    def setup_environment(self) -> None:
        """Set up as for one device; nobody makes files of a logger before it is known who may."""
        super().setup_environment()
        self.lead(self._leads)

    def setup(self, trainer: Any) -> None:
        """Set up as for one device, and put the session's loop into the trainer."""
        super().setup(trainer)
        trainer.fit_loop.__class__ = ElasticFitLoop


class ElasticFitLoop(_FitLoop):
    """Lightning's fit loop over the steps of a session."""

    def run(self) -> None:
        """Train until the trainer's limits, or until it is told to stop."""
        self.setup_data()
        if self.skip:
            return
        self.reset()
        trainer, strategy = self.trainer, self.trainer.strategy
        check_fit(trainer)
        self._total = self._total_steps()
        session = self._make_session(strategy)
        results = self.epoch_loop._results
        results.__class__ = SharedResults
        results.step = None
        with session:
            strategy.session = self._session = session
            try:
                self.on_run_start()
                self._train()
                self._lead(is_first=False)
                with session.busy(TAIL_S):
                    self.on_run_end()
            finally:
                strategy.session = None

    def _make_session(self, strategy: ElasticStrategy) -> pliant.Session:
        trainer = self.trainer
        loader = self._combined_loader.flattened[0]
        accumulated = trainer.accumulate_grad_batches
        batch, option = batch_size_of(loader) * accumulated, "accumulate_grad_batches"
        slots = slots_of(batch, strategy.slots, accumulated=accumulated, option=option)
        self._is_cut = slots > accumulated
        plain = [one for one in strategy.lr_scheduler_configs if not one.reduce_on_plateau]
        session = pliant.Session(
            model=trainer.lightning_module,
            optimizer=trainer.optimizers,
            scheduler=[one.scheduler for one in plain] or None,
            scheduler_every=plain[0].interval if plain else "step",
            plateau={name: one.scheduler for name, one in self._plateaus()} or None,
            dataset=loader,
            global_batch_size=batch,
            micro_batch_size=batch // slots,
            max_grad_norm=trainer.gradient_clip_val or None,
            extra_state={"lightning": KeptFit(self)},
            checkpoint=strategy.checkpoint,
            **strategy.session_options,
        )
        if session.steps_per_epoch != math.ceil(len(loader) / accumulated):
            raise ConfigError(
                f"Lightning makes {math.ceil(len(loader) / accumulated)} steps of an epoch and a "
                f"session {session.steps_per_epoch}, as drop_last leaves a part of a batch: leave "
                "it out, or let accumulate_grad_batches divide the batches of an epoch"
            )
        self._steps_per_epoch = session.steps_per_epoch
        return session

    def _plateaus(self) -> list[tuple[str, Any]]:
        configs = self.trainer.strategy.lr_scheduler_configs
        return [(f"plateau_{n}", one) for n, one in enumerate(configs) if one.reduce_on_plateau]

    def _total_steps(self) -> int:
        """Return the steps until the limit that comes first."""
        per_epoch = math.ceil(self.max_batches / self.trainer.accumulate_grad_batches)
        limits: list[int] = [self.max_steps] if self.max_steps >= 0 else []
        limits += [self.max_epochs * per_epoch] if self.max_epochs >= 0 else []
        if not limits:
            raise ConfigError("the Trainer has no end; set max_steps or max_epochs")
        return min(limits)

    # --- the loop ----------------------------------------------------------------------

    def _train(self) -> None:
        session = self._session
        self.epoch_loop._update_learning_rates = self._feed
        for step in session.steps(self._total):
            self._lead(is_first=step.index == 0)
            if step.index % self._steps_per_epoch == 0:
                self.epoch_loop.reset()
                self.on_advance_start()
            self._one_step(step)
            with session.busy(TAIL_S):
                is_over = self._tail(step)
            if is_over and not step.is_last:
                break

    def _one_step(self, step: Step) -> None:
        trainer, results = self.trainer, self.epoch_loop._results
        first = step.index % self._steps_per_epoch * trainer.accumulate_grad_batches
        connector = trainer._logger_connector
        connector._first_loop_iter = first == 0
        self._count(first, step)
        self._hook("on_train_batch_start", None, first)
        results.step = step
        try:
            for batch in step:
                self._one_micro_batch(step, batch, first)
        finally:
            results.step = None
        connector._current_fx = "training_step"
        results.batch = results.batch_size = None

    def _one_micro_batch(self, step: Step, batch: Any, first: int) -> None:
        trainer, module = self.trainer, self.trainer.lightning_module
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)
        results = self.epoch_loop._results
        results.batch, results.batch_size = batch, None
        given = self.epoch_loop._build_kwargs(OrderedDict(), batch, first)
        before = local_values(module)
        said = call._call_strategy_hook(trainer, "training_step", *given.values())
        if changed := sorted(k for k, v in local_values(module).items() if before.get(k) != v):
            raise ConfigError(
                f"training_step of {type(module).__name__} changes self.{changed[0]}, of which "
                "each replica would have its own; log numbers by self.log, and keep others where "
                "a step or an epoch ends"
            )
        loss = ClosureResult.from_training_step_output(said).closure_loss
        if loss is None:
            raise ConfigError(
                "training_step returned None, to skip a batch; return a loss of 0 times the loss"
            )
        step.backward(loss, weight=None if self._is_cut else 1.0)

    def _tail(self, step: Step) -> bool:
        """Do what follows a step; return whether training ends here."""
        trainer, loop = self.trainer, self.epoch_loop
        self._lead(is_first=False)
        self._session.log(loss=step.loss)
        loop._results.add(step.logged, step.logged_weights)
        progress = loop.automatic_optimization.optim_progress.optimizer.step.total
        progress.ready = progress.completed = step.index + 1
        first = step.index % self._steps_per_epoch * trainer.accumulate_grad_batches
        done = int(min(first + trainer.accumulate_grad_batches, self.max_batches))
        self._count(done, step)
        self._hook("on_train_batch_end", {"loss": torch.tensor(step.loss)}, None, done - 1)
        trainer._logger_connector.on_batch_end()
        trainer._logger_connector.update_train_step_metrics()
        loop.on_advance_end(self._data_fetcher)
        is_stopped = trainer.should_stop and self._can_stop_early
        if step.is_last_of_epoch or step.is_last or is_stopped:
            self.on_advance_end()
        return bool(trainer.should_stop and self._can_stop_early)

    def _count(self, batches: int, step: Step) -> None:
        """Set the progress to so many batches of the epoch."""
        progress = self.epoch_loop.batch_progress
        before = step.epoch * int(self.max_batches)
        for part, count in ((progress.current, batches), (progress.total, before + batches)):
            part.ready = part.started = part.processed = part.completed = count
        progress.is_last_batch = batches == self.max_batches

    def _hook(self, name: str, *given: Any) -> None:
        call._call_callback_hooks(self.trainer, name, *given)
        if call._call_lightning_module_hook(self.trainer, name, *given) == -1:
            raise ConfigError(
                f"{name} returned -1, to skip the rest of an epoch, and all epochs of an elastic "
                "run are as long"
            )

    def _feed(self, interval: str, update_plateau_schedulers: bool) -> None:
        """Step schedules that wait for a metric; a session steps the others."""
        for name, config in self._plateaus() if update_plateau_schedulers else ():
            if config.interval != interval:
                continue
            value = self.trainer.callback_metrics.get(config.monitor)
            if value is None:
                raise ConfigError(
                    f"ReduceLROnPlateau waits for {config.monitor!r}, which was not logged; log "
                    "it before the epoch ends"
                )
            self._session.feed(**{name: float(value)})

    def _lead(self, *, is_first: bool) -> None:
        """Learn who speaks for all; who begins to goes on with what the one before has written."""
        trainer = self.trainer
        trainer.strategy.lead(self._session.leader)
        if not trainer.strategy.is_global_zero or worker_context() is None:
            return
        if is_first and trainer.enable_autolog_hparams:
            _log_hyperparams(trainer)  # before the first step nobody spoke for all
        for logger in () if is_first else trainer.loggers:
            if isinstance(logger, CSVLogger) and logger._experiment is None:
                logger._experiment = _writer_that_goes_on(logger.log_dir)


def _writer_that_goes_on(directory: str) -> Any:
    """Return what writes a CSV log, without removing the rows that are there."""
    check = ExperimentWriter._check_log_dir_exists
    ExperimentWriter._check_log_dir_exists = lambda writer: None
    try:
        writer = ExperimentWriter(log_dir=directory)
    finally:
        ExperimentWriter._check_log_dir_exists = check
    if writer._fs.isfile(writer.metrics_file_path):
        with writer._fs.open(writer.metrics_file_path, "r", newline="") as file:
            writer.metrics_keys = file.readline().strip().split(",")
    return writer
