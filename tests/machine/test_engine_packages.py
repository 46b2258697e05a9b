"""Without what trains, whoever wants to train is told what to install, before anything begins."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.machine.engine_packages import ENGINE_PACKAGES, require_engine

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
