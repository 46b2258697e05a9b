"""Where a session stands that a script did not come to."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from pliant.engine import script_files


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import pliant\npliant.Session()\n", 2),
        ("import pliant as p\nwith p.Session() as s:\n    pass\n", 2),
        ("from pliant import Session as S\n\nS(model=1)\n", 3),
        ("import pliant, requests\nrequests.Session()\n", None),
        (
            "import requests\nfrom sqlalchemy.orm import Session\nSession()\nrequests.Session()\n",
            None,
        ),
        ("import pliant\nfrom requests import Session\nSession()\npliant.Session()\n", 4),
    ],
)
def test_only_a_session_of_pliant_is_one_that_a_script_did_not_come_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, line: int | None
) -> None:
    path = tmp_path / "fit.py"
    path.write_text(textwrap.dedent(text))
    monkeypatch.setattr(script_files, "own_files", lambda: [path])

    said = script_files.unreached_session()

    assert said.startswith(f". One is made at {path}, line {line}, but") if line else said == ""


def test_what_a_script_has_imported_is_told_by_what_is_in_the_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load(name: str, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        module = ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)

    load("losses", tmp_path / "losses.py", "SCALE = 1")
    load("sitecustomize", tmp_path / "sitecustomize.py", "")
    load("kit", tmp_path / "site-packages/kit/__init__.py", "")
    load("kit.compiled", tmp_path / "cache/compiled.py", "made while it runs")
    before = script_files.own_modules()
    load("losses", tmp_path / "again/losses.py", "SCALE = 1")
    moved = script_files.own_modules()
    load("losses", tmp_path / "losses.py", "SCALE = 2")
    edited = script_files.own_modules()

    assert {"sitecustomize", "kit", "kit.compiled", "__main__"}.isdisjoint(before)
    assert before["losses"] == moved["losses"] != edited["losses"]
