"""One world simulated with several values of one setting: which is the best, and by what evidence.

Owns the rule by which a value is recommended.  Knows nothing of what the setting does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pliant.core.errors import ConfigError
from pliant.simulate.measures import Measures
from pliant.simulate.report import duration

EQUAL = 0.01
"""A difference of completion times below this share is taken for none."""


def read_sweep(text: str) -> tuple[str, list[str]]:
    """Read ``scalingTimeoutInSeconds=0,30,120``: a field, and at least two values.

    Raises:
        ConfigError: it is something else.
    """
    key, equals, rest = text.partition("=")
    values = [value.strip() for value in rest.split(",") if value.strip()]
    if not key or not equals or len(values) < 2 or len(set(values)) < len(values):
        raise ConfigError(
            f"--sweep {text!r} is not KEY=VALUE,VALUE,... with two values or more that differ, such"
            " as scalingTimeoutInSeconds=0,30,120"
        )
    return key, values


def recommended(columns: Sequence[Measures]) -> str:
    """Say which value is the best, and why.

    First those with which most jobs end; of these the ones whose elastic jobs (or, without any, all
    jobs) are done soonest, up to ``EQUAL``; of these the one with the fewest resizes.
    """
    fewest = min(one.unfinished for one in columns)
    whole = [one for one in columns if one.unfinished == fewest]
    is_of_all = any(math.isnan(one.elastic_completion_mean_s) for one in whole)

    def took_s(one: Measures) -> float:
        return one.completion_mean_s if is_of_all else one.elastic_completion_mean_s

    soonest_s = min(map(took_s, whole))
    if math.isnan(soonest_s):
        return "No job has ended, so that nothing can be recommended."
    near = [one for one in whole if took_s(one) <= soonest_s * (1 + EQUAL)]
    best = min(near, key=lambda one: one.resizes)
    which = "all jobs" if is_of_all else "the elastic jobs"
    said = (
        f"Recommended: {best.way}. With it {which} take {duration(took_s(best))} from arrival to "
        f"end in the mean, with {best.resizes} resizes"
    )
    told = []
    for one in columns:
        if one is best:
            continue
        took = f"{duration(took_s(one))} ({took_s(one) / took_s(best) - 1:+.1%})"
        took = "none of them has ended" if math.isnan(took_s(one)) else took
        left = f", {one.unfinished} jobs not finished" if one.unfinished > fewest else ""
        told.append(f"{one.way}: {took}, {one.resizes} resizes{left}")
    much = " Times differ by less than 1 %: it hardly matters here."
    much = much if len(near) == len(columns) else ""
    return f"{said}; {'; '.join(told)}.{much} This is what one world has shown, not a law."
