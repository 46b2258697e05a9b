"""A pool that offers what it is told to: the other side of ``wire.offers``, in its own process.

    python tests/processes/fake_pool.py NAME

Beside the paths of a pool it has two for the test: what a claim is to be offered from now on, and
what was reported.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from pliant.machine.registry import RuntimeFiles, StateDirectory
from pliant.wire.offers import Offer, Report

TOKEN = "of the pool"
LIFE = uuid.uuid4().hex


class State:
    """What each claim is offered and has reported."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.revision = 0
        self.offers: dict[str, Offer] = {}
        self.reports: dict[str, list[Report]] = {}
        self.refusal = ""

    def change(self, claim: str, values: dict[str, Any]) -> Offer:
        with self.lock:
            self.revision += 1
            values = {"replicas": len(values.get("devices", ())), **values}
            offer = Offer(pool=LIFE, revision=self.revision, pool_devices=8, **values)
            self.offers[claim] = offer
            return offer

    def hear(self, claim: str, report: Report) -> Offer:
        if claim not in self.offers:
            self.change(claim, {"devices": report.holds, "reason": "nothing was offered yet"})
        with self.lock:
            known = self.reports.setdefault(claim, [])
            if not known or known[-1] != report:
                known.append(report)
            return self.offers[claim]


STATE = State()


class Handler(BaseHTTPRequestHandler):
    """The pool's interface, and the test's."""

    def do_GET(self) -> None:
        _, _, claim = self.path.rpartition("/")
        with STATE.lock:
            reports = [r.model_dump(mode="json") for r in STATE.reports.get(claim, [])]
        self._answer(200, reports)

    def do_PUT(self) -> None:
        _, _, claim = self.path.rpartition("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.startswith("/test/refuse"):
            STATE.refusal = body["sentence"]
            self._answer(200, {})
        elif self.path.startswith("/test/"):
            is_pushed = body.pop("is_pushed")
            offer = STATE.change(claim, body)
            if is_pushed:
                push(claim, offer)
            self._answer(200, {})
        elif self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, {"detail": "the pool's token is missing or wrong"})
        elif STATE.refusal:
            self._answer(409, {"detail": STATE.refusal})
        else:
            offer = STATE.hear(claim, Report.model_validate(body))
            self._answer(200, offer.model_dump(mode="json"))

    def do_DELETE(self) -> None:
        _, _, claim = self.path.partition("?")[0].rpartition("/")
        with STATE.lock:
            STATE.offers.pop(claim, None)
            STATE.reports.pop(claim, None)
        self._answer(200, {})

    def log_message(self, *_: object) -> None:
        """Be silent."""

    def _answer(self, code: int, values: object) -> None:
        data = json.dumps(values).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def push(claim: str, offer: Offer) -> None:
    with STATE.lock:
        reports = STATE.reports.get(claim, [])
        to = reports[-1] if reports else None
    if to is not None and to.url:
        httpx.put(
            f"{to.url}/v1/offer",
            json=offer.model_dump(mode="json"),
            headers={"Authorization": f"Bearer {to.token}"},
            trust_env=False,
        ).raise_for_status()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files = RuntimeFiles.of("pool", sys.argv[1], StateDirectory.of(os.environ).pools)
    files.write(url=f"http://127.0.0.1:{server.server_port}", token=TOKEN, out=Path("unused"))
    server.serve_forever()
