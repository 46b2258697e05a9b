"""The process of an operator: signals, its log, and what probes and Prometheus ask it.

Owns the HTTP interface: ``/healthz``, ``/readyz`` (200 once everything that is watched is known; it
waits for no Lease, so a second operator is ready, too) and ``/metrics``.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from fastapi import Response

from pliant.core.errors import EXIT_OK, ConfigError
from pliant.core.operator.plan import plan
from pliant.http.app import add_metrics, new_app
from pliant.http.server import answering, open_socket
from pliant.kube.client import Api, Call
from pliant.kube.connection import Cluster
from pliant.kube.operator import Operator, Settings
from pliant.machine.event_loop import on_signals


def run_operator(cluster: Cluster, settings: Settings, *, listen: str) -> int:
    """Run an operator until SIGTERM; return the exit code.

    Raises:
        ConfigError: it cannot listen there.
    """
    host, port = None, None
    with suppress(ValueError):  # no such port
        host, port = urlsplit(f"//{listen}").hostname, urlsplit(f"//{listen}").port
    if host is None or port is None:
        raise ConfigError(f"--listen {listen} is no address with a port, such as 0.0.0.0:8080")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    own = replace(settings, identity=f"{settings.identity}-{secrets.token_hex(4)}")
    return asyncio.run(_run(cluster, own, host, port))


async def _run(cluster: Cluster, settings: Settings, host: str, port: int) -> int:
    def heard(call: Call, code: int, took_s: float) -> None:
        operator.metrics.heard(call, code, took_s)

    api, stop = Api(cluster, heard=heard), asyncio.Event()
    operator = Operator(api, settings, decide=plan)
    app = new_app("pliant operator", __doc__, token=None, whose="the operator")
    add_metrics(app, operator.metrics)

    @app.get("/readyz")
    async def readyz() -> Response:
        """Say which kinds are not known yet."""
        problems = operator.problems()
        return Response("\n".join(problems) or "ok", 503 if problems else 200)

    try:
        with on_signals({signal.SIGTERM: stop.set, signal.SIGINT: stop.set}):
            async with answering(app, open_socket(host, port)):
                await operator.run(stop)
    finally:
        await api.close()
    return EXIT_OK
