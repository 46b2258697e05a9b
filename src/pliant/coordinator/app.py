"""The coordinator's HTTP face: agents by WebSocket, people by REST, Prometheus by GET.

Owns paths, bodies, status codes and who may ask what.  Decides nothing: a request of a person is
an event, and the answer is the core's own.

    GET  /v1/status  /v1/explain  /v1/events?after=N      what is, why, what happened
    GET  /v1/nodes                                          where the nodes' workers are reached
    GET  /v1/demand                                         what the outside is to give it
    POST /v1/nodes/{n}/leave                                the outside takes a node back: 202
    GET, PATCH /v1/policy                                   the elastic policy, as in the job file
    POST /v1/scale  /v1/checkpoint  /v1/stop  /v1/suspend  /v1/replicas/{r}/drain|kill
                                                            requests: 202, or 409 with the reason
    GET  /v1/view  /v1/changes                              what the page shows
    GET  /v1/logs  /v1/audit                                the files of the run
    PUT  /v1/offer                                          of the job's pool: what it may use
    WS   /v1/agents                                         agents
    POST /v1/login, then /login                             a browser with a code, by ``http.login``
    GET  /metrics  /healthz                                 machines; they need no token
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, HTTPException, WebSocket, status
from pydantic import BaseModel, Field

from pliant.coordinator.channel import serve_agent
from pliant.coordinator.driver import NOT_KEPT, JobDriver
from pliant.coordinator.metrics import BoardCollector
from pliant.core import events
from pliant.core.errors import ConfigError
from pliant.core.text import in_one_line
from pliant.core.values import NodeId, ReplicaId
from pliant.http.app import RequestBody, add_events, add_metrics, new_app, new_router, shows_token
from pliant.http.login import Logins, add_login
from pliant.http.run_files import add_run_files
from pliant.http.view import add_view
from pliant.observe.explain import Reasoned
from pliant.observe.view import LogView
from pliant.spec.load import check
from pliant.spec.policy import ElasticPolicy, changes_in_words, document_of, merged, start_that_fits
from pliant.wire.messages import Work
from pliant.wire.offers import Offer

DEFAULT_NOTICE_S = 30.0
"""Notice of a drain for which nobody named one, in seconds."""


MOST_LETTERS = 300
"""Of a reason that the outside gives."""


class ScaleBody(RequestBody):
    """How many replicas there should be."""

    target: Annotated[int, Field(ge=1, le=1_000_000)]


class DrainBody(RequestBody):
    """How long the replica may take to leave."""

    notice_s: Annotated[float, Field(gt=0, le=86_400)] = DEFAULT_NOTICE_S


class Accepted(BaseModel):
    """What the core said to a request."""

    accepted: bool = True
    target_replicas: int | None
    reason: str
    """Why the job now has the size it has."""


class CheckpointComes(Accepted):
    """That a checkpoint will be saved."""

    step: int
    """Committed steps that it has at least; the field ``checkpoint`` of the status names it."""


class StopBody(BaseModel):
    """Whether to wait for a step boundary."""

    now: bool = False
    """End every process at once; nothing is saved."""


class SuspendBody(RequestBody):
    """For whom, if the outside wants it, and how long that may take."""

    notice_s: Annotated[float | None, Field(gt=0, le=86_400)] = None
    reason: Annotated[str, Field(max_length=MOST_LETTERS)] = ""


class LeaveBody(RequestBody):
    """How long what a node runs may take to leave, and why it must."""

    notice_s: Annotated[float, Field(ge=0, le=86_400)] = DEFAULT_NOTICE_S
    reason: Annotated[str, Field(max_length=MOST_LETTERS)] = ""


class Useful(BaseModel):
    """What the outside must know to give the job what it can use."""

    useful: int
    """Replicas that it could use, spares among them."""

    sizes: list[int]
    """That it can have, up to that one."""

    slots: int | None
    """K of a step; null until the first script has said it."""

    canSuspend: bool  # noqa: N815 - as people of Kubernetes write it
    """Its script keeps checkpoints, so that even its minimum can be taken."""

    reason: str


class Followed(BaseModel):
    """How far the job follows its pool."""

    revision: int
    """Of the newest offer that it has taken."""


OnOffer = Callable[[Offer], int]
"""Takes an offer of the job's pool; returns the revision that the job follows."""


