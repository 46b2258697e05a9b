"""A turn takes as long as its slowest worker, and the processor time of both."""

from __future__ import annotations

from benchmarks.turns import Record

from benchmarks import recipes


def turn(*times_s: tuple[float, float]) -> list[Record]:
    return [{"wall_s": wall_s, "cpu_s": cpu_s} for wall_s, cpu_s in times_s]


def test_ratios_are_of_pairs_of_turns() -> None:
    told = {
        "recipe": [turn((2.0, 1.0), (3.0, 2.0)), turn((4.0, 4.0), (1.0, 1.0))],
        "plain": [turn((2.0, 2.0), (1.0, 1.0)), turn((1.0, 1.0), (1.0, 1.0))],
    }

    rows = recipes.figures_of("tiny", "DDP", told, steps=2)
    found = {figure.name.partition(": ")[2]: figure for figure in rows}

    assert found["wall of a step, ratio"].raw == (1.5, 4.0)
    assert found["wall of a step, ratio"].target == "<= 1.05"
    assert found["processor time, ratio"].raw == (1.0, 2.5)
    assert found["step of the recipe"].raw == (1.5, 2.0)
