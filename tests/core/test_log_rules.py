"""Which lines, and which silence, break a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pliant.core.log_rules import LogRule, begun, heard, overdue


def broken(lines: Sequence[tuple[float, str]], at_s: float = 0.0, **fields: Any) -> str | None:
    """Return why a rule is broken by lines at moments, or at last by silence."""
    watched = begun(
        [LogRule(name="rule", log_pattern=fields.pop("log_pattern", r"loss (\S+)"), **fields)], 0.0
    )
    for now_s, line in lines:
        if (why := overdue(watched, now_s)) is not None:
            return why
        watched, why = heard(watched, line, now_s)
        if why is not None:
            return why
    return overdue(watched, at_s)


@pytest.mark.parametrize(
    ("lines", "at_s", "fields", "why"),
    [
        ([], 10.0, {"expected_start_cut_off_s": 10.0}, None),
        ([], 10.1, {"expected_start_cut_off_s": 10.0}, "no line matched within 10 s"),
        (
            [(1.0, "no such")],
            10.1,
            {"expected_start_cut_off_s": 10.0},
            "no line matched within 10 s",
        ),
        ([(1.0, "a loss 2")], 99.0, {"expected_start_cut_off_s": 10.0}, None),
        ([], 99.0, {"expected_recurring_frequency_s": 5.0}, None),
        ([(1.0, "loss 2"), (6.0, "loss 2")], 11.0, {"expected_recurring_frequency_s": 5.0}, None),
        (
            [(1.0, "loss 2")],
            6.5,
            {"expected_recurring_frequency_s": 5.0},
            "no line matched again within 5 s",
        ),
        (
            [(1.0, "loss 2"), (2.0, "done")],
            99.0,
            {"expected_recurring_frequency_s": 5.0, "stop_pattern": "done"},
            None,
        ),
        (
            [(1.0, "x" * 5000 + "loss 2")],
            6.5,
            {"expected_start_cut_off_s": 5.0},
            "no line matched within 5 s",
        ),
    ],
)
def test_silence_breaks_a_rule(
    lines: list[tuple[float, str]], at_s: float, fields: dict[str, Any], why: str | None
) -> None:
    assert broken(lines, at_s, **fields) == (why and f"log rule rule: {why}")


@pytest.mark.parametrize(
    ("numbers", "fields", "why"),
    [
        ("9 8 7", {"operator": "gteq", "metric_threshold": 7.0}, None),
        ("9 6", {"operator": "gteq", "metric_threshold": 7.0}, "6 is not gteq 7"),
        (
            "6 6 9 6 6",
            {"operator": "gteq", "metric_threshold": 7.0, "metric_evaluation_data_points": 3},
            None,
        ),
        (
            "6 5 4",
            {"operator": "gt", "metric_threshold": 7.0, "metric_evaluation_data_points": 3},
            "4 is not gt 7, 3 times in a row",
        ),
        ("nan", {"operator": "lt", "metric_threshold": 7.0}, "nan is not lt 7"),
        ("diverged", {"operator": "lteq", "metric_threshold": 7.0}, "diverged is not lteq 7"),
        ("7", {"operator": "eq", "metric_threshold": 7.0}, None),
        ("7", {"fault_on_match": True}, "step: loss 7"),
    ],
)
def test_numbers_and_faults_break_a_rule(
    numbers: str, fields: dict[str, Any], why: str | None
) -> None:
    lines = [(float(at), f"step: loss {number}\n") for at, number in enumerate(numbers.split())]

    assert broken(lines, **fields) == (why and f"log rule rule: {why}")
