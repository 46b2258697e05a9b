"""Is what a command printed what the page shows?

The same words on the same lines, except for what is never twice the same, which may be any other
of its kind:

    times, dates, durations     15:36:50   2026-11-21   1:28 min   0.861 s
    speeds and losses           13.3 samples/s   samples/s 13.3   loss 3.965
    names that are drawn        claim-25296   process 4711   127.0.0.1:43210
    spaces and rules            any number of them, and bars at the ends of a line
    where a row is broken       a line between bars that begins far to the right goes on with
                                the line above

and "..." stands for anything, on a line or, alone, for any lines.
"""

from __future__ import annotations

import re

_VARIES = (
    (r"\d{4}-\d\d-\d\d", "<date>"),
    (r"\b\d\d:\d\d:\d\d\b", "<time>"),
    (r"\b\d+(:\d\d)?(\.\d+)? ?(ms|s|min|h)\b", "<duration>"),
    (r"\b(samples|steps)/s \d+(\.\d+)?", r"\1/s <speed>"),
    (r"\b\d+(\.\d+)? (samples|steps)/s", r"<speed> \2/s"),
    (r"\bloss -?\d+(\.\d+)?(e[+-]?\d+)?", "loss <loss>"),
    (r"\bclaim-\d+", "claim-<id>"),
    (r"\bprocess \d+", "process <id>"),
    (r"\b127\.0\.0\.1:\d+", "127.0.0.1:<port>"),
    (r"[─━╸╺]+", "─"),
    (r"\s+", " "),
)

ANYTHING = "..."

_GOES_ON = re.compile(r"│ {19,}[^ │]")
"""Begins a line of a table with bars that holds the rest of the last column: how wide that is
depends on what varies in the others."""


def normalised(line: str) -> str:
    """Return a line with what varies named instead."""
    for pattern, name in _VARIES:
        line = re.sub(pattern, name, line)
    return line.strip(" │")


def is_shown(page: list[str], printed: list[str]) -> bool:
    """Whether the lines of the page are what was printed."""
    return _match(list(map(normalised, _rows(page))), list(map(normalised, _rows(printed))))


def _rows(lines: list[str]) -> list[str]:
    """Return the lines that are not empty, each with those that go on with it."""
    rows: list[str] = []
    for line in lines:
        if rows and _GOES_ON.match(line):
            rows[-1] = f"{rows[-1].rstrip(' │')} {line.strip(' │')}"
        elif line.strip():
            rows.append(line)
    return rows


def _match(wanted: list[str], found: list[str]) -> bool:
    if not wanted:
        return not found
    first, rest = wanted[0], wanted[1:]
    if first == ANYTHING:
        return any(_match(rest, found[skipped:]) for skipped in range(len(found) + 1))
    return bool(found) and _is_line(first, found[0]) and _match(rest, found[1:])


def _is_line(wanted: str, found: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, wanted.split(ANYTHING))), found) is not None
