"""What is asked of an API server, and how it can fail."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.kube.fake_api import FakeApi

from pliant.kube.client import (
    CONFIG_MAPS,
    PODS,
    UNREACHABLE,
    Api,
    ApiError,
    Object,
    SyncApi,
    apply,
    create,
    delete,
    listing,
    patch,
    proxied,
    read,
    refusal_of,
    replace,
    watching,
)
from pliant.kube.connection import Cluster


def config_map(name: str, **data: str) -> Object:
    meta = {"name": name, "namespace": "a", "labels": {"of": "tests"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def test_every_kind_of_request_from_both_faces(fake: FakeApi, cluster: Cluster) -> None:
    api = SyncApi(cluster)
    api.ask(create(config_map("one", x="1")))
    with pytest.raises(ApiError, match="already exists") as caught:
        api.ask(create(config_map("one")))
    assert caught.value.is_conflict
    assert caught.value.reason == "AlreadyExists"
    stale = api.ask(read(CONFIG_MAPS, "one", "a"))
    api.ask(apply(config_map("one", y="2")))
    api.ask(apply(config_map("one", z="3")))  # y is this manager's, and it applies it no more
    assert api.ask(patch(CONFIG_MAPS, "one", "a", {"data": {"w": "4"}}))["data"] == {
        "x": "1",
        "z": "3",
        "w": "4",
    }
    with pytest.raises(ApiError) as caught:
        api.ask(replace(stale))
    assert caught.value.is_conflict
    with pytest.raises(ValueError, match="resourceVersion"):
        replace(config_map("one"))
    with pytest.raises(ApiError, match="another uid"):
        api.ask(delete(CONFIG_MAPS, "one", "a", uid="other"))
    api.ask(delete(CONFIG_MAPS, "one", "a"))
    with pytest.raises(ApiError) as caught:
        api.ask(read(CONFIG_MAPS, "one", "a"))
    assert caught.value.is_gone
    fake.pods["p"] = lambda path, method, body: {"path": path, "method": method, "body": body}
    assert api.ask(proxied("a", "p", 7000, "/v1/demand")) == {
        "path": "/v1/demand",
        "method": "GET",
        "body": None,
    }
    api.close()


def test_lists_come_in_pages_and_watches_go_on_from_them(fake: FakeApi, cluster: Cluster) -> None:
    asyncio.run(lists_and_watches(fake, cluster))


async def lists_and_watches(fake: FakeApi, cluster: Cluster) -> None:
    for number in range(7):
        fake.put(config_map(f"c{number}"))
    api = Api(cluster)
    found, version = await api.list(listing(CONFIG_MAPS, labels="of=tests", limit=3))
    assert [one["metadata"]["name"] for one in found] == [f"c{number}" for number in range(7)]
    assert len(fake.asked) == 3
    fake.put(config_map("c7"))
    fake.remove(config_map("c0"))
    seen = []
    watch = watching(CONFIG_MAPS, "a", version=version)
    async with aclosing(api.events(watch)) as events:
        async for event in events:
            seen.append((event["type"], event["object"]["metadata"].get("name")))
            if event["type"] == "DELETED":
                break
    assert seen == [("ADDED", "c7"), ("DELETED", "c0")]
    fake.compact()
    with pytest.raises(ApiError) as caught:
        async for _ in api.events(watching(CONFIG_MAPS, version=version)):
            pass
    assert caught.value.is_expired
    await api.close()


def test_a_watch_that_is_cut_off_is_an_error(fake: FakeApi, cluster: Cluster) -> None:
    asyncio.run(cut_off(fake, cluster))


async def cut_off(fake: FakeApi, cluster: Cluster) -> None:
    api = Api(cluster)

    async def follow() -> None:
        async for _ in api.events(watching(PODS, version="100")):
            pass

    task = asyncio.create_task(follow())
    while not fake.watches:
        await asyncio.sleep(0.01)
    fake.drop_watches()
    with pytest.raises(ApiError) as caught:
        await task
    assert caught.value.reason == UNREACHABLE
    await api.close()


def test_what_is_refused_says_when_to_ask_again(fake: FakeApi, cluster: Cluster) -> None:
    api = SyncApi(cluster)
    fake.faults.append(lambda method, path: (429, {"Retry-After": "7"}))
    with pytest.raises(ApiError) as caught:
        api.ask(listing(PODS))
    assert (caught.value.retry_after_s, caught.value.is_transient) == (7.0, True)
    api.close()


def test_a_cluster_that_is_away_is_named_in_a_sentence() -> None:
    cluster = Cluster(url="http://127.0.0.1:9", context="here")
    api = SyncApi(cluster)
    with pytest.raises(ApiError) as caught:
        api.ask(listing(PODS))
    said = str(refusal_of(caught.value, cluster))
    assert said.startswith("the cluster of context here does not answer at http://127.0.0.1:9: ")
    api.close()
