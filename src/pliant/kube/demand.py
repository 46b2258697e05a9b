"""Asks the coordinators what they could use, and tells them who leaves.

Owns how a coordinator is reached: at its pod's address, with its job's token and, where the job
names a Secret for TLS, by the name of its Service.  Time-outs are short, and nothing waits for an
answer: a coordinator that is not reached delays no eviction.  Must not know what an answer is for.
"""

from __future__ import annotations

import asyncio
import base64
import random
import ssl
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pliant.core.errors import ConfigError
from pliant.core.operator.actions import TellLeave
from pliant.core.operator.state import CoordinatorView, DemandView
from pliant.core.values import TlsFiles
from pliant.kube import bodies
from pliant.kube.client import SECRETS, Api, ApiError, Object, read
from pliant.kube.job import PORT, KubeJob
from pliant.machine.tls import client_context

EVERY_S, AGAIN_S = 5.0, 1.0
"""Each coordinator is asked so often; one that did not answer, so often."""

FIRST_S = 0.5
"""So long the first answer of a coordinator is waited for; it takes milliseconds."""

LOOK_S = 0.25
"""After which a coordinator that is new is asked."""

TIMEOUT_S = 2.0

AT_ONCE = 20
"""Coordinators that are asked at a time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a coordinator's pod said last."""

    pod_uid: str
    view: CoordinatorView
    at_s: float


