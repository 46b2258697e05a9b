"""Log rules of a job file, with HyperPod's names, and the translation to the core's.

Owns the bounds of each, and the sentence for a rule that says nothing.  Knows nothing of lines.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pliant.core.errors import ConfigError
from pliant.core.log_rules import LogRule
from pliant.spec.load import check
from pliant.spec.model import Model, SomeSeconds, core_fields, impossible, refuse_twice


class LogRuleEntry(Model):
    """A rule for the lines of each replica; one that breaks it is ended and replaced."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    log_pattern: Annotated[str, Field(min_length=1)]
    """A regular expression of Python, looked for in each line of a replica that trains."""

    expected_start_cut_off_in_seconds: SomeSeconds | None = None
    """A line must match so long after the replica has begun to train, or a size has begun."""

    expected_recurring_frequency_in_seconds: SomeSeconds | None = None
    """From one line that matches until the next."""

    metric_threshold: float | None = None
    """What the number in the first group of the pattern is compared with."""

    operator: Literal["gt", "gteq", "lt", "lteq", "eq"] = "gteq"
    """How the number must compare with ``metricThreshold``."""

    metric_evaluation_data_points: Annotated[int, Field(ge=1)] = 1
    """So many numbers in a row that do not compare like that break the rule."""

    stop_pattern: str = ""
    """A line that matches this ends the rule."""

    fault_on_match: bool = False
    """A line that matches breaks the rule."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for pattern in (self.log_pattern, self.stop_pattern):
            try:
                re.compile(pattern)
            except re.error as error:
                raise impossible(
                    f"log rule {self.name}: {pattern!r} is no regular expression: {error}"
                ) from None
        limits = (
            self.expected_start_cut_off_in_seconds,
            self.expected_recurring_frequency_in_seconds,
            self.metric_threshold,
        )
        if not self.fault_on_match and limits == (None, None, None):
            raise impossible(
                f"log rule {self.name} asks for nothing; give it one of "
                "expectedStartCutOffInSeconds, expectedRecurringFrequencyInSeconds, "
                "metricThreshold and faultOnMatch"
            )
        return self


def _each_once(rules: list[LogRuleEntry]) -> list[LogRuleEntry]:
    refuse_twice("log rule", [one.name for one in rules])
    return rules


LogRuleEntries = Annotated[list[LogRuleEntry], AfterValidator(_each_once)]


class _LogRules(Model):
    log_monitoring_configuration: LogRuleEntries


def log_rules_of(source: str, text: str) -> tuple[LogRule, ...]:
    """Read rules from JSON, as of a job file.

    Raises:
        ConfigError: one sentence; names ``source``.
    """
    try:
        said = {"logMonitoringConfiguration": json.loads(text)}
    except ValueError as error:
        raise ConfigError(f"{source} is not valid JSON: {error}") from None
    entries = check(_LogRules, said, source=source).log_monitoring_configuration
    return tuple(LogRule(**core_fields(one)) for one in entries)
