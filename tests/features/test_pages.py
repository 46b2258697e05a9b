"""The committed pages are what the tables say."""

from __future__ import annotations

import pytest
from tools import make_pages


@pytest.mark.parametrize("name", sorted(make_pages.PAGES))
def test_the_page_is_what_the_tool_writes(name: str) -> None:
    written = (make_pages.ROOT / name).read_text()

    assert written == make_pages.PAGES[name](), "run python -m tools.make_pages"
