"""What docs/explanation/allocation.md shows is what a pool does."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "allocation.md"


def test_the_example_of_the_page_is_what_happens() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)

    assert tried > 10
    assert failed == 0
