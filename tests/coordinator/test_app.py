"""The HTTP face: who gets in, what is refused, and that bad clients disturb nobody.

A real server on loopback: what a WebSocket server does with garbage is part of the claim.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.coordinator.drivers import driver_of
from tests.coordinator.traces import traces, traces_in_files
from tests.http.routes import ask_anything
from tests.scene import scene
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from pliant.coordinator import nodes
from pliant.coordinator.app import create_app
from pliant.core.agreement import NodeFacts
from pliant.core.commands import EndReplica, Prepare, Reform, StartReplica
from pliant.core.errors import ConfigError
from pliant.core.events import (
    Exited,
    ExitKind,
    NodeJoined,
    Prepared,
    Scaled,
    Spare,
    Switched,
)
from pliant.core.job.state import JobSettings
from pliant.core.policy.decide import Policy
from pliant.core.values import AgentLife, Generation, Incarnation, NodeId, ReplicaId
from pliant.http import run_files
from pliant.http.client import NEXT
from pliant.http.server import Server, open_socket, url_of
from pliant.observe.log import EventLog
from pliant.observe.reading import read
from pliant.wire.codec import MAX_MESSAGE_BYTES, Envelope, Message, decode, encode
from pliant.wire.messages import Alive, Logged, Started, Unfit, Work
from pliant.wire.offers import Offer

pytestmark = pytest.mark.timeout(30)

TOKEN = "secret"
AS_JSON = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
DEADLINE_S = 5.0
WORK = Work(job="j", command=("train.py",), cwd="/", out="/")
JOINED = NodeJoined(node=NodeId("here"), devices=2)
ENDING = ("stop", "suspend")


class World:
    """A served coordinator."""

    def __init__(self, directory: Path, *, is_pooled: bool) -> None:
        path = directory / "events.jsonl"
        self.log = EventLog(path, job="j")
        self.driver = driver_of(self.log, JobSettings(policy=Policy(max_replicas=2)))
        self.sock = open_socket("127.0.0.1", 0)
        self.url = url_of(self.sock)
        self.offers: list[Offer] = []
        self.app = create_app(
            self.driver,
            work=WORK,
            token=TOKEN,
            events_path=path,
            on_offer=self.take if is_pooled else None,
        )
        self.server = Server(self.app, self.sock)

    def take(self, offer: Offer) -> int:
        self.offers.append(offer)
        return 7

    def people(self, token: str | None = TOKEN) -> httpx.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False)

    def agent(self, token: str = TOKEN) -> connect:
        return connect(
            self.url.replace("http", "ws") + "/v1/agents",
            additional_headers={"Authorization": f"Bearer {token}"},
            proxy=None,
        )

    async def refused(self, sender: str, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.driver.refused[sender] < count:
                await asyncio.sleep(0.01)
        assert self.driver.refused[sender] == count


Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return partial(played, tmp_path)


def played(
    directory: Path,
    scene: Callable[[World], Awaitable[None]],
    *,
    is_pooled: bool = False,
    within_s: float = 20.0,
) -> None:
    async def main() -> None:
        world = World(directory, is_pooled=is_pooled)
        await world.driver.begin()
        await world.server.start()
        driving = asyncio.create_task(world.driver.run())
        try:
            await asyncio.wait_for(scene(world), within_s)
        finally:
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            await world.server.stop()
            world.log.close()

    asyncio.run(main())


def wire(message: Message) -> str:
    return encode(message, Incarnation(0)).decode()


async def hear(connection: ClientConnection) -> Message:
    envelope = decode(await asyncio.wait_for(connection.recv(), DEADLINE_S))
    assert isinstance(envelope, Envelope)
    return envelope.message


@scene()
async def test_an_agent_that_joins_is_told_what_to_start(world: World) -> None:
    async with world.agent() as agent:
        await agent.send(wire(JOINED))
        assert await hear(agent) == WORK
        told = [await hear(agent), await hear(agent)]
    assert told == [StartReplica(replica=ReplicaId(f"r{n}"), node=JOINED.node) for n in (1, 2)]


@pytest.mark.parametrize("token", ["", "Secret", "secret2", "\xe9"])
@scene()
async def test_a_wrong_token_is_refused_and_counted(world: World, *, token: str) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        async with world.agent(token):
            pass
    await world.refused("stranger", 1)


GARBAGE: list[str | bytes] = [
    "",
    "{",
    "[]",
    b"\xff\xfe",
    "null",
    '{"v": 1}',
    '{"v": 1, "type": "alive", "incarnation": 0, "node": "here", "refused": 0}',
    wire(Scaled(target=1)),
    wire(StartReplica(replica=ReplicaId("r9"), node=NodeId("here"))),
    '{"a":' * 1000 + "1" + "}" * 1000,
]


@scene()
async def test_garbage_is_refused_and_counted_and_changes_nothing(world: World) -> None:
    async with world.agent() as agent, world.people() as people:
        await agent.send(wire(JOINED))
        await hear(agent)
        await hear(agent)
        before = (await people.get("/v1/status")).json()

        for data in GARBAGE:
            await agent.send(data)

        await world.refused("agent", len(GARBAGE))
        assert (await people.get("/v1/status")).json() == before
        await agent.send(wire(Started(replica=ReplicaId("r1"), node=JOINED.node, pid=7)))
        async with asyncio.timeout(DEADLINE_S):
            while not world.driver.board.replicas["r1"].pids:
                await asyncio.sleep(0.01)
        page = (await people.get("/metrics")).text
        assert f'pliant_refused_events_total{{run="j",sender="agent"}} {len(GARBAGE)}.0' in page


@scene()
async def test_an_oversized_message_ends_only_the_connection_it_came_on(world: World) -> None:
    async with world.agent() as good:
        await good.send(wire(JOINED))
        await hear(good)
        async with world.agent() as bad:
            with suppress(ConnectionClosed):
                await bad.send("x" * (MAX_MESSAGE_BYTES + 1))
                await asyncio.wait_for(bad.recv(), DEADLINE_S)
            assert bad.close_code == 1009
        await good.send(wire(Alive(node=JOINED.node, refused=0)))
        await hear(good)


@scene()
async def test_a_connection_that_does_not_say_who_it_is_is_closed(world: World) -> None:
    async with world.agent() as agent:
        await agent.send(wire(Logged(replica=ReplicaId("r1"), step=1, values={})))
        assert isinstance(await hear(agent), Unfit)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(agent.recv(), DEADLINE_S)
    await world.refused("agent", 1)


@scene()
async def test_a_connection_that_says_nothing_is_closed(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.coordinator.channel.HELLO_S", 0.1)
    async with world.agent() as agent:
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(agent.recv(), DEADLINE_S)


async def speak(agent: ClientConnection) -> None:
    while True:
        await agent.send(wire(Alive(node=JOINED.node, refused=0)))
        await asyncio.sleep(0.05)


def living(life: AgentLife) -> NodeJoined:
    return replace(JOINED, life=life)


@pytest.mark.parametrize(
    "second", [AgentLife(boot=7, uptime=2, at=2), AgentLife(boot=8, uptime=1, at=2)]
)
@scene()
async def test_an_agent_that_speaks_keeps_its_name_from_one_that_was_started_later(
    world: World, *, second: AgentLife
) -> None:
    """A command that is typed twice on one host, and two machines of one name."""
    async with world.agent() as agent, world.agent() as other:
        await agent.send(wire(living(AgentLife(boot=7, uptime=1, at=1))))
        await hear(agent)
        await other.send(wire(living(second)))
        speaking = asyncio.create_task(speak(agent))

        told = await hear(other)

        speaking.cancel()
        assert told == Unfit(
            reason="another agent takes part already as node here; leave this one out, or name "
            "it with --node"
        )
    kinds = [record["kind"] for record in read(world.log.path)]
    assert "node_lost" not in kinds


@scene()
async def test_an_agent_takes_the_place_of_one_of_which_only_the_connection_is_left(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a power failure: nobody has closed it."""
    monkeypatch.setattr(nodes, "LOOK_S", 0.05)
    async with world.agent() as agent, world.agent() as other:
        await agent.send(wire(living(AgentLife(boot=7, uptime=9, at=1))))
        await hear(agent)
        await other.send(wire(living(AgentLife(boot=8, uptime=1, at=2))))

        assert await hear(other) == WORK


