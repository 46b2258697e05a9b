"""The test's side of the nursery: hands cases out, takes results in, some of them side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.generator import Recipe

STAGE = Path(__file__).with_name("stage.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one case."""

    recipe: Recipe
    trouble: str
    """Why it failed; empty if it did not."""

    counts: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0


class Nursery:
    """One process that has everything imported, and the cases it plays."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def play(self, recipes: Iterable[Recipe], directory: Path, *, abreast: int) -> Iterator[Result]:
        """Yield the result of each recipe as it comes, with ``abreast`` of them going on."""
        going: dict[str, Recipe] = {}
        for number, recipe in enumerate(recipes):
            if len(going) == abreast:
                yield self._next(going)
            place = directory / f"{number:04}-{recipe.seed}"
            place.mkdir()
            (place / "recipe.txt").write_text(str(recipe))
            going[str(place)] = recipe
            self._say(str(place))
        while going:
            yield self._next(going)

    def _say(self, line: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def _next(self, going: dict[str, Recipe]) -> Result:
        line = "" if self._process.stdout is None else self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("the nursery has died")
        recipe = going.pop(line)
        path = Path(line, "result.json")
        if not path.exists():
            return Result(recipe=recipe, trouble="the stage crashed")
        found = json.loads(path.read_text())
        return Result(
            recipe=recipe,
            trouble=found["trouble"],
            counts=Counter(found["counts"]),
            took_s=found["took_s"],
        )


@contextmanager
def open_nursery(log: Path) -> Iterator[Nursery]:
    """Start a nursery; at the end nothing of it lives."""
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, str(STAGE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
    with process:
        try:
            yield Nursery(process)
        finally:
            process.kill()  # stages, jobs and workers die with it, each of their parent
