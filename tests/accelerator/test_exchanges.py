"""Members exchange the memory of their accelerators by a library with NCCL's manners."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.accelerator import checks

pytestmark = [checks.needs_compiler, pytest.mark.timeout(300)]

EXCHANGES = Path(__file__).with_name("exchanges.py")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_device_communicator_keeps_its_promises(is_async: bool) -> None:
    assert checks.failed_in(EXCHANGES, is_async=is_async) == {}
