"""The set-up installs the tested versions, or another torch with whatever that needs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
from tools import setup


def test_while_pip_is_silent_the_set_up_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "TOLD_EVERY_S", 0.05)

    setup.install([sys.executable, "-c", "import time; time.sleep(0.5)"])

    assert capsys.readouterr().out.startswith("setup: 0:00 min, ")


def test_a_set_up_that_fails_is_told() -> None:
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        setup.install([sys.executable, "-c", "raise SystemExit(3)"])


def test_another_torch_takes_its_companions_with_it() -> None:
    lines = setup.constraints_with("2.11.0").splitlines()

    assert "torch==2.11.0" in lines
    assert not [each for each in lines if each.startswith(("nvidia-", "triton=", "torchvision="))]
    assert set(lines) - {"torch==2.11.0"} < set(setup.CONSTRAINTS.read_text().splitlines())


def test_the_tested_torch_is_not_older_than_what_users_may_have() -> None:
    project = (setup.ROOT / "pyproject.toml").read_text()
    tested = next(
        each for each in setup.CONSTRAINTS.read_text().splitlines() if each.startswith("torch==")
    )

    assert '"torch>=2.11"' in project
    assert tested == "torch==2.15.0"


def test_each_python_has_an_environment_of_its_own_and_runs_what_one_wants() -> None:
    asked = ("TORCH=2.15.0", f"PYTHON={sys.executable}", "TESTS=tests/core")
    around = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(
        ["make", "-n", "test-with", *asked],
        cwd=setup.ROOT,
        env=around,  # without what a make around these tests tells another
        capture_output=True,
        text=True,
        check=True,
    )

    own = f".venv-torch2.15.0-python{platform.python_version()}"
    made, run = done.stdout.splitlines()
    assert made.endswith(f"--torch 2.15.0 --venv {own}")
    assert run.startswith(f"{own}/bin/python -m pytest ")
    assert run.endswith(" tests/core")
