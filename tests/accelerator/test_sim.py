"""The test accelerator is an accelerator: else what is shown on it says nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.accelerator import checks

pytestmark = [checks.needs_compiler, pytest.mark.timeout(300)]

BEHAVIOUR = Path(__file__).with_name("behaviour.py")

TOUCH = """
from tests.accelerator import sim
sim.install()
import ctypes, torch
ctypes.string_at(torch.ones(3, device="sim").data_ptr(), 4)
"""


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_it_does_as_an_accelerator_does(is_async: bool) -> None:
    assert checks.failed_in(BEHAVIOUR, is_async=is_async) == {}


def test_code_of_the_host_that_touches_its_memory_dies() -> None:
    touching = [sys.executable, "-c", TOUCH]
    ended = subprocess.run(touching, cwd=checks.ROOT, capture_output=True, check=False)

    assert ended.returncode == -11, ended.stderr.decode()[-2000:]
