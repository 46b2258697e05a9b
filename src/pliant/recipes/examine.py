"""``python -m pliant.recipes.examine RECIPE``: look at data and tokenizer, and train nothing.

Owns what is printed: documents, tokens, samples, steps.
"""

from __future__ import annotations

import json
import sys

from pliant.core.errors import EXIT_OK, EXIT_USAGE, ConfigError
from pliant.core.text import counted
from pliant.recipes.harness import harness_of
from pliant.recipes.samples import Pairs, Samples, digest_of
from pliant.recipes.tokens import tokenizer_of
from pliant.recipes.train import data_of
from pliant.spec.load import check
from pliant.spec.recipe import Recipe


def main() -> int:
    """Print what the data come to; return the exit code."""
    recipe = check(Recipe, json.loads(sys.argv[1]), source="the recipe")
    tokenizer = tokenizer_of(recipe)
    if recipe.evaluation is not None and recipe.evaluation.harness is not None:
        harness_of(recipe.evaluation.harness)
    for name, path in (("train", recipe.data.train), ("evaluate", recipe.data.evaluate)):
        if path is None:
            continue
        samples, _ = data_of(recipe, path, tokenizer)
        pairs = isinstance(samples, Pairs)
        said = f"data.{name} {path}: {counted(len(samples), 'pair' if pairs else 'sample')}"
        if isinstance(samples, Samples):
            said += f" of {counted(len(samples.data), 'document')} and "
            said += f"{counted(len(samples.data.tokens), 'token')}, packing {digest_of(samples)}"
        sys.stdout.write(f"{said}\n")
        if name == "train":
            size = recipe.training.global_batch_size
            if len(samples) < size:
                raise ConfigError(
                    f"data.train {path} has {counted(len(samples), 'sample')}, fewer than "
                    f"training.globalBatchSize {size}"
                )
            steps = -(-len(samples) // size)
            sys.stdout.write(f"an epoch has {counted(steps, 'step')}\n")
    return EXIT_OK


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_USAGE)
