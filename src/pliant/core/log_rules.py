"""Log rules: what the lines that a replica prints say of whether it works.

Owns when a rule is broken, of lines and moments that it is told.  Knows nothing of pipes, of
processes, or of what follows for the replica.

    begin --a line matches--> seen --a line matches--> seen ...    none in time: broken
                                |----a number outside, so many in a row, or fault_on_match: broken
    stop_pattern, at any time: over
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

MOST_LETTERS = 4096
"""Of a line that are looked at: what a pattern costs grows with it."""

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "eq": operator.eq,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRule:
    """One rule; every part of it is optional but the pattern."""

    name: str
    log_pattern: str
    expected_start_cut_off_s: float | None = None
    """A line matches so long after the beginning, in seconds, at the latest."""

    expected_recurring_frequency_s: float | None = None
    """Another one matches so long after the one before, in seconds, at the latest."""

    operator: str = "gteq"
    metric_threshold: float | None = None
    """The number that the first group of the pattern finds must compare like this."""

    metric_evaluation_data_points: int = 1
    """So many numbers in a row must not, until it is broken."""

    stop_pattern: str = ""
    """A line with it ends the rule."""

    fault_on_match: bool = False
    """A line that matches breaks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Where a replica stands with one rule."""

    rule: LogRule
    since_s: float
    """The beginning, or the last line that matched."""

    has_matched: bool = False
    outside: int = 0
    is_over: bool = False


def begun(rules: Sequence[LogRule], now_s: float) -> tuple[Watched, ...]:
    """Return the state of a replica that begins to train now."""
    return tuple(Watched(rule=rule, since_s=now_s) for rule in rules)


def heard(
    watched: Sequence[Watched], line: str, now_s: float
) -> tuple[tuple[Watched, ...], str | None]:
    """Return the state after a line, and why a rule is broken by it; None: none is."""
    found = [_after(one, line[:MOST_LETTERS], now_s) for one in watched]
    return tuple(one for one, _ in found), next((why for _, why in found if why), None)


def overdue(watched: Sequence[Watched], now_s: float) -> str | None:
    """Return why a rule is broken by what was not printed; None: none is."""
    for one in watched:
        limit_s = (
            one.rule.expected_recurring_frequency_s
            if one.has_matched
            else one.rule.expected_start_cut_off_s
        )
        if not one.is_over and limit_s is not None and now_s - one.since_s > limit_s:
            again = " again" if one.has_matched else ""
            return f"log rule {one.rule.name}: no line matched{again} within {limit_s:g} s"
    return None


def _after(one: Watched, line: str, now_s: float) -> tuple[Watched, str]:
    rule = one.rule
    if one.is_over or (rule.stop_pattern and re.search(rule.stop_pattern, line)):
        return replace(one, is_over=True), ""
    if (match := re.search(rule.log_pattern, line)) is None:
        return one, ""
    if rule.fault_on_match:
        return one, f"log rule {rule.name}: {line.strip()}"
    is_outside = rule.metric_threshold is not None and not _holds(
        rule, match, rule.metric_threshold
    )
    outside = one.outside + 1 if is_outside else 0
    after = replace(one, since_s=now_s, has_matched=True, outside=outside)
    if outside < rule.metric_evaluation_data_points or not is_outside:
        return after, ""
    number = match[1] if match.re.groups else match[0]
    in_a_row = f", {outside} times in a row" if outside > 1 else ""
    wanted = f"not {rule.operator} {rule.metric_threshold:g}"
    return after, f"log rule {rule.name}: {number} is {wanted}{in_a_row}"


def _holds(rule: LogRule, match: re.Match[str], threshold: float) -> bool:
    try:
        number = float(match[1] if match.re.groups else match[0])
    except (TypeError, ValueError):
        return False
    return OPERATORS[rule.operator](number, threshold)
