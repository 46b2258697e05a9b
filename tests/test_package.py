"""The package as its users get it: light to import, complete in a wheel, buildable anywhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_import_pliant_does_not_import_torch() -> None:
    code = "import pliant, sys; assert 'torch' not in sys.modules; print(pliant.__all__)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == (
        "['Checkpoint', 'ConfigError', 'ElasticDataLoader', 'PliantError', 'Session', 'State', "
        "'UsageError', 'device', 'elastic_event', 'load_checkpoint', 'mesh', 'once', 'run_dir', "
        "'save_checkpoint', 'seed']"
    )


def test_completion_and_help_show_the_public_names_before_anything_is_imported() -> None:
    code = (
        "import pliant, sys; names = [n for n in dir(pliant) if n[0] != '_']; "
        "assert 'torch' not in sys.modules; assert names == sorted(pliant.__all__), names; "
        "help(pliant)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "class Session(" in done.stdout
    assert "Trains one model; alone or together with replicas that come and go." in done.stdout
    assert "Keeps a run on a directory or an object store" in done.stdout
    annotated = done.stdout.replace("'", "")  # before Python 3.14 they are in quotation marks
    assert "seed(value: int) -> None" in annotated


@pytest.mark.timeout(120)
def test_a_copy_without_git_builds_a_wheel_that_holds_every_module_and_page(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", source / "docs")

    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, source],
        check=True,
        capture_output=True,
    )

    (wheel,) = tmp_path.glob("pliant-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("pliant/")}
    written = {
        str(path.relative_to(source / "src"))
        for path in (source / "src").rglob("*")
        if path.is_file()
    }
    pages = (path for path in (source / "docs").rglob("*") if path.is_file())
    written |= {f"pliant/{path.relative_to(source)}" for path in pages}
    assert packed == written
