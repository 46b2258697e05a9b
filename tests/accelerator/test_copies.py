"""Copies that go on beside training spoil nothing, however late they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.accelerator import checks

pytestmark = [checks.needs_compiler, pytest.mark.timeout(900)]

COPIES = Path(__file__).with_name("copies.py")


def test_no_copy_is_too_early_or_too_late() -> None:
    assert checks.failed_in(COPIES, is_async=True) == {}
