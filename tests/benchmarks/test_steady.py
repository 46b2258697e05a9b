"""Jobs of every transport stand beside each other on the page."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from benchmarks.steady import Case, Turn

from benchmarks import harness, steady


def chosen(**more: Any) -> Namespace:
    fields = {"slots": [8], "sizes": [2], "reductions": ["exact"], "uneven": False}
    fields |= {"transports": ["windows", "sockets", "gloo"], "jobs": 2, "turns": 1}
    fields |= {"skip_memory": True, "skip_torchrun": True, "limit": 1.0}
    return Namespace(**(fields | more))


def test_a_case_is_run_with_every_transport() -> None:
    (together,) = steady.cases(chosen())

    assert [case.name for case in together] == [
        "exact K=8 W=2",
        "exact K=8 W=2 through sockets",
        "exact K=8 W=2 through gloo",
    ]


def test_transports_take_turns_and_are_compared_by_their_ratios_to_ddp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = []

    def measure(case: Case, _: Namespace) -> dict[str, list[Turn]]:
        measured.append(case.transport)
        wall_s = {"windows": 1.0, "sockets": 3.0, "gloo": 4.0}[case.transport]
        ddp = [Turn(wall_s=2.0, cpu_s=1.0)]
        return {
            "pliant": [Turn(wall_s=wall_s, cpu_s=1.0)],
            "ddp": ddp,
            "ddp, one batch": ddp,
        }

    monkeypatch.setattr(steady, "measure", measure)
    (together,) = steady.cases(chosen())
    figures = {f.name: f for f in steady.figures_together(together, chosen())}

    assert measured == ["windows", "sockets", "gloo"] * 2
    assert figures["exact K=8 W=2 through sockets: wall over DDP"].raw == (1.5, 1.5)
    assert figures["exact K=8 W=2 through sockets: wall over gloo"].raw == (0.75, 0.75)
    assert figures["exact K=8 W=2: wall over DDP"].target == "<= 1.10"


def test_each_transport_is_compared_with_the_one_job_of_ddp_that_torchrun_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measure(_: Case, __: Namespace) -> dict[str, list[Turn]]:
        turn = [Turn(wall_s=3.0, cpu_s=3.0)]
        return {"pliant": turn, "ddp": turn, "ddp, one batch": turn}

    measured = []

    def measure_alone(case: Case, _: Namespace) -> list[Turn]:
        measured.append(case)
        return [Turn(wall_s=4.0, cpu_s=2.0)]

    monkeypatch.setattr(steady, "measure", measure)
    monkeypatch.setattr(steady, "measure_alone", measure_alone)
    (together,) = steady.cases(chosen())
    with_torchrun = chosen(skip_torchrun=False)
    figures = {f.name: f for f in steady.figures_together(together, with_torchrun)}

    assert len(measured) == 2
    for name in ("exact K=8 W=2", "exact K=8 W=2 through sockets"):
        assert figures[f"{name}: wall over DDP"].raw == (1.0, 1.0)
        assert figures[f"{name}: wall over DDP as torchrun starts it"].raw == (0.75, 0.75)
        assert figures[f"{name}: CPU over DDP as torchrun starts it"].raw == (1.5, 1.5)


def test_nothing_of_the_benchmarks_own_tells_glibc_of_users_what_to_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")

    assert not [name for name in harness.users_environment() if name.startswith("MALLOC_")]
    assert harness.environment()["MALLOC_TRIM_THRESHOLD_"] == "1073741824"
