"""Options of a Lightning Trainer: what becomes of each, and what of a fit is refused.

Owns the table, and the looks at a Trainer that is about to fit.
"""

from __future__ import annotations

from typing import Any

from pliant.core.errors import ConfigError
from pliant.integrations.options import Table, idle, refused, taken

TRAINER: Table = dict(
    [
        *taken(
            "callbacks max_epochs min_epochs max_steps min_steps limit_val_batches "
            "limit_test_batches limit_predict_batches check_val_every_n_epoch num_sanity_val_steps "
            "log_every_n_steps enable_checkpointing enable_model_summary deterministic benchmark "
            "inference_mode detect_anomaly barebones default_root_dir enable_autolog_hparams logger"
        ),
        *taken("strategy", "`ElasticStrategy(...)`"),
        *taken("accelerator", "that of `pliant.device()`"),
        *taken("accumulate_grad_batches", "micro-batches of a step, unless `slots=` says more"),
        *taken("gradient_clip_val", "clips the norm of the global gradient"),
        *taken("val_check_interval", "in batches or parts of an epoch, where a step ends"),
        *taken("precision", "but `16-mixed`"),
        *taken("profiler", "of one replica"),
        *taken("plugins", "those of checkpoints and precision"),
        *idle("enable_progress_bar", "under `pliant run` there is no bar"),
        *idle("devices num_nodes use_distributed_sampler", "`pliant run` starts replicas"),
        *idle("model_registry", "nothing is uploaded"),
        *refused("max_time", "replicas have other clocks; set max_steps"),
        *refused("gradient_clip_algorithm", "a session clips the norm", "norm"),
        *refused("limit_train_batches overfit_batches fast_dev_run",
                 "a session trains on whole epochs; take a Subset of the dataset"),
        *idle("sync_batchnorm", "a session combines the statistics of BatchNorm itself"),
        *refused("reload_dataloaders_every_n_epochs", "a run has one dataset"),
    ]
)  # fmt: skip
"""Of ``lightning.pytorch.Trainer``."""

_HOOKS = (
    "backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping",
    "lr_scheduler_step", "on_before_zero_grad", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step",
)  # fmt: skip
"""Of modules and callbacks, for moments that no replica has by itself."""

_CALLBACKS = {
    "StochasticWeightAveraging": "its averaged weights are those of one replica",
    "WeightAveraging": "its averaged weights are those of one replica",
    "EMAWeightAveraging": "its averaged weights are those of one replica",
    "BatchSizeFinder": "the batch is the same for every number of replicas",
    "LearningRateFinder": "it trains and goes back",
    "GradientAccumulationScheduler": "a step has as many micro-batches for the whole run",
    "Timer": "replicas have other clocks",
}


def check_fit(trainer: Any) -> None:
    """Refuse what a session cannot do of a Trainer that is set up.

    Raises:
        ConfigError: there is something.
    """
    module, loop = trainer.lightning_module, trainer.fit_loop
    if not module.automatic_optimization:
        raise ConfigError(
            f"{type(module).__name__} optimises by hand (automatic_optimization = False), and a "
            "session steps the optimizer itself; write the loop over pliant.Session"
        )
    loaders = loop._combined_loader.flattened
    if len(loaders) != 1:
        raise ConfigError(
            f"the Trainer has {len(loaders)} training loaders, and a session one dataset; combine "
            "the datasets, with torch.utils.data.StackDataset or ConcatDataset"
        )
    if trainer.ckpt_path is not None or trainer._checkpoint_connector._loaded_checkpoint:
        raise ConfigError(
            "fit(ckpt_path=...) is for Lightning's own loop; a run goes on from "
            "ElasticStrategy(checkpoint=pliant.Checkpoint(...))"
        )
    _check_arguments(trainer, loaders[0])
    _check_schedules(trainer.strategy.lr_scheduler_configs)
    _check_hooks(trainer, module)


def _check_arguments(trainer: Any, loader: Any) -> None:
    interval = trainer.val_check_batch
    accumulated = trainer.accumulate_grad_batches
    is_whole = interval in (None, float("inf")) or interval >= trainer.num_training_batches
    found = {
        "limit_train_batches": trainer.num_training_batches != len(loader),
        "overfit_batches": bool(trainer.overfit_batches),
        "gradient_clip_algorithm": trainer.gradient_clip_algorithm not in (None, "norm"),
        "reload_dataloaders_every_n_epochs": bool(trainer.reload_dataloaders_every_n_epochs),
    }
    for name, is_so in found.items():
        if is_so:
            raise ConfigError(
                f"the Trainer has {name}, which an elastic run cannot do: {TRAINER[name].says}"
            )
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        raise ConfigError("val_check_interval is a time, of which replicas have others; give steps")
    if not is_whole and interval % accumulated:
        raise ConfigError(
            f"validation every {interval} batches falls within a step of {accumulated}; let "
            "val_check_interval be a multiple of accumulate_grad_batches"
        )
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise ConfigError("precision='16-mixed' scales the loss itself; take 'bf16-mixed'")


def _check_schedules(configs: list[Any]) -> None:
    plain = [one for one in configs if not one.reduce_on_plateau]
    if any(one.frequency != 1 for one in configs) or len({one.interval for one in plain}) > 1:
        raise ConfigError(
            "schedules with a frequency, or one per step beside one per epoch, are Lightning's "
            "own; let all have one interval and frequency 1, or combine them"
        )


def _check_hooks(trainer: Any, module: Any) -> None:
    for callback in trainer.callbacks:
        if why := _CALLBACKS.get(type(callback).__name__):
            raise ConfigError(f"{type(callback).__name__} cannot be in an elastic run: {why}")
    for holder in (module, *trainer.callbacks):
        for hook in _HOOKS:
            method = getattr(type(holder), hook, None)
            if method is not None and method.__module__.partition(".")[0] != "lightning":
                raise ConfigError(
                    f"{type(holder).__name__} has {hook}, and an elastic run has no such moment on "
                    "one replica: use on_train_batch_end, which comes once for each step"
                )