def create_app(
    driver: JobDriver,
    *,
    work: Work,
    token: str,
    events_path: Path,
    on_offer: OnOffer | None = None,
    is_any_node: bool = False,
    logins: Logins | None = None,
) -> FastAPI:
    """Return the app of one job.

    Agents are told to run ``work``; who knows the token may ask, and whom ``logins`` let in.
    Without ``on_offer`` the job is in no pool.  ``is_any_node``: a certificate need not name the
    node that shows it.
    """
    app = new_app("pliant coordinator", __doc__, token=token, whose="the job", logins=logins)
    people = new_router()
    _add_views(people, driver)
    add_events(people, events_path)
    add_view(people, LogView(events_path))
    if logins is not None:
        add_login(app, people, logins)
    add_run_files(people, events_path.parent)
    _add_requests(people, driver)
    _add_offers(people, on_offer)
    app.include_router(people)
    add_metrics(app, BoardCollector(lambda: driver.board, driver.refused, driver.losses))

    @app.websocket("/v1/agents")
    async def agents(socket: WebSocket) -> None:
        """Serve an agent."""
        if not shows_token(socket.headers, token):
            host = "somewhere" if socket.client is None else socket.client.host
            driver.refuse("stranger", f"a connection from {host} without the job's token")
            await socket.close(status.WS_1008_POLICY_VIOLATION)
            return
        certified = None if is_any_node else socket.scope["state"].get("certified")
        await serve_agent(socket, driver, work, certified=certified)

    return app


def _add_views(people: APIRouter, driver: JobDriver) -> None:
    @people.get("/status")
    async def read_status() -> dict[str, Any]:
        """Return what the job is doing now; the shape is that of ``pliant status --json``."""
        return driver.board.as_json(
            idle_s=driver.idle_s, waits_for=driver.waits_for, unreached=driver.register.trouble
        )

    @people.get("/nodes")
    async def read_nodes() -> dict[str, str]:
        """Return the address of each node at which the others reach its workers."""
        return {str(node): address for node, address in driver.nodes.addresses().items()}

    @people.get("/demand")
    async def read_demand() -> Useful:
        """Return how many replicas the job could use, whatever there is room for."""
        demand, policy = driver.core.demand, driver.core.policy
        decided = [str(driver.board.decision["reason"])] if driver.board.decision else []
        return Useful(
            useful=demand.ask_replicas,
            sizes=list(policy.sizes(max(demand.ask_replicas, policy.min_replicas))),
            slots=demand.num_slots,
            canSuspend=demand.can_suspend,
            reason="; ".join([*decided, *([NOT_KEPT] if driver.is_kept_nowhere else [])]),
        )

    @people.get("/explain")
    async def explain() -> list[Reasoned]:
        """Return the last decisions, oldest first."""
        return list(driver.history.explained.decisions)

    @people.get("/policy")
    async def read_policy() -> dict[str, Any]:
        """Return the elastic policy that counts now, every field of it."""
        return document_of(driver.core.policy)


