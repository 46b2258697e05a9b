"""Seeded generators: job mixes and spot churn.

Owns the distributions and how they are asked for, ``mix:jobs=1000,days=14,seed=1``, wherever a file
could stand.  The same words give the same jobs or changes, whatever the machine.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from pliant.core.errors import ConfigError
from pliant.spec.pool import MOST_DEVICES
from pliant.spec.trace import Change
from pliant.spec.workload import WorkloadJob

DAY_S = 86_400.0

MEDIAN_S = 1144.0
MEAN_S = 13_136.0
"""Of how long a job runs: the figures published for Philly (Jeon et al., ATC 2019), as they are
quoted most often."""

LONGEST_S = 30 * DAY_S
"""No job runs for longer."""

SPREAD = 2.2376265858090023
"""Sigma of the log-normal with this median that has this mean when it ends at the longest."""

ONE_SHARE, EIGHT_SHARE = 0.93, 0.023
"""Shares of jobs on one accelerator, and on eight or more."""

EIGHTS = ((8, 0.7), (16, 0.2), (32, 0.1))
"""Of those with eight or more, how many have how many; the published figures do not say."""

FEW = ((2, 0.6), (4, 0.4))


MOST_LOSSES = 1_000_000
"""Of nodes, in one generated trace: some hundred MB."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number that a generator takes."""

    default: float
    least: float = 0.0
    most: float = 1e9
    is_whole: bool = False


_SEED = Number(0, is_whole=True)

MIX = {
    "jobs": Number(1000, least=1, most=1_000_000, is_whole=True),
    "days": Number(14, least=0.001, most=10_000),
    "elastic": Number(0.1, most=1),
    "seed": _SEED,
}
SPOT = {
    "nodes": Number(32, least=1, most=MOST_DEVICES, is_whole=True),
    "days": Number(1, least=0.001, most=10_000),
    "lossesPerHour": Number(2, most=3600),
    "burst": Number(3, least=1, most=MOST_DEVICES),
    "awayInSeconds": Number(1200, least=1),
    "seed": _SEED,
}


def is_generator(text: str) -> bool:
    """Whether this asks for a generator, and names no file."""
    return text.partition(":")[0] in ("mix", "spot") and ":" in text


def mix(text: str) -> list[WorkloadJob]:
    """Return jobs as on a shared cluster: ``mix:jobs=1000,days=14,elastic=0.1,seed=1``.

    Arrivals follow the working day: at night they are a third as frequent as at noon.
    """
    given = _numbers(text, MIX)
    same = [given[key] for key in ("jobs", "days", "seed")]  # with another share the same jobs
    draw = random.Random(f"mix {same}")  # noqa: S311 - to be the same every time
    count = int(given["jobs"])
    arrivals = sorted(_arrival(draw, given["days"]) for _ in range(count))
    return [
        _job(draw, number, at_s, elastic=given["elastic"])
        for number, at_s in enumerate(arrivals, 1)
    ]


def spot(text: str) -> list[Change]:
    """Return nodes that come and go: ``spot:nodes=32,lossesPerHour=2,burst=3,seed=1``.

    Losses come at random and take several nodes at once (``burst`` in the mean); each node comes
    back by itself after a while (``awayInSeconds`` in the mean).
    """
    given = _numbers(text, SPOT)
    draw = random.Random(f"spot {given}")  # noqa: S311 - to be the same every time
    end_s, rate = given["days"] * DAY_S, given["lossesPerHour"] / 3600
    expected = end_s * rate * given["burst"]
    if expected > MOST_LOSSES:
        raise ConfigError(
            f"spot: {expected:.0f} nodes would be lost; at most {MOST_LOSSES} can be generated, so"
            " give fewer days, lossesPerHour or burst"
        )
    there, at_s = int(given["nodes"]), 0.0
    moves: list[tuple[float, int]] = []
    while rate and (at_s := at_s + draw.expovariate(rate)) < end_s:
        count = 1
        while draw.random() < 1 - 1 / given["burst"]:
            count += 1
        moves.append((at_s, -count))
        moves += [(at_s + draw.expovariate(1 / given["awayInSeconds"]), 1) for _ in range(count)]
    changes = [Change(at_s=0.0, devices=there)]
    missing = 0  # bursts may take more than there are
    for moment_s, move in sorted(moves):
        if moment_s >= end_s:
            break
        missing -= move
        left = max(0, there - missing)
        if left != changes[-1].devices:
            changes.append(Change(at_s=round(moment_s, 3), devices=left))
    return changes


def _numbers(text: str, known: dict[str, Number]) -> dict[str, float]:
    """Read ``NAME:key=value,...``."""
    name, _, rest = text.partition(":")
    given: dict[str, float] = {}
    for word in filter(None, rest.split(",")):
        key, _, value = word.partition("=")
        if key not in known:
            raise ConfigError(f"{name} takes no {key[:40]!r}; it takes {', '.join(known)}")
        if key in given:
            raise ConfigError(f"{name}: {key} is given twice")
        given[key] = _number(name, key, value, known[key])
    return {key: given.get(key, one.default) for key, one in known.items()}


def _number(name: str, key: str, text: str, known: Number) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    is_fit = known.least <= value <= known.most and (value == int(value) or not known.is_whole)
    if not is_fit:
        kind = "a whole number" if known.is_whole else "a number"
        raise ConfigError(
            f"{name}: {key}={text[:40]} is not {kind} from {known.least:g} to {known.most:g}"
        )
    return value


def _arrival(draw: random.Random, days: float) -> float:
    """Return a moment; more often by day than by night."""
    while True:
        at_s = draw.random() * days * DAY_S
        noon = math.cos((at_s / DAY_S - 0.5) * 2 * math.pi)
        if draw.random() < (2 + noon) / 3:
            return round(at_s, 3)


def _job(draw: random.Random, number: int, at_s: float, *, elastic: float) -> WorkloadJob:
    devices = _devices(draw)
    work_s = min(LONGEST_S, math.exp(draw.gauss(math.log(MEDIAN_S), SPREAD)))
    is_elastic = draw.random() < elastic
    return WorkloadJob(
        name=f"j{number}",
        arrival_s=at_s,
        work_s=round(max(1.0, work_s), 3),
        devices=devices,
        min_devices=max(1, devices // 2) if is_elastic else devices,
        max_devices=4 * devices if is_elastic else devices,
        num_slots=16 * devices if is_elastic else None,
    )


def _devices(draw: random.Random) -> int:
    where = draw.random()
    if where < ONE_SHARE:
        return 1
    sizes = EIGHTS if where < ONE_SHARE + EIGHT_SHARE else FEW
    at = draw.random()
    for size, share in sizes:
        at -= share
        if at < 0:
            return size
    return sizes[-1][0]
