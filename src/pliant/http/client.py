"""The CLI's side of the REST interfaces of jobs and pools.

Turns every way they can fail into one sentence.  Knows nothing of what is asked, and of how the
answers are shown.
"""

from __future__ import annotations

import json
import re
import ssl
from typing import Any
from urllib.parse import urlsplit

import httpx

from pliant.core.errors import ConfigError
from pliant.core.values import TlsFiles
from pliant.machine.registry import Handle, Served
from pliant.machine.tls import client_context, fault_of_tls

REFUSED = 409
"""HTTP status of what is refused, with the reason."""

GONE = 410
"""HTTP status of what was ended by somebody else."""

NEXT = "Pliant-Next"
"""Header of a piece of something: what to ask for to get the one behind it."""

NO_TOKEN = 401
"""HTTP status of who shows no token, or another."""

FORBIDDEN = 403
"""HTTP status of what somebody else may do."""

TIMEOUT_S = 10.0
"""Longest wait for an answer, in seconds; they answer in milliseconds."""


class Caller:
    """Asks one process that serves here, or a job elsewhere."""

    def __init__(self, handle: Handle) -> None:
        self._handle, sock = handle, handle.socket
        self._http = httpx.Client(
            base_url=handle.url,
            headers={**authorization(handle), "Content-Type": "application/json"},
            timeout=TIMEOUT_S,
            trust_env=False,
            transport=None if sock is None else httpx.HTTPTransport(uds=str(sock)),
            verify=trust_at(handle.url, handle.tls) if handle.trust is None else handle.trust,
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """Return what it answers."""
        content = None if body is None else json.dumps(body)  # in ASCII, whatever was typed
        response = self._response(method, path, content, timeout_s)
        values = _json(response)
        if isinstance(values, dict):
            return values
        raise ConfigError(refusal(response, self._handle.kind))

    def read(self, path: str) -> tuple[bytes, str]:
        """Return the next piece of something, and by which name the one behind it is asked for."""
        response = self._response("GET", path, None, TIMEOUT_S)
        return response.content, response.headers.get(NEXT, "")

    def _response(
        self, method: str, path: str, content: str | None, timeout_s: float
    ) -> httpx.Response:
        who = f"{self._handle.kind} {self._handle.name}"
        try:
            response = self._http.request(method, path, content=content, timeout=timeout_s)
        except httpx.HTTPError as error:
            tls_fault = fault_of_tls(error, self._handle.url, self._handle.tls)
            said = f"{who} does not answer at {self._handle.url}: {tls_fault or said_of(error)}"
            if tls_fault is None and not isinstance(self._handle, Served):
                said = _unanswered(self._handle, error)
            raise ConfigError(said) from None
        if response.is_success:
            return response
        if response.status_code == NO_TOKEN and not isinstance(self._handle, Served):
            raise ConfigError(
                f"--token-file: the job at {self._handle.name} has another token; give the file "
                "token in the coordinator's --out, or a copy of it"
            )
        raise ConfigError(refusal(response, self._handle.kind))


def authorization(handle: Handle) -> dict[str, str]:
    """Return the header by which a request is let in; none where the kernel says who asks."""
    token = handle.token()
    own = {"Authorization": f"Bearer {token}"} if token else {}
    return own | dict(handle.headers())


def rest_url(join: str, tls: TlsFiles | None) -> str:
    """Return the URL of a coordinator that is named as agents name it.

    Raises:
        ConfigError: it is not the place of one.
    """
    url = (join if "://" in join else f"http://{join}").rstrip("/")
    url = url.replace("ws", "http", 1) if url.startswith("ws") else url
    url = url if tls is None or not url.startswith("http:") else f"https{url[4:]}"
    try:
        parts, is_one = urlsplit(url), bool(httpx.URL(url).host) and not {"@", ","} & set(url)
        is_one &= parts.scheme in ("http", "https") and (parts.port is not None or "://" in join)
    except (httpx.InvalidURL, ValueError):  # the latter: there is no such port
        is_one = False
    if not is_one:
        raise ConfigError(
            f"--join {join} is not the place of a coordinator, such as gpu1:7000 or "
            "https://gpu1:7000"
        )
    return url


def trust_at(url: str, tls: TlsFiles | None) -> ssl.SSLContext | bool:
    """Return what is trusted to be there, and how this process proves itself to it.

    Raises:
        ConfigError: the files cannot be used.
    """
    return client_context(tls) if url.startswith("https:") else True


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


def said_of(error: Exception) -> str:
    """Say what went wrong, as the system calls it where it was the system that refused."""
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def _unanswered(job: Handle, error: httpx.HTTPError) -> str:
    """Say that nobody coordinates at a place: what becomes of the job is not known there."""
    if str(error).startswith("[Errno -"):  # not the system's, but of who looks names up
        return (
            f"{httpx.URL(job.url).host} is not known on this host: {said_of(error)}; give --join "
            "its address"
        )
    return (
        f"no coordinator answers at {job.url}: {said_of(error)}; the job has ended, or trains on "
        "until one is there again: start it with the same words, or name its place in --join"
    )


def _json(response: httpx.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return None