class Demands:
    """What every coordinator said; only who leads asks."""

    def __init__(self, api: Api, *, changed: Callable[[KubeJob], None], rng: random.Random) -> None:
        """``changed``: told of the job whose coordinator says something else than before."""
        self._api = api
        self._changed = changed
        self._rng = rng
        self._said: dict[str, Answer] = {}
        self._tokens: dict[str, str] = {}
        self._http: dict[str, httpx.AsyncClient] = {}
        """By uid of the job with TLS; all others have one in common."""
        self._telling: set[asyncio.Task[None]] = set()

    async def first_word(self, job: KubeJob, pod: Object | None) -> None:
        """Ask a coordinator that was never asked, and wait a little for its answer.

        An operator that was started anew would write that it is silent, and then that it is not.
        """
        if pod is not None and pod["status"].get("podIP") and not self._is_known(job, pod):
            await asyncio.wait([self._spawn(self.ask(job, pod))], timeout=FIRST_S)

    def _is_known(self, job: KubeJob, pod: Object) -> bool:
        said = self._said.get(job.uid)
        return said is not None and said.pod_uid == pod["metadata"]["uid"]

    def view(self, job: KubeJob, pod: Object | None) -> CoordinatorView:
        """Return what this pod said last; nothing of another one."""
        if pod is None or not self._is_known(job, pod):
            return CoordinatorView()
        return self._said[job.uid].view

    async def run(self, running: Callable[[], list[tuple[KubeJob, Object]]]) -> None:
        """Ask until cancelled; ``running``: returns jobs and their coordinators' pods."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(job: KubeJob, pod: Object) -> None:
            async with gate:
                await self.ask(job, pod)

        while True:
            due = [(job, pod) for job, pod in running() if self._is_due(job, pod)]
            await asyncio.gather(*(one(job, pod) for job, pod in due))
            await asyncio.sleep(LOOK_S)

    def _is_due(self, job: KubeJob, pod: Object) -> bool:
        if not self._is_known(job, pod):
            return True
        said = self._said[job.uid]
        every_s = EVERY_S if said.view.is_reached else AGAIN_S
        return time.monotonic() - said.at_s > every_s * self._rng.uniform(0.9, 1.1)

    async def ask(self, job: KubeJob, pod: Object) -> None:
        """Ask one coordinator."""
        uid, before = pod["metadata"]["uid"], self.view(job, pod)
        try:
            said = await self._send(job, pod, "GET", "/v1/demand")
            view = CoordinatorView(
                is_reached=True, demand=_demand(said), num_replicas=said.get("replicas")
            )
        except (httpx.HTTPError, ApiError, ConfigError, ValueError, KeyError, TypeError):
            view = CoordinatorView(demand=before.demand, num_replicas=before.num_replicas)
            await self._hang_up(job.uid)  # its certificates may be others by now
        self._said[job.uid] = Answer(uid, view, time.monotonic())
        if view != before:
            self._changed(job)

    def tell(self, job: KubeJob, pod: Object | None, action: TellLeave) -> None:
        """Tell a coordinator that a node leaves, without waiting for its answer."""
        if pod is None:
            return

        async def send() -> None:
            body = {"notice_s": action.notice_s, "reason": action.reason}
            try:
                await self._send(job, pod, "POST", f"/v1/nodes/{action.node}/leave", body)
            except (httpx.HTTPError, ApiError, ConfigError, ValueError, KeyError):
                return  # its deletion tells the agent, and the agent the coordinator

        self._spawn(send())

    def forget(self, uid: str) -> None:
        """Forget a job that there is no more."""
        self._said.pop(uid, None)
        self._tokens.pop(uid, None)
        self._spawn(self._hang_up(uid))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return task

    async def _hang_up(self, uid: str) -> None:
        """Close what only this job has: the next request reads its Secret for TLS anew."""
        if (own := self._http.pop(uid, None)) is not None:
            await own.aclose()

    async def close(self) -> None:
        """Say what is being said, and close every connection."""
        await asyncio.gather(*self._telling, return_exceptions=True)
        for client in self._http.values():
            await client.aclose()

    async def _send(
        self, job: KubeJob, pod: Object, method: str, path: str, body: object = None
    ) -> Any:
        address = pod["status"].get("podIP")
        if not address:
            raise ConfigError("the coordinator's pod has no address yet")
        host = f"[{address}]" if ":" in address else address
        scheme = "http" if job.spec.tls is None else "https"
        client, token = await self._client(job), await self._token(job)
        name = {} if job.spec.tls is None else {"sni_hostname": bodies.address_of(job)}
        response = await client.request(
            method,
            f"{scheme}://{host}:{PORT}{path}",
            json=body,
            headers={"Authorization": f"Bearer {token}"},
            extensions=name,
        )
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._tokens.pop(job.uid, None)
        response.raise_for_status()
        return response.json()

    async def _token(self, job: KubeJob) -> str:
        if job.uid not in self._tokens:
            secret = await self._secret(job, job.called("token"))
            self._tokens[job.uid] = secret["token"].decode()
        return self._tokens[job.uid]

    async def _client(self, job: KubeJob) -> httpx.AsyncClient:
        tls = job.spec.tls
        of = "" if tls is None else job.uid
        if of not in self._http:
            trust: ssl.SSLContext | bool = True
            if tls is not None and tls.secret_name is not None:
                trust = _trust(await self._secret(job, tls.secret_name))
            limits = httpx.Limits(max_keepalive_connections=0)
            self._http[of] = httpx.AsyncClient(
                timeout=TIMEOUT_S, trust_env=False, verify=trust, limits=limits
            )
        return self._http[of]

    async def _secret(self, job: KubeJob, name: str) -> Mapping[str, bytes]:
        secret = await self._api.ask(read(SECRETS, name, job.namespace), timeout_s=TIMEOUT_S)
        return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


def _demand(said: Mapping[str, Any]) -> DemandView:
    return DemandView(
        useful=int(said["useful"]),
        num_slots=said.get("slots"),
        can_suspend=bool(said.get("canSuspend")),
        reason=str(said.get("reason") or ""),
    )


def _trust(secret: Mapping[str, bytes]) -> ssl.SSLContext:
    """Return what a job's Secret makes of a connection; the library reads it from files only."""
    with tempfile.TemporaryDirectory() as directory:
        for name in bodies.TLS_FILES.values():
            (Path(directory) / name).write_bytes(secret[name])
        paths = {what: str(Path(directory) / name) for what, name in bodies.TLS_FILES.items()}
        return client_context(TlsFiles(**paths))
