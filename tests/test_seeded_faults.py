"""Every seeded fault can still be put into the code that it is about."""

from __future__ import annotations

from tools import seed_faults


def test_no_fault_has_drifted_from_the_code() -> None:
    known = [fault for table in seed_faults.TABLES for fault in table]

    assert [problem for fault in known if (problem := seed_faults.drift(fault))] == []