@scene()
async def test_an_agent_of_another_version_is_told_what_cannot_be_read(world: World) -> None:
    facts = wire(NodeFacts(pliant="9.9")).replace('"pliant"', '"colour":"red","pliant"')
    async with world.agent() as agent:
        await agent.send(facts)

        told = await hear(agent)

    assert told == Unfit(
        reason="the coordinator cannot read what this agent says of itself "
        "(node_facts.colour: unknown field); a job needs the same pliant on every node"
    )


@pytest.mark.parametrize("odd", ["environment", "name"])
def test_an_odd_host_that_comes_first_is_turned_away_and_not_the_coordinators_own(
    play: Play, odd: str
) -> None:
    """If that were turned away, the job would end with it."""
    mine = living(AgentLife(boot=7, uptime=1, at=1))
    other = replace(mine, life=AgentLife(boot=8, uptime=1, at=1))
    if odd == "environment":
        other = replace(other, node=NodeId("there"))

    async def scene(world: World) -> None:
        world.driver.nodes.expect(mine.life)
        async with world.agent() as first, world.agent() as own:
            await first.send(wire(NodeFacts(hash_seed="7" * (odd == "environment"))))
            await first.send(wire(other))
            await asyncio.sleep(0.3)
            await own.send(wire(NodeFacts(hash_seed="0")))
            await own.send(wire(mine))
            speaking = asyncio.create_task(speak(own))

            told = [await hear(own), await hear(first)]

            speaking.cancel()
            assert told[0] == WORK
            assert isinstance(told[1], Unfit)
            named = {"environment": "node there has PYTHONHASHSEED 7", "name": "takes part already"}
            assert named[odd] in told[1].reason

    play(scene)


