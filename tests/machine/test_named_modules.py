"""A module that is run by name is found where python finds it, and nothing of it runs meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pliant.machine.named_modules import file_of, module_of, name_of

FILES = (
    "alone.py",
    "package/__init__.py",
    "package/train.py",
    "package/inner/__init__.py",
    "package/inner/__main__.py",
    "namespace/deep/train.py",
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("print(__file__)")
    return tmp_path


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("alone", "alone.py"),
        ("package.train", "package/train.py"),
        ("package.inner", "package/inner/__main__.py"),
        ("package.inner.__main__", "package/inner/__main__.py"),
        ("namespace.deep.train", "namespace/deep/train.py"),
        ("package", None),
        ("package.gone", None),
        ("alone.train", None),
        ("namespace.deep", None),
        ("gone", None),
        ("", None),
        (".", None),
        ("package/train.py", None),
    ],
)
def test_what_python_runs_is_found(place: Path, module: str, file: str | None) -> None:
    plain = subprocess.run(
        [sys.executable, "-m", module], cwd=place, capture_output=True, text=True, check=False
    )
    found = file_of(("-m", module, "--lr", "1"), place)

    assert found == (None if file is None else place / file)
    assert (plain.returncode == 0) == (file is not None)
    assert found is None or plain.stdout.splitlines()[-1:] == [str(found)]


def test_one_that_is_installed_is_found(place: Path) -> None:
    found = file_of(("-m", "pytest"), place)

    assert found is not None
    assert found.parts[-2:] == ("pytest", "__main__.py")


def test_a_script_is_a_file_and_nothing_else(place: Path) -> None:
    assert file_of(("package/train.py", "-m", "x"), place) == place / "package/train.py"
    assert file_of(("package",), place) is None
    assert file_of(("-m",), place) is None
    assert module_of(("train.py", "-m", "x")) is None


def test_what_is_run_is_called_by_its_last_name() -> None:
    names = [name_of(one) for one in (("a/train.py",), ("-m", "a.train"), ("-m", "a"))]

    assert names == ["train", "train", "a"]
