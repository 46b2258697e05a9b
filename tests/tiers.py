"""Three tiers of tests: ``make test``, ``make verify``, and those that one asks for by name.

``tests/durations.txt`` has what every test took when ``make durations`` ran last.  A test over
``SLOW_S`` is ``slow``: ``make verify`` runs it, ``make test`` does not.  Excepted are the rules of
the house and one test of each mechanism (``tests/mechanisms.txt``); of one that has several
cases the quickest.  What is not in the file yet runs in both tiers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
RECORD = TESTS / "durations.txt"
MECHANISMS = TESTS / "mechanisms.txt"

SLOW_S = 2.0
"""Seconds, on two quiet cores."""

RECORDED_S = 0.5
"""What takes less needs no line."""

ALWAYS = ("tests/test_house.py", "tests/test_package.py", "tests/test_docs.py")
"""Rules that a change breaks most often."""


def read_durations(path: Path = RECORD) -> dict[str, float]:
    """Return what each recorded test took, seconds by node id; nothing if there is no record."""
    if not path.is_file():
        return {}
    lines = [line.split(maxsplit=1) for line in path.read_text().splitlines() if line[:1] != "#"]
    return {node_id: float(seconds) for seconds, node_id in lines}


def tests_of_mechanisms() -> dict[str, str]:
    """Return the node id of a test, without its cases, by the mechanism that it shows."""
    lines = [line.split(": ") for line in MECHANISMS.read_text().splitlines() if line[:1] != "#"]
    return {mechanism: f"tests/{test}" for mechanism, test in lines}


def write_durations(took_s: Mapping[str, float], path: Path = RECORD) -> None:
    """Write what each test took, seconds by node id, in the order of their files."""
    kept = sorted((node, seconds) for node, seconds in took_s.items() if seconds >= RECORDED_S)
    lines = [
        "# seconds and test; `make durations` writes it",
        *(f"{s:.1f} {node}" for node, s in kept),
    ]
    path.write_text("\n".join(lines) + "\n")


def slow_tests(node_ids: Iterable[str], took_s: Mapping[str, float]) -> set[str]:
    """Return which of these tests only ``make verify`` runs."""
    shown = set(tests_of_mechanisms().values())
    slow, cases = set(), defaultdict(list)
    for node_id in node_ids:
        if (test := node_id.partition("[")[0]) in shown:
            cases[test].append(node_id)
        elif took_s.get(node_id, 0.0) > SLOW_S and not node_id.startswith(ALWAYS):
            slow.add(node_id)
    for several in cases.values():
        slow |= {node for node in several if took_s.get(node, 0.0) > SLOW_S}
        slow.discard(min(several, key=lambda node: (took_s.get(node, 0.0), node)))
    return slow


class DurationsTaken:
    """Adds up what the tests of this run take, and writes it at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._took_s: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took_s[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        write_durations(self._took_s, self._path)