@scene()
async def test_who_runs_replicas_does_not_wait_for_the_coordinators_own_agent(world: World) -> None:
    world.driver.nodes.expect(AgentLife(boot=7, uptime=1, at=1))
    async with world.agent() as survivor:
        await survivor.send(wire(replace(JOINED, replicas=(ReplicaId("r1"),))))
        assert await hear(survivor) == WORK


@scene()
async def test_a_node_that_runs_replicas_is_not_turned_away_for_one_that_does_not(
    world: World,
) -> None:
    """A coordinator is started again on a host that differs by now; the survivors come second."""
    async with world.agent() as own, world.agent() as survivor, world.agent() as another:
        await own.send(wire(NodeFacts(hash_seed="7")))
        await own.send(wire(JOINED))
        await hear(own)
        there = NodeJoined(node=NodeId("there"), devices=2, replicas=(ReplicaId("r1"),))
        await survivor.send(wire(NodeFacts(hash_seed="0")))
        await survivor.send(wire(there))
        assert await hear(survivor) == WORK
        await another.send(wire(NodeFacts(hash_seed="0")))
        await another.send(wire(NodeJoined(node=NodeId("new"), devices=2)))
        assert isinstance(await hear(another), Unfit)
    notes = [one["text"] for one in read(world.log.path) if one["kind"] == "note"]
    assert (
        "node there runs replicas, and stays: node there has PYTHONHASHSEED 0, and node here "
        "has 7; a job needs the same on every node"
    ) in notes


@scene()
async def test_bytes_that_are_no_http_disturb_nobody(world: World) -> None:
    reader, writer = await asyncio.open_connection(*world.sock.getsockname())
    writer.write(b"\x00\xff" * 500 + b"\r\n\r\n")
    await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    await writer.wait_closed()
    async with world.people(None) as people:
        assert (await people.get("/healthz")).json() == {"status": "ok"}


@scene()
async def test_people_need_the_token(world: World) -> None:
    for token in (None, "x", "Secret"):
        async with world.people(token) as people:
            for name in ("status", "explain", "events", "policy", "logs", "logs/r1", "audit"):
                assert (await people.get(f"/v1/{name}")).status_code == 401
            assert (await people.patch("/v1/policy", json={})).status_code == 401
            for path in ("/v1/scale", "/v1/stop", "/v1/replicas/r1/kill"):
                assert (await people.post(path, json={})).status_code == 401


@scene()
async def test_machines_do_not_need_the_token(world: World) -> None:
    async with world.people(None) as people:
        assert (await people.get("/healthz")).status_code == 200
        page = await people.get("/metrics")
        assert 'pliant_committed_steps_total{run="j"} 0.0' in page.text
        paths = (await people.get("/openapi.json")).json()["paths"]
    assert "/v1/replicas/{replica}/drain" in paths


@scene()
async def test_wishes_are_answered_with_the_cores_reason(world: World) -> None:
    async with world.agent() as agent, world.people() as people:
        await agent.send(wire(JOINED))
        await hear(agent)

        accepted = await people.post("/v1/scale", json={"target": 1})
        unknown = await people.post("/v1/replicas/r9/drain", json={"notice_s": 1.0})
        last = await people.post("/v1/replicas/r1/drain")

    assert accepted.status_code == 202
    assert accepted.json()["target_replicas"] == 1
    assert accepted.json()["reason"].endswith("as requested")
    assert unknown.status_code == 409
    assert "r9" in unknown.json()["detail"]
    assert last.status_code == 409
    assert "min" in last.json()["detail"]


