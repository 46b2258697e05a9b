"""Random models, optimizers, data and events: alone as in plain PyTorch, and always the same bits.

``make fuzz SEED=n CASES=m`` plays the elastic cases n to n+m-1 and compares four times as many
alone.  Without these variables a slice of both is run.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fuzz import alone, generator
from tests.fuzz.cases import Result, open_cases
from tests.fuzz.generator import Recipe

pytestmark = pytest.mark.fuzz

SEED = int(os.environ.get("SEED", "1"))
CASES = int(os.environ.get("CASES", "5"))
ALONE = 4 * CASES

ABREAST = 2
"""Elastic cases that go on at a time; a case waits half of its life."""

KEPT = sorted(Path(__file__).with_name("kept").glob("*.txt"))
"""Recipes that once came out wrong."""


def test_a_recipe_is_the_same_for_the_same_seed_and_can_be_read_back() -> None:
    for seed in range(200):
        recipe = generator.recipe(seed)

        assert recipe == generator.recipe(seed)
        assert generator.parse(str(recipe)) == recipe


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_once_came_out_wrong_is_as_in_a_plain_loop(path: Path) -> None:
    alone.compare(generator.parse(path.read_text()))


@pytest.mark.timeout(30 + 5 * ALONE)
def test_steps_alone_are_those_of_a_plain_loop() -> None:
    compared, failures = 0, []
    for seed in range(SEED, SEED + ALONE):
        recipe = generator.recipe(seed)
        try:
            compared += alone.compare(recipe)
        except Exception as error:  # the others are looked at all the same
            failures.append(_failure(recipe, f"{type(error).__name__}: {error}"))
            say(failures[-1])
    say(f"alone: {ALONE} recipes from seed {SEED}, {compared} gradients compared")
    assert not failures, "\n\n".join(failures)


@pytest.mark.processes
@pytest.mark.timeout(120 + 60 * CASES)
def test_runs_under_events_end_as_runs_alone(tmp_path: Path) -> None:
    start_s = time.monotonic()
    failures, events, features = [], Counter[str](), Counter[str]()
    for result in play(SEED, CASES, tmp_path):
        events += result.counts
        features.update(result.recipe.features)
        if result.trouble:
            failures.append(_failure(result.recipe, result.trouble))
            say(failures[-1])
    took_s = time.monotonic() - start_s
    say(f"elastic: {CASES} recipes from seed {SEED} in {took_s:.0f} s, {len(failures)} failed")
    say(f"events: {_listed(events)}")
    say(f"recipes with: {_listed(features)}")
    assert not failures, "\n\n".join(failures)


def play(seed: int, cases: int, directory: Path) -> Iterator[Result]:
    """Play the recipes of these seeds; keep the files of those that failed."""
    recipes = map(generator.recipe, range(seed, seed + cases))
    with open_cases(directory / "zygote.txt") as stages:
        yield from stages.play(recipes, directory, abreast=ABREAST)


def _failure(recipe: Recipe, why: str) -> str:
    return (
        f"{recipe}\n\n{why}\n"
        f"seed {recipe.seed} failed; repeat it with: make fuzz SEED={recipe.seed} CASES=1"
    )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
