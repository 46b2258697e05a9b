"""The pages that refusals name are reached where pliant is installed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pliant.cli.main import code_of

SOURCES = Path(__file__).parents[2] / "src" / "pliant"
NAMED = re.compile(r"pliant docs ([a-z-]+)")


def sentences() -> list[str]:
    """Return every text of the sources but docstrings."""
    found = []
    for path in SOURCES.rglob("*.py"):
        tree = ast.parse(path.read_text())
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docs
        ]
    return found


def test_every_page_that_a_sentence_names_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    said = sentences()
    named = {name for text in said for name in NAMED.findall(text)}

    assert named >= {"bring-your-script"}
    for name in named:
        assert code_of(["docs", name]) == 0
        assert capsys.readouterr().out.startswith("# ")
    assert [text for text in said if re.search(r"docs/\S+\.md", text)] == []


def test_without_a_name_all_pages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["docs"]) == 0
    assert {"run-a-job", "glossary"} <= set(capsys.readouterr().out.split())
    assert code_of(["docs", "nothing"]) == 2
