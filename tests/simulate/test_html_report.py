"""The page shows what was simulated, and needs nothing from anywhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from tests.simulate.worlds import changes, cluster, job, simulated

from pliant.simulate import html_report
from pliant.simulate.measures import measured
from pliant.simulate.resize_costs import IN_PLACE, STATIC


class Elements(HTMLParser):
    """What a page consists of; it must be balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(advice: str = "") -> tuple[str, Elements]:
    nodes = [{"name": "all", "count": 4, "pricePerDeviceHour": 2}]
    spec = cluster(4, nodes=nodes, inference=[{"name": "chat", "load": "x"}])
    jobs = [
        job("<pre>", 4000.0, 2, min_devices=1, max_devices=4),
        *(job(f"j{n}", 100.0, arrival_s=100.0 * n) for n in range(12)),
    ]
    load = {"chat": changes((0.0, 1), (900.0, 0))}
    runs = [simulated(jobs, spec, way, load=load) for way in (IN_PLACE, STATIC)]
    text = html_report.page(runs, [measured(one) for one in runs], command="x <y>", advice=advice)
    elements = Elements()
    elements.feed(text)
    assert elements.open == []
    return text, elements


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    text, elements = page()

    tags = {tag for tag, _ in elements.seen}
    assert not tags & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"https?:|url\(|@import|src=|href=", text)


def test_names_are_shown_as_text() -> None:
    text, _ = page()

    assert "&lt;pre&gt;" in text
    assert "x &lt;y&gt;" in text


def test_each_simulation_has_its_pictures_and_a_sweep_its_advice() -> None:
    assert page()[0].count("<svg") == 2 * 2
    assert "<p>Recommended: a.</p>" in page("Recommended: a.")[0]


def test_layers_of_a_picture_add_up_to_what_there_was() -> None:
    run = simulated([job("one", 590.0, 2, start_s=10.0)], cluster(4), is_recording=True)

    bands, width_s, _ = html_report._use(run)
    sizes, share_s, _ = html_report._allocation(run)

    assert sum(sum(band.values) for band in bands) * width_s == pytest.approx(4 * 600.0)
    assert sum(sum(band.values) for band in sizes) * share_s == pytest.approx(2 * 590.0)


def test_no_column_of_a_picture_has_more_than_there_was() -> None:
    """A change at the edge of a column once counted twice in the column before it."""
    for end_s in map(float, range(100, 400)):
        width_s = end_s / html_report.COLUMNS
        sizes = [(column * width_s, 2 - column % 2) for column in range(html_report.COLUMNS)]

        drawn = html_report._means(sizes, width_s, end_s)

        assert drawn == pytest.approx([float(size) for _, size in sizes])
        assert max(html_report._means([(0.0, 3)], width_s, end_s)) == pytest.approx(3.0)


def test_a_page_can_be_read_in_the_dark_and_on_a_narrow_screen() -> None:
    text, _ = page()

    assert "@media(prefers-color-scheme:dark)" in text
    assert 'name="viewport"' in text
    assert "font-size=" not in text, "of pictures, the page says how large their text is"
    assert "min-width:640px" in text