@scene()
async def test_who_drains_or_kills_is_told_what_comes_of_it_and_not_how(world: World) -> None:
    """A membership's next generation was what it said: "prepare generation 4: r1, r2, r4"."""
    async with world.agent() as agent, world.people() as people:
        await agent.send(wire(JOINED))
        await hear(agent)

        drained = (await people.post("/v1/replicas/r2/drain")).json()
        killed = (await people.post("/v1/replicas/r1/kill")).json()

    assert drained["target_replicas"] == 1
    assert drained["reason"] == "r2 leaves; stay at 1 replica, as requested"
    assert killed["reason"].startswith("r1 is killed")


@scene()
async def test_the_outside_is_told_what_the_job_could_use(world: World) -> None:
    async with world.agent() as agent, world.people() as people:
        await agent.send(wire(replace(JOINED, devices=1)))
        assert (await hear(agent), await hear(agent))[0] == WORK  # then a replica: it is decided

        said = (await people.get("/v1/demand")).json()

    assert said.pop("reason").startswith("grow from 0 to 1 replica: 2 wanted, room for 1")
    assert said == {"useful": 2, "sizes": [1, 2], "slots": None, "canSuspend": False}


@scene()
async def test_the_outside_says_that_a_node_leaves_and_for_whom(world: World) -> None:
    async with world.agent() as agent, world.people() as people:
        await agent.send(wire(JOINED))
        told = [await hear(agent) for _ in range(3)]

        body = {"notice_s": 5.0, "reason": "preempted by Workload b/urgent"}
        unknown = await people.post("/v1/nodes/there/leave", json=body)
        accepted = await people.post("/v1/nodes/here/leave", json=body)
        told = [await hear(agent) for _ in range(2)]

    assert (accepted.status_code, unknown.status_code) == (202, 404)
    assert told == [
        EndReplica(replica=ReplicaId(f"r{n}"), reason=f"node here leaves, {body['reason']}")
        for n in (1, 2)
    ]


@scene()
async def test_the_token_may_come_in_a_header_of_its_own(world: World) -> None:
    """Kubernetes' API server, through which people come here, takes Authorization for itself."""
    async with world.people("of the API server") as people:
        for token, code in ((TOKEN, 200), ("x", 401)):
            answer = await people.get("/v1/status", headers={"X-Pliant-Token": token})
            assert answer.status_code == code


def test_the_policy_is_changed_field_by_field_and_a_new_coordinator_has_it(play: Play) -> None:
    async def change(world: World) -> None:
        async with world.agent() as agent, world.people() as people:
            await agent.send(wire(JOINED))
            await hear(agent)
            changes = {"minReplicas": 2, "backoff": {"factor": 3}}

            accepted = await people.patch("/v1/policy", json=changes)
            found = (await people.get("/v1/policy")).json()
            contradiction = await people.patch("/v1/policy", json={"maxReplicas": 1})
            impossible = await people.patch("/v1/policy", json={"maxReplicas": 9, "minReplicas": 9})
            after = (await people.get("/v1/policy")).json()

        assert accepted.status_code == 202
        assert accepted.json()["reason"] == "policy set: minReplicas=2 backoff.factor=3"
        assert (found["minReplicas"], found["maxReplicas"]) == (2, 2)
        assert found["backoff"]["factor"] == 3
        assert contradiction.status_code == 422
        assert contradiction.json()["detail"] == (
            "the policy: minReplicas 2 is greater than maxReplicas 1"
        )
        assert impossible.status_code == 409
        assert impossible.json()["detail"] == "minReplicas=9, but the nodes can run 2"
        assert after == found
        assert world.driver.board.as_json()["min_replicas"] == 2

    async def look(world: World) -> None:
        async with world.people() as people:
            found = (await people.get("/v1/policy")).json()
        assert (found["minReplicas"], found["backoff"]["factor"]) == (2, 3)

    play(change)
    play(look)


