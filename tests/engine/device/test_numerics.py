"""How a machine rounds is a part of a run, whatever makes it round so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from pliant.core.errors import ConfigError
from pliant.engine.device import numerics
from pliant.engine.device.numerics import word_of_numerics

SAID = "from pliant.engine.device.numerics import word_of_numerics; print(word_of_numerics(1))"


def said_with(**variables: str) -> str:
    """Return the word of another process with these variables."""
    done = subprocess.run(
        [sys.executable, "-c", f"import torch; torch.set_num_threads(1); {SAID}"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.timeout(120)
def test_processes_that_round_alike_say_the_same_and_others_do_not() -> None:
    """Seen: MKL_CBWR on one host, other bits, exit code 0."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        mine = numerics.word_of_device(torch.device("cpu"))
    finally:
        torch.set_num_threads(threads)

    assert said_with() == mine
    assert said_with(MKL_CBWR="COMPATIBLE") != mine
    assert said_with(ATEN_CPU_CAPABILITY="default") != mine


def test_it_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()

    numerics.word_of_device(torch.device("cpu"))

    assert torch.equal(torch.get_rng_state(), before)


def test_results_that_differ_from_one_time_to_the_next_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OMP_THREAD_LIMIT=1 with threads=2: torch adds up what no thread has written."""
    drawn = iter(range(100))

    def other_each_time(where: torch.device) -> list[torch.Tensor]:
        return [torch.tensor([float(next(drawn))])]

    monkeypatch.setattr(numerics, "_OPERATIONS", {"sum": other_each_time})

    with pytest.raises(ConfigError, match="with threads=2 torch gives other results here"):
        word_of_numerics.__wrapped__(2)
