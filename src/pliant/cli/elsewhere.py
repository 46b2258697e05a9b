"""A job that is coordinated on another host: by which words a command is told where.

Owns these options, once for all commands (``from_any_host``), and what contradicts them.  Knows
nothing of what is asked there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from pliant.cli.job_settings import tls_files
from pliant.cli.options import TlsCa, TlsCertificate, TlsKey
from pliant.core.errors import ConfigError
from pliant.http.client import DistantJob, rest_url
from pliant.run.run_directory import read_token

JobPlace = str | DistantJob | None
"""The name of a job on this host, or one elsewhere; None: the only one on this host."""

Join = Annotated[
    str | None,
    typer.Option(
        "--join", metavar="HOST:PORT|URL", help="The job is coordinated there, on another host."
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
        if token_file is not None:
            raise ConfigError("--token-file is for the coordinator that --join names; give both")
        return job
    for flag, value in (("--job", job), ("--out", out), ("--pool", pool)):
        if value is not None:
            raise ConfigError(f"{flag} {value} is of this host, and --join of another; give one")
    if token_file is None:
        raise ConfigError(f"--join {join} needs --token-file FILE, with the job's token in it")
    tls = tls_files(tls_ca, tls_certificate, tls_key)
    return DistantJob(join, rest_url(join, tls), read_token(token_file), tls)
