"""What the pages say is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())

    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]

    assert missing == []


def test_the_script_of_the_readme_is_the_example() -> None:
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    example = (ROOT / "examples" / "minimal.py").read_text()

    def code(text: str) -> list[str]:
        lines = (line.partition("#")[0].rstrip() for line in text.splitlines())
        return [line for line in lines if line and not line.startswith('"""')]

    assert code(script) == code(example)


def test_every_room_is_on_the_map() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "pliant").glob("*/__init__.py")}

    mapped = set(re.findall(r"^\| `(\w+)/`", (ROOT / "docs/architecture.md").read_text(), re.M))

    assert mapped == rooms


def test_every_fault_point_is_in_the_how_to_page() -> None:
    from pliant.testing.faults import POINTS

    text = (ROOT / "docs/howto/test-against-faults.md").read_text()

    assert [point for point in sorted(POINTS) if f"`{point}`" not in text] == []


def test_the_ways_through_the_rooms_and_the_places_to_open_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    source = ROOT / "src" / "pliant"

    steps = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", text, re.MULTILINE)
    lost = [step for step in steps if f"def {step[1]}(" not in (source / step[0]).read_text()]
    places = re.findall(
        r"`((?:core|wire|cli|spec|engine|checkpoint|run|pool|observe|machine|http|coordinator|agent)/[\w/]+\.py)`",
        text,
    )

    assert len(steps) > 20
    assert lost == []
    assert [place for place in places if not (source / place).is_file()] == []
