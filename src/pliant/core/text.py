"""Words for people: counts, lists, durations, names of workers, and text that others wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# --- counts and lists


def counted(number: object, noun: str = "device") -> str:
    """Return ``number`` with its noun.

    >>> counted(1), counted(2, "replica")
    ('1 device', '2 replicas')
    """
    plural = "es" if noun.endswith("batch") else "s"
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{plural}"


def in_words(names: Sequence[str], most: int | None = None) -> str:
    """Return all of them in one phrase, or the first and how many more there are.

    >>> in_words(["a"]), in_words(["a", "b", "c"]), in_words(["a", "b", "c"], 1)
    ('a', 'a, b and c', 'a and 2 more')
    """
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


# --- durations: ``90s``, ``1.5m``, ``10min``, ``2h``

MOST_S = 1e9
"""Any time or duration, in seconds: 31 years, so that the moment can be shown as a date."""

MOST_AT = 1e11
"""The last moment that can be shown, in seconds since 1970: in the year 5138."""

_UNITS_S = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds_of(text: str) -> float | None:
    """Return a duration in seconds, or None if it is none; a bare number has no unit and is none.

    >>> seconds_of("1.5m")
    90.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip())
    return float(found[1]) * _UNITS_S[found[2]] if found and found[2] in _UNITS_S else None


def is_moment(value: object) -> bool:
    """Whether this is a moment in seconds since 1970, or since the machine was started."""
    return isinstance(value, int | float) and 0 <= value <= MOST_AT


# --- text that others wrote: what would steer a terminal is shown and not obeyed

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, but for tab and newline
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # other lines, other directions
    "\ud800-\udfff]"  # halves of a character: no output takes them
)


def printable(text: str) -> str:
    r"""Return the text with control characters written out, its lines and tabs as they are.

    >>> printable("a\x1b[31mred\r")
    'a\\x1b[31mred\\r'
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def in_one_line(text: str) -> str:
    r"""Return the same without its line breaks, so that it cannot pass for a line of ours.

    >>> in_one_line("boom\n12:00:00  the job ends")
    'boom 12:00:00  the job ends'
    """
    return printable(text).replace("\n", " ").strip()


def line_left(text: str) -> str:
    r"""Return, printable, what a terminal leaves of a line that was written over, as progress is.

    >>> line_left(" 10%\r 90%\r100%")
    '100%'
    """
    return printable(text.rstrip("\r").rpartition("\r")[2])


def last_line(text: str) -> str:
    r"""Return what a program said last; empty: nothing.

    >>> last_line("12:00:00  begins\npliant: no such file\n\n")
    'no such file'
    """
    return text.strip().rpartition("\n")[2].strip().removeprefix("pliant: ")


def printable_values(value: Any) -> Any:
    """Return a value made of what JSON has, with every text in it printable."""
    match value:
        case str():
            return printable(value)
        case dict():
            return {printable_values(key): printable_values(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [printable_values(item) for item in value]
        case _:
            return value


# --- names of workers: ``r3``, or ``r3.1`` of several


def worker_name(replica: str, worker: int | None) -> str:
    """Name a worker by its local rank in its replica; None: it is the only one."""
    return replica if worker is None else f"{replica}.{worker}"


def replica_of(name: str) -> str:
    """Return the replica of a worker by its name."""
    return name.partition(".")[0]


def local_rank_of(name: str) -> int | None:
    """Return the local rank of a worker in its replica by its name; None: it is the only one."""
    rank = name.partition(".")[2]
    return int(rank) if rank else None


def is_follower(name: str) -> bool:
    """Whether a worker is one of several, and not the one that speaks for its replica."""
    return name.partition(".")[2] not in ("", "0")


def order_of(name: str) -> tuple[tuple[int, str], ...]:
    """Return what names of workers are sorted by: ``r2.10`` comes after ``r2.9``."""
    return tuple((len(part), part) for part in name.split("."))
