"""Checks on the test accelerator: functions of one file, run in a process of their own.

A process that has an accelerator is another one for every test that comes later.  So a file of
checks is run as a script, once with synchronous and once with asynchronous streams, and a test
says which of them failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from tests.accelerator import sim

ROOT = Path(__file__).parents[2]
WITHIN_S = 300.0

needs_compiler = pytest.mark.skipif(bool(sim.why_not()), reason=sim.why_not())


def names_in(path: Path) -> set[str]:
    """Return the names of the checks in a file."""
    starts = (line.removeprefix("def ").partition("(")[0] for line in path.read_text().splitlines())
    return {start for start in starts if start.startswith("check_")}


def failed_in(path: Path, *, is_async: bool, seed: int = 0) -> dict[str, str]:
    """Run a file; return the checks that failed, and why.

    Raises:
        AssertionError: it did not come to its end.
    """
    environment = os.environ | {"SIM_ASYNC": str(int(is_async)), "SIM_SEED": str(seed)}
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", f"tests.accelerator.{path.stem}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    said = {name: why for line in lines for name, why in json.loads(line).items()}
    assert said.keys() == names_in(path), f"exit code {run.returncode}\n{run.stderr[-4000:]}"
    return {name: why for name, why in said.items() if why}


def main(defined: dict[str, Any]) -> None:
    """Run the checks of a file, and say how each ended; then end without waiting for streams."""
    sim.install()
    for name, check in defined.items():
        if not name.startswith("check_"):
            continue
        try:
            check()
            why = ""
        except Exception:
            why = traceback.format_exc()
        sys.stdout.write(json.dumps({name: why}) + "\n")
        sys.stdout.flush()
    os._exit(0)
