"""Every seeded fault can still be put into the code that it is about."""

from __future__ import annotations

import pytest
from tools import seed_faults


def test_no_fault_has_drifted_from_the_code() -> None:
    known = [fault for table in seed_faults.TABLES for fault in table]

    assert [problem for fault in known if (problem := seed_faults.drift(fault))] == []


@pytest.mark.parametrize(("sound", "survived"), [("SURVIVED", False), (seed_faults.ENDLESS, True)])
def test_a_suite_that_does_not_end_has_noticed_a_fault_if_it_ends_without_it(
    monkeypatch: pytest.MonkeyPatch, sound: str, survived: bool
) -> None:
    def run_suite(fault: object, suite: list[str], *, timeout_s: float) -> str:
        return sound if fault is None else seed_faults.ENDLESS

    monkeypatch.setattr(seed_faults, "run_suite", run_suite)

    verdict = seed_faults.judge(seed_faults.TABLES[0][0], seed_faults.SUITE)

    assert verdict.survived is survived
