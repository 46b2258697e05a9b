"""A wheel in an empty environment, as its users install it: with pip, with uv and with pipx.

What is installed comes from an index; behind ``make frameworks``, as the default tests need none.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
UNREACHABLE = ("No matching distribution", "NewConnectionError", "Failed to fetch", "dns error")
INSTALL_S = 400.0

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT],
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("pliant-*.whl")
    return built


def _fetch(*words: object, **environment: str) -> None:
    """Run an installer; a machine that reaches no index skips the test."""
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_S,
        env={**os.environ, **environment},
    )
    said = done.stdout + done.stderr
    if done.returncode != 0 and any(each in said for each in UNREACHABLE):
        pytest.skip(f"no index can be reached: {said.splitlines()[-1]}")
    assert done.returncode == 0, said


def _installer(name: str) -> str:
    """Return where it is: in the environment of the tests, or where its user has it."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name, path=os.pathsep.join((beside, os.environ["PATH"])))
    return found or pytest.skip(f"{name} is not installed")


def _with_pip(wheel: Path, place: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", place / "env"], check=True)
    _fetch(place / "env/bin/pip", "install", "-q", wheel)
    return place / "env/bin"


def _with_uv(wheel: Path, place: Path) -> Path:
    uv = _installer("uv")
    _fetch(uv, "venv", "--python", sys.executable, place / "env")
    _fetch(uv, "pip", "install", "--python", place / "env/bin/python", wheel)
    return place / "env/bin"


def _with_pipx(wheel: Path, place: Path) -> Path:
    pipx = _installer("pipx")
    homes = {"PIPX_HOME": str(place / "home"), "PIPX_BIN_DIR": str(place / "bin")}
    _fetch(pipx, "install", "--python", sys.executable, wheel, **homes)
    return place / "bin"


@pytest.mark.parametrize("install", [_with_pip, _with_uv, _with_pipx], ids=["pip", "uv", "pipx"])
def test_the_base_is_the_command_line_and_the_coordinator(
    wheel: Path, tmp_path: Path, install: Callable[[Path, Path], Path]
) -> None:
    binaries = install(wheel, tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    plain = {"HOME": str(tmp_path), "PATH": f"{binaries}:/usr/bin:/bin"}

    def pliant(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [binaries / "pliant", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=tmp_path,
            env=plain,
        )

    helped, refused = pliant("--help"), pliant("run", "train.py")
    looked = pliant("ls") if " ls " in helped.stdout else pliant("config")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "coordinator" in helped.stdout
    assert looked.returncode == 0, looked.stderr
    assert pliant("docs", "run-a-job").stdout.startswith("# Run a job")
    assert refused.returncode == 2
    assert refused.stderr == "pliant: pliant run needs torch: pip install 'pliant[engine]'\n"

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with subprocess.Popen(
        [binaries / "pliant", "coordinator", "--port", port, "--out", "out", "train.py"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        env=plain,
    ) as program:
        assert program.stderr is not None
        assert program.stderr.readline().startswith(
            "waiting for agents: pliant agent --join 127.0.0.1:"
        )
        stopped = pliant("stop")
        program.communicate(timeout=60)

    assert stopped.returncode == 0, stopped.stderr
    assert program.returncode == 3
