"""Hands cases to stages, some of them side by side, and takes their results in."""

from __future__ import annotations

import json
import os
import select
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.generator import Recipe
from tests.live.stage import Zygote

DEADLINE_S = 600.0
"""Longest wait for the next of the stages to end; each of their own waits takes 60 s at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one case."""

    recipe: Recipe
    trouble: str
    """Why it failed; empty if it did not."""

    counts: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0


class Cases:
    """The cases that a zygote forks a stage for, each."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote

    def play(self, recipes: Iterable[Recipe], directory: Path, *, abreast: int) -> Iterator[Result]:
        """Yield the result of each recipe as it comes, with ``abreast`` of them going on."""
        going: dict[socket.socket, tuple[Recipe, Path]] = {}
        for number, recipe in enumerate(recipes):
            if len(going) == abreast:
                yield _next(going)
            place = directory / f"{number:04}-{recipe.seed}"
            place.mkdir()
            (place / "recipe.txt").write_text(str(recipe))
            stage = self._zygote.request()
            stage.send(os.fsencode(place))
            going[stage] = recipe, place
        while going:
            yield _next(going)


def _next(going: dict[socket.socket, tuple[Recipe, Path]]) -> Result:
    """Wait for the first stage to end, and return its result."""
    ended, _, _ = select.select(list(going), [], [], DEADLINE_S)
    stage = next(iter(ended or going))
    recipe, place = going.pop(stage)
    stage.close()
    path = place / "result.json"
    if not path.exists():
        trouble = "the stage crashed" if ended else f"the stage did not end within {DEADLINE_S:g} s"
        return Result(recipe=recipe, trouble=trouble)
    found = json.loads(path.read_text())
    return Result(
        recipe=recipe,
        trouble=found["trouble"],
        counts=Counter(found["counts"]),
        took_s=found["took_s"],
    )


@contextmanager
def open_cases(log: Path) -> Iterator[Cases]:
    """Start a zygote of their own; at the end nothing of it lives."""
    with log.open("w") as said, closing(Zygote("tests.fuzz.case", said)) as zygote:
        yield Cases(zygote)  # stages, jobs and workers die with it, each of their parent
