"""``pliant recipe``: models, data and bounds in a file, in place of a script.

Owns argv and what is printed.  What looks into data or models runs in a process of its own, which
has torch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import BaseModel

from pliant.cli.arguments import Arguments
from pliant.cli.help import CommandGroup, argument, option
from pliant.cli.job_file import read_job
from pliant.cli.terminal import draw, plain_table, say
from pliant.core.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, ConfigError
from pliant.core.text import counted, in_words
from pliant.machine.files import read_named
from pliant.machine.named_modules import require_engine
from pliant.recipes.auto import GIB
from pliant.recipes.estimate import Estimate, estimate
from pliant.recipes.families import GEOMETRIES
from pliant.spec.job import ElasticJob
from pliant.spec.load import parse
from pliant.spec.recipe import SIZES, Recipe

app = typer.Typer(
    name="recipe",
    cls=CommandGroup,
    help="Train a model by a file, without a script.",
    rich_markup_mode=None,
)

TASKS = ("pretrain", "sft", "dpo")
EXAMPLES = {"pretrain": "texts.jsonl", "sft": "chats.jsonl", "dpo": "pairs.jsonl"}
FLOPS = 1e14
"""Of one device, for an idea of the time of a step."""

File = Annotated[Path, argument("FILE", "A job file with spec.recipe.")]


@app.command("list")
def list_recipes() -> int:
    """List the families and sizes of models."""
    table = plain_table("name", "parameters", "of a token", "tasks", pad_edge=False)
    for family, sizes in SIZES.items():
        for size in sizes:
            known = GEOMETRIES.get((family, size))
            total = f"{known.parameters() / 1e9:.2f}e9" if known else "some 1e5"
            active = f"{known.active_parameters() / 1e9:.2f}e9" if known else ""
            table.add_row(f"{family}-{size}", total, active, ", ".join(TASKS))
    return draw(table)


@app.command()
def new(
    name: Annotated[str, argument("NAME", "Model and task, as llama-tiny-sft.")],
    values: Annotated[
        list[str] | None,
        option("--set KEY=VALUE", "A field of the recipe, as data.train=chats.jsonl.  Repeatable."),
    ] = None,
    out: Annotated[Path | None, option("--out FILE", "[default: NAME.yaml]")] = None,
) -> int:
    """Write a job file with a recipe, to be changed by hand."""
    family, size, task = _parts(name)
    recipe: dict[str, Any] = {
        "task": task,
        "model": {"family": family, "size": size},
        "data": {"train": EXAMPLES[task]},
        "training": {"epochs": 1},
    }
    for word in values or ():
        _set(recipe, word)
    document = {
        "apiVersion": "pliant.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name.replace(".", "-")},
        "spec": {"recipe": recipe, "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}},
    }
    text, path = yaml.safe_dump(document, sort_keys=False), out or Path(f"{name}.yaml")
    parse(ElasticJob, text, source=name)
    if path.exists():
        raise ConfigError(f"{path} exists; give --out another name")
    path.write_text(text)
    return say(f"{path}: change it, then pliant recipe check {path}")


@app.command()
def show(
    file: File,
    memory: Annotated[
        float | None,
        option("--memory GIB", "Of one device: says how many workers a replica needs."),
    ] = None,
) -> int:
    """Say what a recipe means: every field, and what it needs."""
    job, recipe, reasons = _read(file, memory)
    table = plain_table("field", "value", "from", pad_edge=False)
    for field, value, is_given in _fields(recipe, ""):
        table.add_row(field, "none" if value is None else str(value), "file" if is_given else "")
    draw(table)
    say("")
    workers = job.spec.workers_per_replica
    for line in (*reasons, *_needs(estimate(recipe, workers), workers)):
        say(line)
    return EXIT_OK


@app.command("check")
def check_recipe(file: File) -> int:
    """Look at the data and the tokenizer of a recipe; train nothing."""
    job, recipe, _ = _read(file)
    workers = job.spec.workers_per_replica
    for line in _needs(estimate(recipe, workers), workers):
        say(line)
    require_engine("pliant recipe check")
    words = [sys.executable, "-m", "pliant.recipes.examine", recipe.command()[-1]]
    done = subprocess.run(  # noqa: S603
        words, cwd=file.absolute().parent, text=True, capture_output=True, check=False
    )
    if done.returncode == EXIT_USAGE:
        raise ConfigError(f"{file}: {done.stderr.strip().splitlines()[-1]}")
    say(done.stdout.rstrip() if done.returncode == EXIT_OK else done.stderr.rstrip())
    return EXIT_OK if done.returncode == EXIT_OK else EXIT_FAILED


def run_recipe(file: File, arguments: Arguments = None) -> int:
    """Train: the same as `pliant run FILE`, with all of its options."""
    _read(file)
    words = [sys.executable, "-m", "pliant", "run", *(arguments or ()), str(file)]
    os.execv(sys.executable, words)  # noqa: S606  # it gets the signals, and nothing is in between


app.command("run", context_settings={"ignore_unknown_options": True})(run_recipe)


def _read(file: Path, memory: float | None = None) -> tuple[ElasticJob, Recipe, list[str]]:
    job, reasons = read_job(file, read_named(file), memory=memory)
    if job.spec.recipe is None:
        raise ConfigError(f"{file} names a command and no recipe; start it with pliant run {file}")
    return job, job.spec.recipe, reasons


def _parts(name: str) -> tuple[str, str, str]:
    for family, sizes in SIZES.items():
        found = re.fullmatch(rf"{family}-({'|'.join(sizes)})-({'|'.join(TASKS)})", name)
        if found is not None:
            return family, found[1], found[2]
    models = [f"{family}-{size}" for family, sizes in SIZES.items() for size in sizes]
    raise ConfigError(
        f"{name} is no recipe: give a model and a task, as llama-tiny-sft; models are "
        f"{in_words(models)}, tasks {in_words(TASKS)}"
    )


def _set(recipe: dict[str, Any], word: str) -> None:
    key, equals, text = word.partition("=")
    if not equals:
        raise ConfigError(f"--set {word} must be KEY=VALUE, as data.train=chats.jsonl")
    *above, last = key.split(".")
    for name in above:
        recipe = recipe.setdefault(name, {})
        if not isinstance(recipe, dict):
            raise ConfigError(f"--set {word}: {name} has no fields")
    recipe[last] = yaml.safe_load(text)
    if key == "training.steps":
        recipe.pop("epochs", None)


def _fields(model: BaseModel, above: str) -> Iterator[tuple[str, object, bool]]:
    """Yield every field, its value, and whether the file gives it."""
    for name, field in type(model).model_fields.items():
        value, key = getattr(model, name), f"{above}{field.alias}"
        if isinstance(value, BaseModel):
            yield from _fields(value, f"{key}.")
        else:
            yield key, value, name in model.model_fields_set


def _needs(found: Estimate, workers: int) -> Iterator[str]:
    gib = {
        "weights": found.weights_bytes,
        "gradients": found.gradients_bytes,
        "optimizer": found.optimizer_bytes,
        "activations": found.activations_bytes,
    }
    yield f"{found.parameters:,} parameters, {found.trained:,} of them trained"
    parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in gib.items())
    yield (
        f"memory of a worker, of {workers}: some {found.total_bytes / GIB:.2f} GiB ({parts}), and "
        "what kernels and the allocator take besides"
    )
    sizes = ", ".join(map(str, found.even_sizes))
    yield f"{counted(found.slots, 'slot')}: at most as many replicas; evenly divided by {sizes}"
    yield (
        f"a step takes {found.step_flops:.3g} floating-point operations: "
        f"{found.step_flops / FLOPS:.3g} s on one device that does {FLOPS:.0e} a second"
    )
