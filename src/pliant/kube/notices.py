"""Events about jobs, for ``kubectl describe``: each said once, and counted when it comes again.

Owns their names and when one is repeated; a loss of them is no loss of the job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pliant.core.operator.actions import Event
from pliant.kube.client import EVENTS, MANAGER, ApiError, Call, Object, create, patch

AGAIN_S = 300.0
"""The same about the same job is said again after that."""

MOST_KNOWN = 2000

MOST_NOTE = 1000
"""Letters of a note; the API server takes 1024 bytes."""


class Notices:
    """What was said about which job, and how often."""

    def __init__(self, send: Callable[[Call], Awaitable[Any]], *, identity: str) -> None:
        self._send = send
        self._identity = identity
        self._known: dict[str, tuple[float, int]] = {}

    async def say(self, job: Object, event: Event, *, now_s: float) -> None:
        """Say something about a job, unless it was said a moment ago."""
        meta = job["metadata"]
        text = f"{meta['uid']} {event.reason} {event.note}"
        name = f"{meta['name'][:200]}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        said_s, count = self._known.get(name, (-AGAIN_S, 0))
        if now_s - said_s < AGAIN_S:
            return
        self._known[name] = now_s, count + 1
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        at = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        try:
            await self._send(create(self._body(job, event, name, at)))
        except ApiError as error:
            if error.is_conflict:  # it was said before, perhaps by an operator before this one
                series = {"series": {"count": count + 2, "lastObservedTime": at}}
                with suppress(ApiError):
                    await self._send(patch(EVENTS, name, meta["namespace"], series))

    def _body(self, job: Object, event: Event, name: str, at: str) -> Object:
        meta = job["metadata"]
        return {
            "apiVersion": EVENTS.api,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": meta["namespace"]},
            "eventTime": at,
            "reportingController": f"pliant.dev/{MANAGER}",
            "reportingInstance": self._identity[:128],
            "action": event.reason,
            "reason": event.reason,
            "type": "Warning" if event.is_warning else "Normal",
            "note": event.note[:MOST_NOTE],
            "regarding": {
                "apiVersion": job["apiVersion"],
                "kind": job["kind"],
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
        }
