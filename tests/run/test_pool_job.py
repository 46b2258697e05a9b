"""A job and the pool that it is in."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.core.policy.decide import Policy
from pliant.core.tenancy import PoolPlace
from pliant.machine.registry import Served
from pliant.pool import claim_client
from pliant.run.pool_job import Tenant


def test_a_pool_that_is_slow_to_be_found_does_not_hold_up_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared pool that was stopped takes no connections; each look for it takes seconds."""
    found = threading.Event()

    def slow(pool: str, records: Path) -> Served:
        assert found.wait(5)
        raise ConfigError("no pool is running")

    monkeypatch.setattr(claim_client, "find_pool", slow)
    tenant = Tenant(PoolPlace(), job="gpt", policy=Policy(max_replicas=2), records=tmp_path)

    async def scene() -> None:
        coming = asyncio.create_task(tenant.present().__aenter__())
        await asyncio.sleep(0.01)
        found.set()
        with pytest.raises(ConfigError, match="no pool is running"):
            await coming

    asyncio.run(scene())
