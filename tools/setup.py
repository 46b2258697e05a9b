"""Set up ``.venv`` for this checkout: check the machine, then install the tested versions.

    python tools/setup.py                                   .venv with the tested versions
    python tools/setup.py --torch 2.11.0 --venv .venv-old   another torch, whatever it needs

Standard library only; run by ``make``.  Each check that fails prints one sentence and exits 2.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
NEEDS_GB = 8
"""Disk space for a new ``.venv``: 5 GB installed, plus what pip unpacks on the way."""

TOLD_EVERY_S = 20.0
"""Between two lines about what pip has written, in seconds."""

_GOES_WITH_TORCH = re.compile(r"(torch|torchvision|triton|nvidia-[\w-]+|cuda-[\w-]+)==")


def problem(venv: Path) -> str | None:
    """Return what keeps this machine from being set up, as one sentence, or None."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this check is for people whose Python is older
        return (
            f"pliant needs Python 3.11 or newer and this is {platform.python_version()}: "
            "install a newer one and run `make PYTHON=/path/to/python3.11`."
        )
    if sys.platform != "linux":
        return f"pliant runs on Linux and this is {platform.system()}: use a Linux machine."
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        return (
            "this Python cannot make virtual environments (venv or ensurepip is missing): "
            "install the package python3-venv."
        )
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if not venv.exists() and free_gb < NEEDS_GB:
        return f"setting up needs {NEEDS_GB} GB of disk and {ROOT} has {free_gb:.1f} GB free."
    return None


def constraints_with(torch: str) -> str:
    """Return the tested versions, but another torch, and no word on what that brings along."""
    kept = [
        each for each in CONSTRAINTS.read_text().splitlines() if not _GOES_WITH_TORCH.match(each)
    ]
    return "\n".join([*kept, f"torch=={torch}", ""])


def install(command: list[str]) -> None:
    """Run pip, which says nothing meanwhile; say from time to time how much is on the disk.

    Raises:
        CalledProcessError: it failed.
    """
    began_s, free = time.monotonic(), shutil.disk_usage(ROOT).free
    with subprocess.Popen(command, cwd=ROOT) as process:
        while True:
            try:
                code = process.wait(TOLD_EVERY_S)
            except subprocess.TimeoutExpired:
                written_gb = max(0.0, (free - shutil.disk_usage(ROOT).free) / 1e9)
                spent_s = int(time.monotonic() - began_s)
                spent = f"{spent_s // 60}:{spent_s % 60:02} min"
                print(f"setup: {spent}, {written_gb:.1f} GB written, pip goes on", flush=True)
                continue
            break
    if code:
        raise subprocess.CalledProcessError(code, command)


def main(arguments: list[str] | None = None) -> int:
    """Make or refresh the environment; return the exit code."""
    parser = argparse.ArgumentParser(description="Set up a virtual environment for this checkout.")
    parser.add_argument("--torch", help="a version other than the tested one")
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="where; default .venv")
    options = parser.parse_args(arguments)
    venv = ROOT / options.venv
    sentence = problem(venv)
    if sentence is not None:
        print(f"setup: {sentence}", file=sys.stderr)
        return 2
    print(
        f"Setting up {options.venv}: pip downloads about 2.5 GB, most of it PyTorch with its CUDA "
        "libraries, and unpacks 5 GB; 2 to 10 minutes the first time. It says every "
        f"{TOLD_EVERY_S:g} s how far it is.",
        flush=True,
    )
    pip = [
        str(venv / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-q",
    ]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        constraints = CONSTRAINTS
        if options.torch is not None:
            constraints = venv / "constraints.txt"
            constraints.write_text(constraints_with(options.torch))
        extras = f"{ROOT}[engine,dev]"
        install([*pip, "-c", str(constraints), "-e", extras])
    except subprocess.CalledProcessError as error:
        print(
            f"setup: `{' '.join(map(str, error.cmd))}` failed with exit code {error.returncode}; "
            "its output above says why. Run `make` again once that is mended.",
            file=sys.stderr,
        )
        return 2
    (venv / ".pliant-ready").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
