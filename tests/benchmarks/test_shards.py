"""A turn takes as long as its slowest worker, and is compared with the other side's next one."""

from __future__ import annotations

from benchmarks.turns import Record

from benchmarks import shards


def turn(*walls_s: float, peak_bytes: float) -> list[Record]:
    return [{"wall_s": wall_s, "peak_bytes": peak_bytes} for wall_s in walls_s]


def test_ratios_are_of_pairs_of_turns() -> None:
    told = {
        "pliant": [turn(2.0, 3.0, peak_bytes=2e6), turn(4.0, 1.0, peak_bytes=3e6)],
        "hsdp": [turn(2.0, 1.0, peak_bytes=1e6), turn(1.0, 1.0, peak_bytes=1e6)],
    }

    found = {figure.name: figure.raw for figure in shards.figures_of(told, steps=2)}

    assert found["step over HSDP's"] == (1.5, 4.0)
    assert found["step"] == (1.5, 2.0)
    assert found["peak memory of a worker over HSDP's"] == (2.0, 3.0)
    assert found["peak memory of a worker"] == (2.0, 3.0)
