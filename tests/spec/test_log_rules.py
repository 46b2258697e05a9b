"""Log rules of a job file, or of JSON, become the core's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pliant.core.errors import ConfigError
from pliant.core.log_rules import LogRule
from pliant.spec.log_rules import log_rules_of

RULE = {"name": "hang", "logPattern": "loss", "expectedRecurringFrequencyInSeconds": 300}


def test_rules_keep_what_they_say() -> None:
    slow = {"name": "slow", "logPattern": r"(\d+) TFLOPS", "metricThreshold": 50, "operator": "gt"}
    more = {"metricEvaluationDataPoints": 25, "stopPattern": "over"}

    assert log_rules_of("--log-rules", json.dumps([RULE, {**slow, **more}])) == (
        LogRule(
            name="hang", log_pattern="loss", operator="gteq", expected_recurring_frequency_s=300.0
        ),
        LogRule(
            name="slow",
            log_pattern=r"(\d+) TFLOPS",
            operator="gt",
            metric_threshold=50.0,
            metric_evaluation_data_points=25,
            stop_pattern="over",
        ),
    )


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ([{"name": "a", "logPattern": "b"}], "log rule a asks for nothing; give it one of "),
        ([{**RULE, "logPattern": "("}], r"log rule hang: '\(' is no regular expression: missing"),
        ([RULE, RULE], "log rule hang is given twice"),
        ([{**RULE, "operator": "over"}], "operator must be gt, gteq, lt, lteq or eq, not 'over'"),
    ],
)
def test_a_rule_that_says_nothing_is_refused(rules: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        log_rules_of("--log-rules", json.dumps(rules))
    with pytest.raises(ConfigError, match="--log-rules is not valid JSON"):
        log_rules_of("--log-rules", "[")
