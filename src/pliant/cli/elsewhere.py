"""A job that is coordinated on another host: by which words a command is told where.

Owns these options, once for all commands (``from_any_host``), and what contradicts them.  Knows
nothing of what is asked there.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from pliant.cli.job_settings import tls_files
from pliant.cli.options import TlsCa, TlsCertificate, TlsKey
from pliant.core.errors import ConfigError
from pliant.core.tls_files import TlsFiles
from pliant.http.client import Caller, DistantJob, rest_url
from pliant.machine.host_look import connect_obstacle
from pliant.machine.interfaces import place_of, resolved
from pliant.run.coordinator_places import places_now
from pliant.run.run_directory import read_token

HTTP_PORT, HTTPS_PORT = 80, 443

HANGS_S = 3.0
"""After which a coordinator that says nothing is not the one that coordinates now, in seconds."""

JobPlace = str | DistantJob | None
"""The name of a job on this host, or one elsewhere; None: the only one on this host."""

Join = Annotated[
    str | None,
    typer.Option(
        "--join",
        metavar="PLACE",
        help="The job is coordinated on another host: there, or where its agents look for it.",
    ),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="Of that job.")
]
_OPTIONS = {
    "join": Join,
    "token_file": TokenFile,
    "tls_ca": TlsCa,
    "tls_certificate": TlsCertificate,
    "tls_key": TlsKey,
}


def from_any_host(function: Callable[..., int]) -> Callable[..., int]:
    """Give a command that has ``--job`` the options for a job elsewhere; its ``job`` is either."""

    @wraps(function)
    def run(**values: Any) -> int:
        given = {name: values.pop(name) for name in _OPTIONS}
        values["job"] = _place(values["job"], values.get("out"), values.get("of_pool"), **given)
        return function(**values)

    own = inspect.signature(function, eval_str=True).parameters.values()
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    run.__signature__ = inspect.Signature([*keyword, *more])  # type: ignore[attr-defined]
    return run


def require_join(
    token_file: Path | None,
    tls_ca: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
) -> None:
    """Refuse what is for a coordinator elsewhere where none is named.

    What the environment of a host says once for all commands is no such request.

    Raises:
        ConfigError: something of it is given.
    """
    given = {
        "--token-file": (token_file, None),
        "--tls-ca": (tls_ca, os.environ.get("PLIANT_TLS_CA")),
        "--tls-certificate": (tls_certificate, os.environ.get("PLIANT_TLS_CERTIFICATE")),
        "--tls-key": (tls_key, os.environ.get("PLIANT_TLS_KEY")),
    }
    for flag, (value, always) in given.items():
        if value is not None and (always is None or value != Path(always)):
            raise ConfigError(f"{flag} is for the coordinator that --join names; give both")


def _place(
    job: str | None,
    out: Path | None,
    pool: str | None,
    *,
    join: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
) -> JobPlace:
    if join is None:
        require_join(token_file, tls_ca, tls_certificate, tls_key)
        return job
    for flag, value in (("--job", job), ("--out", out), ("--pool", pool)):
        if value is not None:
            raise ConfigError(f"{flag} {value} is of this host, and --join of another; give one")
    if token_file is None:
        raise ConfigError(f"--join {join} needs --token-file FILE, with the job's token in it")
    tls = tls_files(tls_ca, tls_certificate, tls_key)
    place = _place_that_answers(places_now(join), tls)
    return DistantJob(place, rest_url(place, tls), read_token(token_file), tls)


def _place_that_answers(places: list[str], tls: TlsFiles | None) -> str:
    """Return the first place that answers: of several hosts one coordinates now.

    A process that hangs still listens.  Where none answers, the first that listens is asked, which
    says why.

    Raises:
        ConfigError: one is no place, or nobody listens at any of them.
    """
    if len(places) == 1:
        return places[0]
    listening = list(filter(_is_listening, places))
    for place in listening:
        with suppress(ConfigError):
            caller = Caller(DistantJob(place, rest_url(place, tls), "", tls))
            caller.ask("GET", "/healthz", timeout_s=HANGS_S)
            return place
    if listening:
        return listening[0]
    raise ConfigError(f"no coordinator answers at {' or '.join(places)}; see pliant doctor --join")


def _is_listening(place: str) -> bool:
    host, port = place_of(place)
    usual = HTTP_PORT if place.startswith("http:") else HTTPS_PORT
    with suppress(ConfigError):  # one that is gone need not be known any more
        return not connect_obstacle(resolved(host, "--join"), port or usual)[0]
    return False
