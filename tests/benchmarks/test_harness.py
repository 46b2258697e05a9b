"""Result pages follow their template, and the arithmetic of the harness is right."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import harness

PAGES = sorted(harness.RESULTS.glob("*_*_????-??-??.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_result_page_follows_the_template(path: Path) -> None:
    assert harness.missing_parts(path.read_text()) == []


def test_every_result_has_a_dated_name() -> None:
    assert sorted(harness.RESULTS.glob("*.md")) == PAGES


def a_page(raw: dict[str, object] | None = None) -> harness.Page:
    figure = harness.Figure(name="join", unit="s", raw=(0.3, 0.1, 0.2), target="< 1", goal="< 0.3")
    return harness.Page(
        theme="resize",
        summary="One sentence.",
        method="How.",
        figures=(figure,),
        command="python -m benchmarks.resize",
        load=(0.1, 2.0),
        raw=raw or {},
    )


def test_a_rendered_page_follows_the_template() -> None:
    page = a_page(raw={"steps": [1.23456789, 2]}).render(now=datetime(2026, 1, 2, tzinfo=UTC))

    assert harness.missing_parts(page) == []
    assert "| join | 0.1 | **0.2** s | 0.3 | 3 | < 1 | < 0.3 |" in page
    assert "1.2346" in page


def test_a_page_without_its_raw_numbers_is_noticed() -> None:
    page = a_page().render(now=datetime(2026, 1, 2, tzinfo=UTC)).replace("```json", "```")

    assert len(harness.missing_parts(page)) == 2


def test_a_figure_without_values_says_so_instead_of_failing() -> None:
    assert "not measured" in harness.Figure(name="join", unit="s", raw=()).row()


def test_tails_of_several_processes_come_back_in_order_of_time(tmp_path: Path) -> None:
    log = harness.TailLog(tmp_path)
    log.write(step=1, at=2.0, size=2, name="r1")
    log.write(step=0, at=1.0, size=2, name="r1")
    with next(tmp_path.glob("*.tails")).open("a") as torn:
        torn.write('{"step": 2, "at"')

    assert [tail.step for tail in harness.read_tails(tmp_path)] == [0, 1]
