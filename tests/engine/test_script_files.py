"""What tells the modules of a script."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from pliant.engine import script_files


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
