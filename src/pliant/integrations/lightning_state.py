"""State of a Lightning Trainer beside model, optimizer and schedules, as replicas share it.

Owns two things.  ``KeptFit``: progress, logged metrics, callbacks and the script's own values of
the module, for replicas that join and for checkpoints.  ``SharedResults``: where ``self.log`` goes;
within a step through ``step.log``, so that each replica adds the mean over the step, and not what
its own micro-batches have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.utilities.data import extract_batch_size

from pliant.core.errors import ConfigError
from pliant.integrations.plain import is_of, plain_entries

_WRITTEN = (
    "best_model_path", "best_model_score", "current_score", "best_k_models", "dirpath",
    "kth_best_model_path", "kth_value", "last_model_path", "_last_global_step_saved",
    "_last_checkpoint_saved",
)  # fmt: skip
"""Of a ``ModelCheckpoint``: all that it has written, and where."""

_FLAGS = ("prog_bar", "logger", "on_step", "on_epoch")

_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")


class SharedResults(_ResultCollection):
    """What ``self.log`` is given while a Trainer trains."""

    step: Any
    """Whose micro-batches are computed; None: a hook logs, on every replica alike."""

    def log(self, fx: str, name: str, value: Any, **options: Any) -> None:
        """Take a value of ``self.log``, of a micro-batch through ``step.log``.

        Raises:
            ConfigError: it is no mean, which is all that is known of a whole step.
        """
        if self.step is None:
            super().log(fx, name, value, **options)
            return
        reduce_fx = options.get("reduce_fx", torch.mean)
        if not torch.is_tensor(value) or reduce_fx not in (torch.mean, "mean", "avg"):
            what = f"reduce_fx={reduce_fx!r}" if torch.is_tensor(value) else type(value).__name__
            raise ConfigError(
                f"training_step logs {name!r} as {what}, and what replicas log is put together as "
                "a mean: log the value of each batch with reduce_fx='mean'"
            )
        flags = [bool(options.get(flag, flag in ("logger", "on_epoch"))) for flag in _FLAGS]
        weight = options.get("batch_size")
        if weight is None:
            is_mean = options.get("on_epoch", True) and self.batch is not None
            weight = extract_batch_size(self.batch) if is_mean else 1
        self.step.log(weight=float(weight), **{json.dumps([fx, name, *flags]): value.detach()})

    def add(self, means: Mapping[str, float], weights: Mapping[str, float]) -> None:
        """Add what all micro-batches of a step have logged."""
        for key, mean in means.items():
            fx, name, *flags = json.loads(key)
            super().log(
                fx, name, torch.tensor(mean), batch_size=round(weights[key]),
                **dict(zip(_FLAGS, flags, strict=True)),
            )  # fmt: skip


class KeptFit:
    """What a Trainer remembers between steps."""

    def __init__(self, loop: Any) -> None:
        """Of the Trainer of this fit loop."""
        self._loop = loop
        self._trainer = loop.trainer
        for callback in self._trainer.callbacks:
            if isinstance(callback, ModelCheckpoint):
                callback.file_exists = _knows(callback)

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        trainer, connector = self._trainer, self._trainer._logger_connector
        results = self._loop.epoch_loop._results
        return {
            "progress": {name: one.state_dict() for name, one in self._progress().items()},
            "stepped": self._loop.epoch_loop._batches_that_stepped,
            "stop": bool(trainer.should_stop),
            "results": [_row(key, one) for key, one in sorted(results.items()) if _is_open(one)],
            "metrics": {name: dict(getattr(connector, name)) for name in _METRICS},
            "callbacks": [_values_of(one) for one in trainer.callbacks],
            "module": _public(trainer.lightning_module),
            "versions": [getattr(one, "_version", None) for one in trainer.loggers],
        }

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Take what another replica's Trainer remembers."""
        trainer, connector = self._trainer, self._trainer._logger_connector
        for name, progress in self._progress().items():
            progress.load_state_dict(kept["progress"][name])
        self._loop.epoch_loop._batches_that_stepped = kept["stepped"]
        trainer.should_stop = kept["stop"]
        results = self._loop.epoch_loop._results
        results.reset()
        for row in kept["results"]:
            _take_row(results, row)
        for name, values in kept["metrics"].items():
            setattr(connector, name, dict(values))
        for callback, values in zip(trainer.callbacks, kept["callbacks"], strict=True):
            _set_values(callback, values)
        vars(trainer.lightning_module).update(kept["module"])
        for logger, version in zip(trainer.loggers, kept["versions"], strict=True):
            if version is not None:
                logger._version = version

    def _progress(self) -> dict[str, Any]:
        epoch_loop = self._loop.epoch_loop
        return {
            "epoch": self._loop.epoch_progress,
            "batch": epoch_loop.batch_progress,
            "scheduler": epoch_loop.scheduler_progress,
            "optimizer": epoch_loop.automatic_optimization.optim_progress,
            "validation": epoch_loop.val_loop.batch_progress,
        }


def _knows(callback: Any) -> Any:
    """Return a ``file_exists`` that does not depend on who looks when."""
    return lambda path, trainer: path in (*callback.best_k_models, callback.last_model_path)


def _values_of(callback: Any) -> dict[str, Any]:
    if isinstance(callback, ModelCheckpoint):
        return {"written": {name: vars(callback).get(name) for name in _WRITTEN}}
    own = {} if is_of(callback, "lightning", "pytorch_lightning") else plain_entries(vars(callback))
    return {"state": callback.state_dict(), "own": own}


def _set_values(callback: Any, values: dict[str, Any]) -> None:
    vars(callback).update(values.get("written", {}))
    vars(callback).update(values.get("own", {}))
    if values.get("state"):
        callback.load_state_dict(values["state"])


def _public(module: Any) -> dict[str, Any]:
    own = plain_entries(vars(module))
    return {n: v for n, v in own.items() if not n.startswith("_") and n != "training"}


def _is_open(metric: Any) -> bool:
    return not metric.has_reset and metric.is_tensor


def _row(key: str, metric: Any) -> list[Any]:
    meta = metric.meta
    flags = [getattr(meta, flag) for flag in _FLAGS]
    weight = getattr(metric, "cumulated_batch_size", None)
    named = [meta.fx, meta.name, meta.reduce_fx.__name__, *flags]
    return [key, named, metric.value, weight, metric._forward_cache]


def _take_row(results: Any, row: list[Any]) -> None:
    key, (fx, name, reduce_fx, *flags), value, weight, cache = row
    _ResultCollection.log(
        results, fx, name, torch.zeros_like(value), reduce_fx=reduce_fx, batch_size=1,
        **dict(zip(_FLAGS, flags, strict=True)),
    )  # fmt: skip
    metric = results[key]
    metric.value, metric._forward_cache, metric._computed = value, cache, None
    if weight is not None:
        metric.cumulated_batch_size = weight
