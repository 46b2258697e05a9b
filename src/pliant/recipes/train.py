"""What each worker of a recipe runs: ``python -m pliant.recipes.train RECIPE``, in JSON.

Owns the order of things.  A session trains, as in any script.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import pliant
from pliant.core.errors import EXIT_USAGE, ConfigError
from pliant.core.text import counted
from pliant.engine.several_workers import num_workers
from pliant.engine.steps import Step
from pliant.engine.worker.bootstrap import worker_context
from pliant.recipes import samples
from pliant.recipes.harness import HARNESS_S, harness_of, measured
from pliant.recipes.models import build
from pliant.recipes.reference import is_stored, remember
from pliant.recipes.tasks import Task
from pliant.recipes.tokens import tokenizer_of, tokens_of
from pliant.spec.load import check
from pliant.spec.recipe import EvaluationEntry, ExportEntry, Recipe, TrainingEntry

EXPORT_S = 3600.0
"""How long an export may take."""


def main() -> None:
    """Train."""
    recipe = check(Recipe, json.loads(sys.argv[1]), source="the recipe")
    train(recipe)


def train(recipe: Recipe) -> None:
    """Train what the recipe says, with as many replicas as there are.

    Raises:
        ConfigError: something of the recipe is not there, or does not fit.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # PEFT's
    training = recipe.training
    pliant.seed(training.seed)
    _check_export(recipe)
    tokenizer = tokenizer_of(recipe)
    workers = num_workers(worker_context())
    evaluation = recipe.evaluation
    named = evaluation.harness if evaluation is not None else None
    harness = harness_of(named) if named is not None else None
    dataset, collate = data_of(recipe, recipe.data.train, tokenizer)
    evaluated: Any = None
    if evaluation is not None:
        evaluated, _ = data_of(recipe, recipe.data.evaluate, tokenizer)
    if is_stored(recipe):
        for data, path in ((dataset, recipe.data.train), (evaluated, recipe.data.evaluate)):
            if data is not None:
                remember(recipe, data, str(path), tokenizer, workers)
        pliant.seed(training.seed)
    reference = _reference(recipe, tokenizer, workers)
    model = build(recipe, tokenizer, workers)
    task = Task(recipe, reference)
    learned = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(
        learned,
        lr=training.learning_rate,
        betas=(training.betas[0], training.betas[1]),
        weight_decay=training.weight_decay,
    )
    kept, checkpoint = recipe.checkpoint, None
    if kept is not None:
        checkpoint = pliant.Checkpoint(kept.path, every=kept.every, keep=kept.keep)
    best = pliant.State(loss=math.inf, waited=0)
    with pliant.Session(
        model=model,
        optimizer=optimizer,
        scheduler=_schedule(training),
        dataset=dataset,
        collate_fn=collate,
        global_batch_size=training.global_batch_size,
        micro_batch_size=training.micro_batch_size,
        max_grad_norm=training.max_grad_norm,
        seed=training.seed,
        extra_state={"best": best},
        checkpoint=checkpoint,
    ) as session:
        for step in session.steps(training.steps, epochs=training.epochs):
            for batch in step:
                counted = task.loss(model, batch)
                step.log(weight=counted.weight, **counted.logged)
                step.backward(counted.loss, weight=counted.weight)
            session.log(loss=step.loss, **step.logged)
            if evaluation is not None and is_due(evaluation, step):
                found: Any = session.evaluate(evaluated, partial(task.figures, model))
                session.log(**{f"evaluation_{name}": value for name, value in found.items()})
                if named is not None and harness is not None:
                    with session.busy(HARNESS_S):
                        said = measured(named, harness, model, tokenizer)
                    session.log(**{f"harness_{name}": value for name, value in said.items()})
                best.waited = 0 if found["loss"] < best.loss else best.waited + 1
                best.loss = min(best.loss, found["loss"])
                if best.waited == evaluation.patience and not step.is_last:
                    step.stop()
        if recipe.export is not None:
            _export(recipe.export, session, model, tokenizer, is_sharded=workers > 1)


def is_due(evaluation: EvaluationEntry, step: Step) -> bool:
    """Whether the model is evaluated after a step."""
    return step.is_last or (step.index + 1) % evaluation.every_steps == 0


