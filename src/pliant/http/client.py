"""The CLI's side of the REST interfaces of jobs and pools.

Owns the requests and turns every way they can fail into one sentence.  Knows nothing of how the
answers are shown.
"""

from __future__ import annotations

from typing import Any

import httpx

from pliant.core.errors import ConfigError
from pliant.machine.discovery import Served

REFUSED = 409
"""HTTP status of what is refused, with the reason."""

TIMEOUT_S = 10.0
"""Longest wait for an answer, in seconds; they answer in milliseconds."""


class Caller:
    """Asks one process that serves here."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._http = httpx.Client(
            base_url=served.url,
            headers={"Authorization": f"Bearer {served.token()}"},
            timeout=TIMEOUT_S,
            trust_env=False,
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what it answers.

        Raises:
            ConfigError: it refuses, or does not answer.
        """
        who = f"{self._served.kind} {self._served.name}"
        try:
            response = self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise ConfigError(f"{who} does not answer at {self._served.url}: {error}") from None
        values = _json(response)
        if response.is_success and isinstance(values, dict):
            return values
        raise ConfigError(refusal(response, self._served.kind))


class Client(Caller):
    """Asks one running job."""

    def status(self) -> dict[str, Any]:
        """Return the documented shape of ``status --json``."""
        return self.ask("GET", "/v1/status")

    def scale(self, target: int) -> dict[str, Any]:
        """Wish for a number of replicas."""
        return self.ask("POST", "/v1/scale", {"target": target})

    def policy(self) -> dict[str, Any]:
        """Return every field of the elastic policy."""
        return self.ask("GET", "/v1/policy")

    def set_policy(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Change some of them."""
        return self.ask("PATCH", "/v1/policy", changes)

    def drain(self, replica: str, notice_s: float) -> dict[str, Any]:
        """Let a replica leave within ``notice_s``."""
        return self.ask("POST", f"/v1/replicas/{replica}/drain", {"notice_s": notice_s})

    def kill(self, replica: str) -> dict[str, Any]:
        """End a replica as a fault would."""
        return self.ask("POST", f"/v1/replicas/{replica}/kill", {})

    def stop(self) -> dict[str, Any]:
        """Stop the job at the next step boundary."""
        return self.ask("POST", "/v1/stop", {})

    def suspend(self) -> dict[str, Any]:
        """Stop the job at the next step boundary, with a checkpoint."""
        return self.ask("POST", "/v1/suspend", {})


def refusal(response: httpx.Response, kind: str) -> str:
    """Return the sentence it answered with, or one that names the status code."""
    values = _json(response)
    if isinstance(values, dict):
        said = values.get("error") or values.get("detail")
        if isinstance(said, str):
            return said
        if isinstance(said, list) and said and isinstance(said[0], dict):
            where = said[0].get("loc") or ("the request",)
            return f"{where[-1]}: {said[0].get('msg', said[0])}"
    return f"the {kind} refused the request with HTTP status {response.status_code}"


def _json(response: httpx.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return None
