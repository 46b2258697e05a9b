"""Every seeded fault can still be put into the code that it is about."""

from __future__ import annotations

from tools.faults import FAULTS
from tools.seed_faults import drift


def test_no_fault_has_drifted_from_the_code() -> None:
    assert [problem for fault in FAULTS if (problem := drift(fault))] == []
