"""A pool and its claimants, each in a process of its own; what is true is seen from outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pool.live import Box, box, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Box]:
    with box(tmp_path) as lent:
        yield lent


def test_a_claim_gets_devices_holds_their_locks_and_frees_them_by_dying(here: Box) -> None:
    here.start_pool("--devices", "4")
    claim = here.claim(2, name="mine")
    claim.until("given")

    assert claim.devices == [0, 1]
    assert here.used() == {0, 1}
    assert here.users(0) == here.users(1) == {claim.process.pid}

    claim.kill()
    until(lambda: here.claims() == {}, "the pool has noticed")
    assert here.used() == set()
    assert here.status()["free"] == 4
    [gone] = here.records("gone")
    assert gone["reason"] == f"its process {claim.process.pid} is dead"
