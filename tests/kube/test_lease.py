"""One of several leads, and it stops writing before another may."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.kube.fake_api import FakeApi

from pliant.kube import lease
from pliant.kube.client import LEASES, Api
from pliant.kube.connection import Cluster
from pliant.kube.lease import Lease, LeaseLostError
from pliant.machine.event_loop import within


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def a_lease(api: Api, identity: str, clock: Clock) -> Lease:
    rng = random.Random(identity)
    return Lease(api, name="pliant", namespace="sys", identity=identity, rng=rng, monotonic=clock)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.01)
    monkeypatch.setattr(lease, "RETRY_S", 0.02)


def test_the_next_one_waits_for_the_whole_duration_unless_it_was_released(
    fake: FakeApi, cluster: Cluster
) -> None:
    async def play() -> None:
        api, clock = Api(cluster), Clock()
        one, other = a_lease(api, "one", clock), a_lease(api, "other", clock)
        await one.acquire()
        assert one.is_held
        await within(other.acquire(), 0.1)
        assert not other.is_held
        clock.now_s += lease.DURATION_S - lease.MARGIN_S
        assert not one.is_held  # before the other one could have it
        await within(other.acquire(), 0.1)
        assert not other.is_held
        clock.now_s += lease.MARGIN_S
        await other.acquire()
        assert other.is_held
        with pytest.raises(LeaseLostError):
            await one.keep()
        await other.release()
        assert not other.is_held
        await one.acquire()
        found = fake.get(LEASES, "pliant", "sys")
        assert found is not None
        assert (found["spec"]["holderIdentity"], found["spec"]["leaseTransitions"]) == ("one", 2)
        await api.close()

    asyncio.run(play())


def test_renewals_that_fail_end_the_right_to_write_in_time(fake: FakeApi, cluster: Cluster) -> None:
    async def play() -> None:
        api, clock = Api(cluster), Clock()
        one = a_lease(api, "one", clock)
        await one.acquire()
        fake.faults.append(lambda method, path: (500, {}))
        keeper = asyncio.create_task(one.keep())
        await asyncio.sleep(0.1)
        assert one.is_held  # an API server that is away for a moment is no reason to end
        clock.now_s += lease.DURATION_S - lease.MARGIN_S
        with pytest.raises(LeaseLostError):
            await keeper
        await api.close()

    asyncio.run(play())
