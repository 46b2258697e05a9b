"""A store follows the API server through every way in which a watch can end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.kube.fake_api import FakeApi
from tests.kube.test_client import config_map

from pliant.kube import reflector
from pliant.kube.client import CONFIG_MAPS, Api
from pliant.kube.connection import Cluster
from pliant.kube.reflector import Reflector
from pliant.kube.store import Store
from pliant.machine.event_loop import cancelled


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def reflected(cluster: Cluster) -> AsyncIterator[Reflector]:
    api = Api(cluster)
    found = Reflector(api, CONFIG_MAPS, Store(), rng=random.Random(1))
    task = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        await cancelled(task)
        await api.close()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(reflector, "MOST_PAUSE_S", 0.05)
    monkeypatch.setattr(reflector, "ABSENT_S", 0.1)


def test_it_lists_once_and_goes_on_where_a_watch_was_cut_off(
    fake: FakeApi, cluster: Cluster
) -> None:
    async def play() -> None:
        fake.put(config_map("one"))
        async with reflected(cluster) as found:
            for number in range(4):
                await until(lambda: fake.watches == 1)
                fake.drop_watches()
                fake.put(config_map(f"new{number}"))
                await until(lambda n=number: len(found.store) == 2 + n)  # type: ignore[misc]
            fake.remove(config_map("one"))
            await until(lambda: len(found.store) == 4)
            lists = [one for one in fake.asked if not one[1].endswith("?watch")]
            assert len(lists) == 1

    asyncio.run(play())


def test_a_storm_of_410_is_survived_and_not_answered_with_a_storm_of_lists(
    fake: FakeApi, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "MOST_PAUSE_S", 0.4)

    async def play() -> None:
        async with reflected(cluster) as found:
            await until(lambda: fake.watches == 1)
            fake.compact()
            fake.oldest = 10**9  # whatever is listed is too old at once
            fake.drop_watches()
            fake.put(config_map("one"))
            await until(lambda: len(found.store) == 1)
            asked = len(fake.asked)
            await asyncio.sleep(1.0)
            assert len(fake.asked) - asked < 30
            fake.oldest = 0
            await until(lambda: fake.watches == 1)
            fake.put(config_map("two"))
            await until(lambda: len(found.store) == 2 and found.problem is None)

    asyncio.run(play())


def test_refusals_are_waited_out_and_the_store_says_that_it_may_be_old(
    fake: FakeApi, cluster: Cluster
) -> None:
    async def play() -> None:
        fake.faults.append(lambda method, path: (429, {"Retry-After": "0"}))
        async with reflected(cluster) as found:
            await until(lambda: len(fake.asked) > 3)
            assert not found.synced.is_set()
            assert found.problem is not None
            fake.faults.clear()
            await found.synced.wait()
            assert found.problem is None

    asyncio.run(play())


def test_a_kind_that_is_not_served_is_empty_until_it_is(fake: FakeApi, cluster: Cluster) -> None:
    async def play() -> None:
        fake.put(config_map("one"))
        fake.faults.append(lambda method, path: (404, {}))
        async with reflected(cluster) as found:
            await found.synced.wait()
            assert found.is_absent
            fake.faults.clear()
            await until(lambda: len(found.store) == 1)
            assert not found.is_absent

    asyncio.run(play())
