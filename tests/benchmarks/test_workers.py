"""A job of a benchmark is given the arguments that its worker takes."""

from __future__ import annotations

import contextlib
import importlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.steady import Case

from benchmarks import features, harness, pliant_job, steady

ONE = Case(slots=8, size=1, reduction="exact")
ASKED = Namespace(
    blocks=1, turns=1, micro_batch=1, length=8, limit=1.0, reduction="exact", device="cpu"
)

JOBS: list[Callable[[], object]] = [
    lambda: steady.measure(ONE, ASKED),
    lambda: list(steady.copies_of(ONE, limit_s=1.0)),
    lambda: features.measure("GPT", 1, ASKED),
]


@pytest.mark.parametrize("measure", JOBS, ids=["steady", "memory", "features"])
def test_a_worker_takes_what_its_benchmark_gives(
    measure: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []

    @contextlib.contextmanager
    def parsed(folder: Path, script: Sequence[str], **_: object) -> Iterator[SimpleNamespace]:
        worker = importlib.import_module(f"benchmarks.{Path(script[0]).stem}")
        monkeypatch.setattr(sys, "argv", list(script))
        taken.append(worker.options())
        yield SimpleNamespace(process=SimpleNamespace(wait=lambda timeout: 0))

    monkeypatch.setattr(pliant_job, "running", parsed)
    with contextlib.suppress(LookupError, ValueError, ZeroDivisionError):
        measure()  # nobody trained, so there is nothing to read afterwards

    assert taken


def test_no_benchmark_hides_a_module_of_python_from_its_workers() -> None:
    modules = {path.stem for path in (harness.ROOT / "benchmarks").glob("*.py")}

    assert not modules & sys.stdlib_module_names  # the folder comes first in a worker's path