@pytest.mark.parametrize(
    "changes",
    [{"maxReplica": 3}, {"spares": "1"}, {"backoff": {"factor": 0}}, {"maxReplicas": {"a": 1}}, []],
)
@scene()
async def test_a_malformed_policy_changes_nothing(world: World, *, changes: object) -> None:
    before = world.driver.core.policy
    async with world.people() as people:
        assert (await people.patch("/v1/policy", json=changes)).status_code == 422
    assert world.driver.core.policy is before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/scale", {}),
        ("/v1/scale", {"target": 0}),
        ("/v1/scale", {"target": "4"}),
        ("/v1/scale", {"target": 2, "extra": 1}),
        ("/v1/replicas/r1/drain", {"notice_s": -1.0}),
    ],
)
@scene()
async def test_a_malformed_wish_changes_nothing(world: World, *, path: str, body: object) -> None:
    async with world.people() as people:
        assert (await people.post(path, json=body)).status_code == 422
    assert world.driver.board.target_replicas is None


@pytest.mark.parametrize("body", ["NaN", "[1e999]", '{"target": NaN}', '{"target": 2, "x": NaN}'])
@scene()
async def test_what_is_no_number_is_refused_like_any_other_mistake(
    world: World, *, body: str
) -> None:
    async with world.people() as people:
        answer = await people.post("/v1/scale", content=body)
    assert answer.status_code == 422
    assert all({"loc", "msg"} <= mistake.keys() for mistake in answer.json()["detail"])


@scene()
async def test_events_are_read_in_pages(world: World) -> None:
    async with world.agent() as agent, world.people() as people:
        await agent.send(wire(JOINED))
        await hear(agent)
        await hear(agent)

        first = (await people.get("/v1/events")).json()
        again = (await people.get("/v1/events", params={"after": first["next"]})).json()
        reasons = (await people.get("/v1/explain")).json()

    assert [r["kind"] for r in first["records"]][:3] == [
        "core_began",
        "node_joined",
        "decision",
    ]
    assert again["records"] == []
    assert reasons[0]["target_replicas"] == 2


FIRST = Generation(1)
TO_THE_FIRST_LOSS: list[Message] = [
    *(
        Spare(replica=ReplicaId(name), calls=0, num_slots=4, layout="l", endpoint="h:1")
        for name in ("r1", "r2")
    ),
    *(Prepared(replica=ReplicaId(name), generation=FIRST) for name in ("r1", "r2")),
    *(Switched(replica=ReplicaId(name), generation=FIRST, step=0) for name in ("r1", "r2")),
    Exited(replica=ReplicaId("r2"), kind=ExitKind.SIGNAL, detail="SIGKILL"),
]


@scene()
async def test_the_secret_of_a_generation_is_told_to_agents_and_to_nobody_else(
    world: World, *, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "uvicorn")
    caplog.set_level(logging.DEBUG, "pliant")
    caplog.set_level(logging.DEBUG, "asyncio")
    paths = ("/v1/status", "/v1/events", "/v1/explain", "/v1/policy", "/metrics", "/openapi.json")
    secrets: dict[str, str] = {}
    async with world.agent() as agent, world.people() as people:
        await agent.send(wire(JOINED))
        for message in TO_THE_FIRST_LOSS:
            await agent.send(wire(message))
        while len(secrets) < 2:
            heard = await hear(agent)
            if isinstance(heard, Prepare | Reform):
                secrets[type(heard).__name__] = heard.secret
        pages = [(await people.get(path)).content for path in paths]

    assert secrets.keys() == {"Prepare", "Reform"}
    assert len(set(secrets.values())) == 2
    assert [page for page in pages if traces(secrets.values(), page)] == []
    assert traces_in_files(secrets.values(), tmp_path) == []
    assert traces(secrets.values(), caplog.text.encode()) == []
    formed = [r for r in read(world.log.path) if r["kind"] in ("prepare", "reform")]
    assert [r["kind"] for r in formed] == ["prepare", "reform"]
    assert not any("secret" in record for record in formed)


