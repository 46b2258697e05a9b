"""A module is found where python finds it, or it is said what to install."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.machine.named_modules import (
    ENGINE_PACKAGES,
    file_of,
    module_of,
    name_of,
    require_engine,
)

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


HIDDEN = f"import sys; sys.modules.update(dict.fromkeys({ENGINE_PACKAGES!r}))\n"


def _without_engine(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDDEN + code],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env={"HOME": str(directory), "PATH": ""},
    )


@pytest.mark.parametrize(
    "words",
    [
        ["run", "train.py"],
        ["run", "--pool", "train.py"],
        ["run", "--detach", "train.py"],
        ["resume"],
        ["agent", "--join", "127.0.0.1:1", "--token-file", "token"],
        ["demo"],
    ],
    ids=" ".join,
)
def test_the_first_line_is_what_to_install_and_nothing_is_written(
    tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "train.py").touch()

    done = _without_engine(f"from pliant.cli.main import main; main({words!r})", tmp_path)

    who = f"pliant {words[0]}"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"pliant: {who} needs torch: pip install 'pliant[engine]'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_script_that_is_started_with_python_is_told_so_too(tmp_path: Path) -> None:
    done = _without_engine("import pliant; pliant.seed(1)", tmp_path)

    last = done.stderr.splitlines()[-1]
    assert last == "ImportError: pliant.seed needs numpy: pip install 'pliant[engine]'"


def test_a_coordinator_serves_without_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = ["coordinator", "--port", str(_free_port()), "--out", "out", "train.py"]
    code = f"from pliant.cli.main import main; main({words!r})"
    with subprocess.Popen(
        [sys.executable, "-c", HIDDEN + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": ""},
    ) as program:
        assert program.stdout is not None
        first = program.stdout.readline()  # it serves
        program.send_signal(signal.SIGINT)
        rest, _ = program.communicate(timeout=30)

    assert program.returncode == 3, first + rest
    assert "Traceback" not in first + rest


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_where_all_of_it_is_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    require_engine("pliant run")

    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ConfigError, match="needs xxhash: pip install"):
        require_engine("pliant run")