def _add_requests(people: APIRouter, driver: JobDriver) -> None:
    @people.post("/scale", status_code=202)
    async def scale(body: ScaleBody) -> Accepted:
        """Ask for a number of replicas."""
        return await _request(driver, events.Scaled(target=body.target))

    @people.patch("/policy", status_code=202)
    async def set_policy(changes: dict[str, Any]) -> Accepted:
        """Change fields of the elastic policy; null sets a default.  422 if they contradict."""
        try:
            fields = merged(document_of(driver.core.policy), changes)
            wanted = check(ElasticPolicy, fields, source="the policy")
        except ConfigError as error:
            raise HTTPException(422, str(error)) from None
        policy = start_that_fits(wanted, driver.core.policy.start_replicas)
        return await _request(
            driver, events.PolicySet(policy=policy, said=changes_in_words(changes))
        )

    @people.post("/checkpoint", status_code=202)
    async def save() -> CheckpointComes:
        """Save a checkpoint of the next step boundary; the job trains on."""
        said = await _request(driver, events.CheckpointRequested())
        after = driver.core.state.checkpoints.asked_after
        step = driver.core.state.membership.committed if after is None else after + 1
        return CheckpointComes(step=step, **said.model_dump())

    @people.post("/stop", status_code=202)
    async def stop(body: StopBody | None = None) -> Accepted:
        """Stop the job at the next step boundary, or now."""
        return await _request(driver, events.StopRequested(at_once=(body or StopBody()).now))

    @people.post("/suspend", status_code=202)
    async def suspend(body: SuspendBody | None = None) -> Accepted:
        """Stop the job at the next step boundary, with a checkpoint to go on from."""
        said = body or SuspendBody()
        event = events.SuspendRequested(reason=in_one_line(said.reason), notice_s=said.notice_s)
        return await _request(driver, event)

    @people.post("/nodes/{node}/leave", status_code=202)
    async def leave(node: str, body: LeaveBody | None = None) -> Accepted:
        """Let what a node runs leave at a step boundary, and start nothing there any more."""
        said, head = body or LeaveBody(), driver.node_of(NodeId(node))
        if head is None:
            raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no node {node}")
        reason = in_one_line(said.reason)
        return await _request(
            driver, events.NodeLeaving(node=head, notice_s=said.notice_s, reason=reason)
        )

    @people.post("/replicas/{replica}/drain", status_code=202)
    async def drain(replica: str, body: DrainBody | None = None) -> Accepted:
        """Let a replica leave at a step boundary; the target falls by one."""
        notice_s = (body or DrainBody()).notice_s
        return await _request(
            driver, events.DrainRequested(replica=ReplicaId(replica), notice_s=notice_s)
        )

    @people.post("/replicas/{replica}/kill", status_code=202)
    async def kill(replica: str) -> Accepted:
        """Kill a replica; a replacement starts under a new name."""
        return await _request(driver, events.KillRequested(replica=ReplicaId(replica)))


def _add_offers(people: APIRouter, on_offer: OnOffer | None) -> None:
    @people.put("/offer")
    async def offer(body: Offer) -> Followed:
        """Tell the job what it may use of its pool; one that is not newer changes nothing."""
        if on_offer is None:
            raise HTTPException(status.HTTP_409_CONFLICT, "the job is in no pool")
        return Followed(revision=on_offer(body))


async def _request(driver: JobDriver, event: events.Event) -> Accepted:
    """Hand a request to the core; 409 with its reason if it declines, or if the job is over."""
    ready = await driver.ask(event)
    if ready is None:
        raise HTTPException(status.HTTP_409_CONFLICT, "the job has ended")
    if ready.declined is not None:
        raise HTTPException(status.HTTP_409_CONFLICT, ready.declined.reason)
    board = driver.board
    decided = str((board.decision or {}).get("reason") or "")
    reason = _answer(event, "; ".join(ready.notes), decided)
    return Accepted(target_replicas=board.target_replicas, reason=reason)


def _answer(event: events.Event, notes: str, decided: str) -> str:
    """Say what comes of a request; what is noted may be of a change that was under way before."""
    match event:
        case events.Scaled() if decided:
            return decided
        case events.DrainRequested(replica=name):
            return f"{name} leaves" + f"; {decided}" * bool(decided)
        case events.KillRequested(replica=name):
            return f"{name} is killed" + f"; {notes}" * bool(notes)
        case _:
            return notes or decided