def test_a_port_in_use_is_one_clear_sentence() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match=r"port \d+ of 127.0.0.1 is in use; choose another"),
    ):
        open_socket("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_out_of_range_is_one_clear_sentence(port: int) -> None:
    with pytest.raises(ConfigError, match="not between 0 and 65535"):
        open_socket("127.0.0.1", port)


def test_the_coordinator_is_small_and_does_not_import_torch() -> None:
    program = (  # VmHWM, not ru_maxrss: that one counts the parent before exec as well
        "import sys; import pliant.coordinator.app, pliant.http.server,"
        " pliant.agent.agent; lines = open('/proc/self/status').read().splitlines();"
        " print([line.split()[1] for line in lines if line.startswith('VmHWM')][0],"
        " 'torch' in sys.modules, 'numpy' in sys.modules)"
    )

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout

    kilobytes, has_torch, has_numpy = said.split()
    assert int(kilobytes) < 100_000
    assert (has_torch, has_numpy) == (b"False", b"False")


@scene(is_pooled=True)
async def test_an_offer_of_the_pool_is_handed_on_and_answered_with_what_is_followed(
    world: World,
) -> None:
    offer = Offer(pool="p", revision=7, devices=(0, 3), replicas=2, reason="2 are free")
    async with world.people() as people:
        answer = await people.put("/v1/offer", json=offer.model_dump(mode="json"))
        assert (answer.status_code, answer.json()) == (200, {"revision": 7})
        bad = await people.put("/v1/offer", json={"pool": "p", "revision": 0})
        assert bad.status_code == 422
    async with world.people("wrong") as strangers:
        answer = await strangers.put("/v1/offer", json=offer.model_dump(mode="json"))
        assert answer.status_code == 401
    assert world.offers == [offer]


@scene()
async def test_a_job_that_is_in_no_pool_refuses_offers(world: World) -> None:
    async with world.people() as people:
        answer = await people.put("/v1/offer", json={"pool": "p", "revision": 1})
        assert (answer.status_code, answer.json()) == (409, {"detail": "the job is in no pool"})


@pytest.mark.timeout(150)
@scene(is_pooled=True, within_s=120.0)
async def test_nothing_that_is_asked_ends_in_a_500(world: World) -> None:
    """A job that has stopped refuses everything: that is asked last.

    Each of more than a hundred requests has a limit of its own.
    """
    with httpx.Client(base_url=world.url, headers=AS_JSON, trust_env=False) as people:
        await asyncio.to_thread(
            ask_anything, world.app, people, without=("audit", "changes", *ENDING)
        )
        await asyncio.to_thread(
            ask_anything, world.app, people, without=("audit", "changes"), num_examples=10
        )
    assert not world.driver.refused


@scene()
async def test_numbers_that_no_file_has_are_refused_and_shown_as_none(world: World) -> None:
    world.log.write("commit", step=10**400, generation=1, loss=math.inf)
    world.log.write("traceback", replica="r1", text="\ud800")
    async with world.people() as people:
        for path in ("/v1/status", "/v1/events", "/v1/explain", "/metrics"):
            assert (await people.get(path)).status_code == 200, path
        assert (await people.get("/v1/events", params={"after": 1 << 70})).status_code == 422


def test_what_a_worker_printed_is_answered_piece_by_piece_as_it_is(
    play: Play, tmp_path: Path
) -> None:
    hostile = b"\x1b[2J<script>\xff\n"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "r1.log").write_bytes(hostile)
    (tmp_path / "secret").write_text("no")

    async def scene(world: World) -> None:
        async with world.people() as people, world.people(token=None) as stranger:
            assert (await stranger.get("/v1/logs/r1")).status_code == 401
            assert (await people.get("/v1/logs")).json() == {"workers": ["r1"]}
            for name in ("r2", "..%2Fsecret", "r1.log", "%00"):
                assert (await people.get(f"/v1/logs/{name}")).status_code == 404
            first = await people.get("/v1/logs/r1")
            with (tmp_path / "logs" / "r1.log").open("ab") as log:
                log.write(b"more\n")
            second = await people.get(f"/v1/logs/r1?after={first.headers[NEXT]}")

        assert (first.content, second.content) == (hostile, b"more\n")
        assert first.headers["Content-Type"] == "application/octet-stream"

    play(scene)


def test_one_audit_is_made_at_a_time(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a process, and may take minutes of a job with long ledgers."""
    may_end = asyncio.Event()

    async def audited(out: Path) -> dict[str, object]:
        await may_end.wait()
        return {"out": str(out)}

    monkeypatch.setattr(run_files, "audit_aside", audited)

    async def scene(world: World) -> None:
        async with world.people() as people:
            first, second = (asyncio.create_task(people.get("/v1/audit")) for _ in range(2))
            (refused,), (waiting,) = await asyncio.wait(
                {first, second}, return_when=asyncio.FIRST_COMPLETED
            )
            may_end.set()

            assert (await waiting).json() == {"out": str(tmp_path)}
            told = (await refused).json()["detail"]
            assert told == "the job is being audited for somebody else; ask again"

    play(scene)
