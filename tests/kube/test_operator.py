"""The operator against an API server of the tests, with a small cluster behind it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.kube.fake_api import FakeApi
from tests.kube.jobs import manifest
from tests.kube.test_reflector import until
from tests.kube.world import NAMESPACE, World, is_so, kind, urgent

from pliant.core.operator.plan import plan
from pliant.http.app import registry_of
from pliant.kube import demand, lease, operator, queue, reflector
from pliant.kube.client import ELASTIC_JOBS, PODS, SERVICES, WORKLOADS, Api, Call
from pliant.kube.connection import Cluster
from pliant.kube.lease import LeaseLostError
from pliant.kube.operator import Operator, Settings

pytestmark = pytest.mark.timeout(240)
"""Every wait is for an event, and many share this machine."""


@pytest.fixture
def world(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World(fake)
    for module, name, value in (
        (lease, "RETRY_S", 0.05),
        (demand, "LOOK_S", 0.02),
        (demand, "EVERY_S", 0.1),
        (queue, "MOST_RETRY_S", 0.3),
        (reflector, "FIRST_PAUSE_S", 0.01),
        (reflector, "MOST_PAUSE_S", 0.1),
    ):
        monkeypatch.setattr(module, name, value)
    with found.going_on() as port:
        monkeypatch.setattr(demand, "PORT", port)
        yield found


def a_job(maxReplicas: int = 10, **spec: Any) -> dict[str, Any]:  # noqa: N803 - the field
    policy = {"minReplicas": 2, "maxReplicas": maxReplicas, "scalingTimeoutInSeconds": 0.2}
    return manifest(elasticPolicy=policy, **spec)


class Killed(BaseException):
    """The process ends here."""


class MortalApi(Api):
    """Ends the operator after so many writes."""

    left = 10**9

    async def ask(self, call: Call, **more: Any) -> Any:
        answer = await super().ask(call, **more)
        if call.method != "GET" and call.plural != "leases":
            self.left -= 1
            if self.left < 0:
                raise Killed
        return answer


@asynccontextmanager
async def operating(
    cluster: Cluster, identity: str = "one", *, api: Api | None = None
) -> AsyncIterator[Operator]:
    api = api or Api(cluster)
    settings = Settings(image="pliant", namespace="pliant-system", identity=identity)
    found = Operator(api, settings, decide=plan, rng=random.Random(identity))
    stop = asyncio.Event()
    task = asyncio.create_task(found.run(stop))
    mine = asyncio.current_task()
    assert mine is not None
    task.add_done_callback(lambda _: stop.is_set() or mine.cancel())
    try:
        yield found
    except asyncio.CancelledError:
        mine.uncancel()
    finally:
        stop.set()
        try:
            await task
        finally:
            await api.close()


def counts(fake: FakeApi) -> dict[str, int]:
    found = {"coordinator": 0}
    for pod in fake.all(PODS, NAMESPACE):
        increment = pod["metadata"]["labels"].get("pliant.dev/increment", "coordinator")
        found[increment] = found.get(increment, 0) + 1
    return found


def status(fake: FakeApi) -> dict[str, Any]:
    job = fake.get(ELASTIC_JOBS, "gpt", NAMESPACE)
    return (job or {}).get("status") or {}


def agents(fake: FakeApi) -> int:
    return sum(counts(fake).values()) - counts(fake)["coordinator"]


def is_running(fake: FakeApi, **pods: int) -> Callable[[], bool]:
    """Return whether the job has these pods, and its status says so."""

    def look() -> bool:
        wanted = {"coordinator": 1, **pods}
        return counts(fake) == wanted and status(fake).get("replicas") == sum(pods.values())

    return look


def writes(fake: FakeApi) -> list[tuple[str, str]]:
    return [one for one in fake.writes() if "/leases" not in one[1]]


def test_a_job_grows_gives_back_what_somebody_more_important_asks_for_and_rests(
    fake: FakeApi, cluster: Cluster, world: World
) -> None:
    async def play() -> None:
        world.quota = 4
        fake.create(a_job(maxReplicas=4))
        async with operating(cluster) as found:
            await until(is_running(fake, base=2, x1=1, x2=1))
            fake.put(urgent(1))
            await until(is_running(fake, base=2, x1=1))
            (node, body), *more = world.leaves
            assert (node, body["reason"], more) == ("gpt-x2-0", "preempted by team-b/urgent", [])
            await until(lambda: is_so(fake.get(WORKLOADS, "urgent", "team-b") or {}, "Admitted"))
            await until(lambda: status(fake)["pending"] == "x2")
            await asyncio.sleep(0.5)
            asked = len(fake.asked)
            await asyncio.sleep(1.5)
            rest = [one for one in fake.asked[asked:] if "/leases" not in one[1]]
            assert rest == []
            page = generate_latest(registry_of(found.metrics)).decode()
            assert 'pliant_operator_jobs{phase="Running"} 1.0' in page

    asyncio.run(play())


@pytest.mark.slow
def test_an_operator_that_is_killed_after_every_request_converges(
    fake: FakeApi, cluster: Cluster, world: World
) -> None:
    lives = 0

    async def life() -> None:
        nonlocal lives
        lives += 1
        api = MortalApi(cluster)
        api.left = 0
        async with operating(cluster, api=api):
            await until(is_running(fake, base=2, x1=1))
            await asyncio.sleep(0.5)  # nothing is written any more, or it would die

    async def play() -> None:
        fake.create(a_job(maxReplicas=3))
        is_over = False
        while not is_over:
            is_over = True
            try:
                await life()
            except Killed:
                is_over = False

    asyncio.run(play())
    assert lives > 20
    made = [path for method, path in fake.asked if method == "POST" and path.endswith("/secrets")]
    assert len(made) == 1
    workloads = [one["metadata"]["name"] for one in fake.all(WORKLOADS)]
    assert workloads == ["gpt-base", "gpt-x1"]


def test_refusals_of_every_kind_are_waited_out(
    fake: FakeApi, cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "REFUSED_S", 0.3)
    rng = random.Random(5)

    def fault(method: str, path: str) -> tuple[int, dict[str, str]] | None:
        if path.endswith("/pods") and method == "POST" and "pods" in forbidden:
            return 403, {}
        if rng.random() < 0.3 and "/leases" not in path:
            return rng.choice([(429, {"Retry-After": "0"}), (500, {}), (503, {}), (409, {})])
        return None

    forbidden = {"pods"}

    async def play() -> None:
        fake.create(a_job(maxReplicas=3))
        fake.faults.append(fault)
        async with operating(cluster):
            await until(lambda: "a fault of the test" in status(fake).get("reason", ""))
            forbidden.clear()
            await until(is_running(fake, base=2, x1=1))
            for _ in range(5):
                fake.drop_watches()
                fake.compact()
                fake.remove(fake.all(PODS, NAMESPACE)[-1])
                await until(is_running(fake, base=2, x1=1))

    asyncio.run(play())


def test_only_one_of_two_operators_writes_and_the_other_goes_on_where_it_ended(
    fake: FakeApi, cluster: Cluster, world: World
) -> None:
    async def play() -> None:
        async with operating(cluster, "other") as other:
            await until(lambda: other.lease.is_held)
            async with operating(cluster, "one") as one:
                fake.create(a_job(maxReplicas=2))
                await until(is_running(fake, base=2))
                assert not one.lease.is_held
                assert one.metrics.results == {}
                await other.lease.release()  # and it says so to nobody
                await until(lambda: one.lease.is_held)
                fake.remove(fake.all(PODS, NAMESPACE)[0])
                await until(is_running(fake, base=2))
                assert other.metrics.results["ok"] > 0
                with pytest.raises(LeaseLostError):
                    other.lease.left_s()
            await until(lambda: other.lease.is_held)  # and back, when the one has ended

    asyncio.run(play())


def test_a_job_that_is_deleted_in_the_middle_leaves_nothing_and_its_name_is_free(
    fake: FakeApi, cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "FOREIGN_S", 0.3)
    meta = {"name": "gpt-coordinator", "namespace": NAMESPACE}
    service = {**kind(SERVICES), "metadata": meta, "spec": {}}

    async def play() -> None:
        async with operating(cluster):
            for _ in range(2):
                fake.put(service)
                job = fake.create(a_job(maxReplicas=2))
                await until(lambda: "gpt-coordinator" in str(status(fake).get("conditions")))
                fake.remove(service)
                await until(lambda: fake.get(WORKLOADS, "gpt-base", NAMESPACE) is not None)
                fake.remove(job)
                await asyncio.sleep(0.3)
                left = [key for key in fake.objects if key[1] == NAMESPACE]
                assert {key[0] for key in left} <= {"localqueues", "events"}

    asyncio.run(play())


def test_a_job_that_cannot_run_in_a_cluster_is_told_so(
    fake: FakeApi, cluster: Cluster, world: World
) -> None:
    async def play() -> None:
        fake.create(a_job(podTemplate=None))
        async with operating(cluster):
            await until(lambda: "needs spec.podTemplate" in status(fake).get("reason", ""))
            assert [path for method, path in writes(fake) if method == "POST"][1:] == []

    asyncio.run(play())
