"""What tests on a GPU share: why there is none, and scripts in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pliant.machine.accelerators import visible

ROOT = Path(__file__).parents[2]

DEVICES = [each for each in visible(os.environ) if each.name.startswith("cuda:")]

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not DEVICES, reason="needs a CUDA device: make test-gpu"),
]


def told(*words: object, within_s: float = 200.0) -> Any:
    """Run Python in a process of its own; return the JSON of its last line."""
    run = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])
