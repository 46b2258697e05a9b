"""State of a Hugging Face Trainer beside model, optimizer and schedule, as replicas share it.

Owns two things.  ``KeptTrainer``: what the Trainer remembers between steps (its state and
history, the running loss, its control and its callbacks), for replicas that join and for
checkpoints.  ``Counted``: what it adds up while it computes a micro-batch (operations, tokens, the
metrics of trl), which one replica does for its own micro-batches only, so that it goes through
``step.log``.

Must not know the loop.  Times are not kept: each replica has its own.
"""

from __future__ import annotations

import json
from typing import Any

from pliant.integrations.plain import is_of, plain, plain_entries

_FIELDS = (
    "global_step", "epoch", "best_metric", "best_model_checkpoint", "best_global_step",
    "total_flos", "num_input_tokens_seen",
)  # fmt: skip
"""Of ``TrainerState``."""

_TOTALS = ("current_flos", "_total_train_tokens")
"""Counters of a Trainer, where it has them; besides ``state.num_input_tokens_seen``."""

_TOKENS = "num_tokens"
"""The metric of trl that is a total and no mean."""


class KeptTrainer:
    """What a Trainer remembers between steps."""

    def __init__(self, trainer: Any, exportable: Any) -> None:
        """Of this Trainer; ``exportable``: ``transformers.trainer_callback.ExportableState``."""
        self._trainer = trainer
        self._exportable = exportable
        self._history = -1, ""

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        trainer, state = self._trainer, self._trainer.state
        return {
            "state": {name: plain(getattr(state, name)) for name in _FIELDS},
            "history": self._history_text(),
            "loss": float(trainer._tr_loss),
            "total_loss": float(trainer._total_loss_scalar),
            "logged_at": trainer._globalstep_last_logged,
            "totals": {n: plain(getattr(trainer, n)) for n in _TOTALS if hasattr(trainer, n)},
            "metrics": json.dumps(getattr(trainer, "_metrics", {}), sort_keys=True),
            "callbacks": [self._values_of(one) for one in self._holders()],
        }

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Take what another replica's Trainer remembers."""
        trainer, state = self._trainer, self._trainer.state
        for name, value in kept["state"].items():
            setattr(state, name, value)
        state.log_history = json.loads(kept["history"])
        self._history = -1, ""
        trainer._tr_loss.fill_(kept["loss"])
        trainer._total_loss_scalar = kept["total_loss"]
        trainer._globalstep_last_logged = kept["logged_at"]
        for name, value in kept["totals"].items():
            setattr(trainer, name, value)
        for mode, lists in json.loads(kept["metrics"]).items():
            trainer._metrics[mode].clear()
            trainer._metrics[mode].update(lists)
        for holder, values in zip(self._holders(), kept["callbacks"], strict=True):
            vars(holder).update(values)

    def _holders(self) -> list[Any]:
        return [*self._trainer.callback_handler.callbacks, self._trainer.control]

    def _values_of(self, holder: Any) -> dict[str, Any]:
        """Return what a callback remembers: what it exports, or of a script's own all values."""
        if isinstance(holder, self._exportable):
            return plain_entries(holder.state()["attributes"])
        if is_of(holder, "transformers", "trl", "peft"):
            return {}  # they hold connections, and say themselves what is to be kept
        return plain_entries(vars(holder))

    def _history_text(self) -> str:
        history = self._trainer.state.log_history
        if len(history) != self._history[0]:
            timeless = [{n: v for n, v in one.items() if not is_time(n)} for one in history]
            self._history = len(history), json.dumps(timeless, sort_keys=True, default=float)
        return self._history[1]


class Counted:
    """What a Trainer adds up while micro-batches are computed, made the same on all replicas."""

    def __init__(self, trainer: Any) -> None:
        """Of this Trainer."""
        self._trainer = trainer
        self._before = self._now()
        self._at_step = self._before

    def begin_step(self) -> None:
        """Remember where the step begins."""
        self._at_step = self._now()

    def begin(self) -> None:
        """Remember where a micro-batch begins."""
        self._before = self._now()

    def end(self) -> dict[str, float]:
        """Return what the micro-batch has added, by name: of a list the mean."""
        added: dict[str, float] = {}
        for name, (count, total) in self._now().items():
            old_count, old_total = self._before.get(name, (0, 0.0))
            if name in self._lists() and count > old_count:
                values = self._lists()[name][old_count:]
                added[name] = sum(map(float, values)) / len(values)
            elif name not in self._lists():
                added[name] = total - old_total
        return added

    def end_step(self, means: dict[str, float], weights: dict[str, float]) -> None:
        """Replace what this replica has added by what all have."""
        trainer, lists = self._trainer, self._lists()
        for name in list(lists):
            if name not in self._at_step and name not in means and name != _TOKENS:
                del lists[name]  # of a micro-batch that was done again
        for name, mean in means.items():
            total = round(mean * weights[name])
            if name == "state.tokens":
                trainer.state.num_input_tokens_seen = int(self._at_step[name][1]) + total
            elif name in _TOTALS:
                setattr(trainer, name, self._at_step[name][1] + total)
            else:
                kept = lists.pop(name, [])[: self._at_step.get(name, (0, 0.0))[0]]
                lists[name] = kept + [mean] * round(weights[name])
        if hasattr(trainer, "_total_train_tokens"):
            lists.pop(_TOKENS, None)
            lists[_TOKENS] = [trainer._total_train_tokens]

    def _lists(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = getattr(self._trainer, "_metrics", {"train": {}})["train"]
        return found

    def _now(self) -> dict[str, tuple[int, float]]:
        """Return by name the length of each list, and each total."""
        trainer = self._trainer
        totals = {name: getattr(trainer, name) for name in _TOTALS if hasattr(trainer, name)}
        totals["state.tokens"] = trainer.state.num_input_tokens_seen
        lists = {name: len(values) for name, values in self._lists().items() if name != _TOKENS}
        return {n: (0, v) for n, v in totals.items()} | {n: (v, 0.0) for n, v in lists.items()}


def is_time(name: str) -> bool:
    """Whether a logged value is a time or a speed, which each replica has its own of."""
    return name.endswith(("_runtime", "_per_second", "_time"))
