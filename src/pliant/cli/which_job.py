"""Which job a command is about: one that runs here, or one that another host coordinates.

Owns the options that name one elsewhere, once for all commands (``from_any_host``), and the way
from what was typed to the job's handle (``the_job``).  Knows nothing of what is asked.

    pliant scale 4 --> the_job --> observe.runs.find_running --> machine.registry: URL, token, TLS
    pliant scale 4 --join gpu1:7000 ... --> the_job: the same handle, of these words
    pliant top --job kube:team-a/gpt --> cluster_jobs.ClusterJob: the same handle, of a cluster
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

from pliant.cli.arguments import TlsCa, TlsCertificate, TlsKey, state_directory
from pliant.cli.cluster_jobs import CLUSTER_JOB, ClusterJob
from pliant.cli.help import option, with_parameters
from pliant.cli.job_settings import tls_files
from pliant.cli.terminal import say_aside
from pliant.client import Job, handle_at
from pliant.core.errors import ConfigError
from pliant.core.values import TlsFiles
from pliant.http.client import Caller
from pliant.machine.host_look import connect_obstacle
from pliant.machine.interfaces import place_of, resolved
from pliant.machine.registry import Handle, running_jobs
from pliant.observe.runs import find_running
from pliant.run.register_location import places_now

HTTP_PORT, HTTPS_PORT = 80, 443

HANGS_S = 3.0
"""After which a coordinator that says nothing is not the one that coordinates now, in seconds."""

JobPlace = str | Handle | None
"""The name of a job on this host, or one elsewhere; None: the only one on this host."""

Join = Annotated[
    str | None,
    option(
        "--join PLACE",
        "The job is coordinated on another host: there, or where its agents look for it.",
    ),
]
TokenFile = Annotated[Path | None, option("--token-file FILE", "Of that job.")]
Context = Annotated[
    str | None, option("--context NAME", "Of the kubeconfig, for --job kube:NAMESPACE/NAME.")
]
_OPTIONS = {
    "join": Join,
    "token_file": TokenFile,
    "tls_ca": TlsCa,
    "tls_certificate": TlsCertificate,
    "tls_key": TlsKey,
    "context": Context,
}


def from_any_host(function: Callable[..., int]) -> Callable[..., int]:
    """Give a command that has ``--job`` the options for a job elsewhere; its ``job`` is either."""
    return _from_anywhere(function, lambda job: job.handle())


def from_any_host_or_resource(function: Callable[..., int]) -> Callable[..., int]:
    """As ``from_any_host``; but a job in a cluster is its resource, which the command changes."""
    return _from_anywhere(function, lambda job: job)


def _from_anywhere(
    function: Callable[..., int], of_cluster: Callable[[ClusterJob], Handle | ClusterJob]
) -> Callable[..., int]:
    @wraps(function)
    def run(**values: Any) -> int:
        given = {name: values.pop(name) for name in _OPTIONS}
        context, job = given.pop("context"), values["job"]
        here = {"--job": job, "--out": values.get("out"), "--pool": values.get("of_pool")}
        if job is not None and job.startswith(CLUSTER_JOB):
            values["job"] = of_cluster(_in_cluster(here, context, **given))
        elif context is not None:
            raise ConfigError(f"--context {context} needs --job kube:NAMESPACE/NAME")
        else:
            values["job"] = _place(here, **given)
        return function(**values)

    own = inspect.signature(function, eval_str=True).parameters.values()
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    return with_parameters(run, [*own, *more])


def _in_cluster(
    here: Mapping[str, Any], context: str | None, *, join: str | None, **given: Path | None
) -> ClusterJob:
    require_join(**given)
    for flag, value in {**here, "--join": join}.items():
        if value is not None and flag != "--job":
            raise ConfigError(f"{flag} {value} does not go with --job {here['--job']}; give one")
    return ClusterJob.of(here["--job"], context)


def the_job(job: JobPlace) -> Job:
    """Return the job that is meant; say which, if several run and none was named.

    Raises:
        ConfigError: it does not run, or none does.
    """
    if isinstance(job, Handle):
        return Job(handle=job)
    state = state_directory()
    found = find_running(job, state)
    if job is None and len(running_jobs(state.jobs)) > 1:
        say_aside(f"of several running jobs this is {found.name}, in {found.out} (--job NAME)")
    return Job(handle=found)


def require_join(**given: Path | None) -> None:
    """Refuse what is for a coordinator elsewhere where none is named.

    What the environment of a host says once for all commands is no such request.

    Raises:
        ConfigError: something of it is given.
    """
    for name, value in given.items():
        always = os.environ.get(f"PLIANT_{name.upper()}") if name != "token_file" else None
        if value is not None and (always is None or value != Path(always)):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is for the coordinator that --join names; give both")


def _place(
    here: Mapping[str, Any], *, join: str | None, token_file: Path | None, **tls: Path | None
) -> JobPlace:
    if join is None:
        require_join(token_file=token_file, **tls)
        job: str | None = here["--job"]
        return job
    for flag, value in here.items():
        if value is not None:
            raise ConfigError(f"{flag} {value} is of this host, and --join of another; give one")
    if token_file is None:
        raise ConfigError(f"--join {join} needs --token-file FILE, with the job's token in it")
    files = tls_files(**{name.removeprefix("tls_"): path for name, path in tls.items()})
    place = _place_that_answers(places_now(join), files)
    return handle_at(place, files, token_file)


def _place_that_answers(places: list[str], tls: TlsFiles | None) -> str:
    """Return the first place that answers: of several hosts one coordinates now.

    A process that hangs still listens.  Where none answers, the first that listens is asked, which
    says why.
    """
    if len(places) == 1:
        return places[0]
    listening = list(filter(_is_listening, places))
    for place in listening:
        with suppress(ConfigError):
            Caller(handle_at(place, tls)).ask("GET", "/healthz", timeout_s=HANGS_S)
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