def _reference(recipe: Recipe, tokenizer: Any, workers: int) -> nn.Module | None:
    """Return a frozen model with the weights at the start, where the task compares with one."""
    if recipe.task != "dpo":
        return None
    wanted = recipe.preference.reference if recipe.preference else "auto"
    if wanted in ("adapter", "stored") or (wanted == "auto" and recipe.lora is not None):
        return None
    alone = recipe.model_copy(update={"lora": None})
    found = build(alone, tokenizer, workers).requires_grad_(False).eval()
    pliant.seed(recipe.training.seed)  # fresh weights are those of the model, too
    return found


def data_of(recipe: Recipe, path: str | None, tokenizer: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the samples of a data file, and what makes a micro-batch of some."""
    assert path is not None  # noqa: S101
    with pliant.once(f"tokens {path}") as is_first:
        found = tokens_of(recipe, path, tokenizer, is_first=is_first)
        length = recipe.data.sequence_length
        usual = {"pretrain": "wrapped", "sft": "bfd", "dpo": "none"}[recipe.task]
        packing = recipe.data.packing or usual
        if is_first:
            samples.check_learned(path, found)
        is_cut = is_first and (packing == "none" or recipe.task == "dpo")
        if is_cut and (num := samples.check_cut(found, length)):
            said = f"{path}: {counted(num, 'document')} longer than data.sequenceLength {length}"
            sys.stderr.write(f"{said} lose their end\n")
    if recipe.task == "dpo":
        return samples.Pairs(found, length), samples.collate_pairs
    if packing == "wrapped":
        return samples.Wrapped(found, length, recipe.training.seed), samples.collate
    return (samples.Packed if packing == "bfd" else samples.Alone)(found, length), samples.collate


def _schedule(training: TrainingEntry) -> Callable[[torch.optim.Optimizer, int], LambdaLR]:
    """Return what makes the scheduler: a warm-up, then a half cosine, a line, or nothing."""

    def make(optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> LambdaLR:
        total = training.steps or (training.epochs or 1) * steps_per_epoch
        warmup = training.warmup_steps or math.ceil(training.warmup_ratio * total)
        low = training.min_learning_rate / training.learning_rate

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / (warmup + 1)
            done = min(1.0, (step - warmup) / max(1, total - warmup))
            falls = {"linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
            return low + (1 - low) * falls.get(training.schedule, 1.0)

        return LambdaLR(optimizer, factor)

    return make


def _check_export(recipe: Recipe) -> None:
    """Refuse, before hours of training, what could not be written after them."""
    if recipe.export is None:
        return
    path = Path(recipe.export.path)
    with pliant.once("place of the export") as is_first:
        if is_first and path.exists():
            raise ConfigError(f"export.path {path} exists; name a directory that is not there yet")


def _export(
    entry: ExportEntry, session: pliant.Session, model: Any, tokenizer: Any, *, is_sharded: bool
) -> None:
    """Write weights or adapter, configuration and tokenizer; the directory appears when whole."""
    path = Path(entry.path)
    made = path.with_name(f".{path.name}")
    state = None
    if is_sharded:
        whole = path.with_name(f".{path.name}.weights")
        session.save(whole)  # by all workers
    if not session.leader:
        return
    with session.busy(max_s=EXPORT_S):
        shutil.rmtree(made, ignore_errors=True)  # of one that was killed
        if is_sharded:
            state = torch.load(whole, weights_only=True)
            whole.unlink()
        if entry.merge:
            model, state = _merged(model, state), None
        model.save_pretrained(made, state_dict=state)
        _sort_sets(made / "adapter_config.json")
        tokenizer.save_pretrained(made)
        made.rename(path)


def _sort_sets(path: Path) -> None:
    """Bring what PEFT keeps as sets into order: each process would write them in another."""
    if path.is_file():
        said = json.loads(path.read_text())
        said = {name: sorted(v) if isinstance(v, list) else v for name, v in said.items()}
        path.write_text(json.dumps(said, indent=2) + "\n")


def _merged(model: Any, state: dict[str, torch.Tensor] | None) -> Any:
    """Return a copy of a model with its adapter in its weights."""
    if state is not None:
        raise ConfigError(
            "export.merge is not there for sharded models; export the adapter, and merge it with "
            "PEFT's merge_and_unload"
        )
    return copy.deepcopy(model).merge_and_unload()


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_USAGE)
