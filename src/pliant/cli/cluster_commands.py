"""``pliant submit``, ``get``, ``describe``, ``delete``: jobs in a Kubernetes cluster.

Owns their argv, and how the status of an ElasticJob is shown: from its resource alone, so that it
can be read when the job's coordinator cannot be reached.  Knows nothing of how the operator carries
a job out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from rich.text import Text

from pliant.cli.arguments import Json
from pliant.cli.cluster_jobs import CLUSTER_JOB, api_of, asked, refusal
from pliant.cli.help import argument, option
from pliant.cli.job_file import read_job
from pliant.cli.screens import duration
from pliant.cli.terminal import draw, plain_table, print_json, say, say_aside
from pliant.core.errors import EXIT_OK, ConfigError
from pliant.core.text import counted, printable
from pliant.kube import client
from pliant.kube.client import ELASTIC_JOBS, ApiError, SyncApi
from pliant.kube.job import QUEUE_LABEL
from pliant.kube.status import seconds_of
from pliant.machine.files import read_named
from pliant.recipes.auto import fill

MANAGER = "pliant-submit"
"""Who owns the fields of a job that a person wrote."""

POLL_S = 0.5
"""Between two looks whether a deleted job is gone, in seconds."""

EVENTS_SHOWN = 10

Namespace = Annotated[
    str | None, option("-n --namespace NAME", "Its namespace.  [default: that of the context]")
]
Context = Annotated[
    str | None, option("--context NAME", "Of the kubeconfig.  [default: its current one]")
]
Name = Annotated[str, argument("NAME", "Of the job.")]


def submit(
    path: Annotated[Path, argument("FILE", "A job file.")],
    namespace: Namespace = None,
    context: Context = None,
    dry_run: Annotated[
        bool, option("--dry-run", "Have the cluster check it, and change nothing.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Run a job in a Kubernetes cluster, or change one that is there."""
    text = read_named(path)
    job, reasons = read_job(path, text, is_here=False)
    body = yaml.safe_load(text)
    fill(body, path)
    for reason in reasons:
        say_aside(f"{path}: {reason}")
    own = job.metadata.namespace
    if own is not None and namespace not in (None, own):
        raise ConfigError(
            f"{path} says metadata.namespace {own}, and --namespace {namespace}; leave out one"
        )
    if job.spec.elastic_policy.max_replicas is None:
        raise ConfigError(
            f"{path} must say spec.elasticPolicy.maxReplicas: in a cluster that bounds what the "
            "job asks for"
        )
    name = job.metadata.name
    with api_of(context, namespace or own) as api:
        where = body["metadata"]["namespace"] = api.cluster.namespace
        if job.spec.queue is not None and job.spec.queue.name is not None:
            labels = body["metadata"].setdefault("labels", {})
            labels.setdefault(QUEUE_LABEL, job.spec.queue.name)
        call = client.apply(body, manager=MANAGER, force=False, dry_run=dry_run)
        applied = asked(api, call, name)
    if as_json:
        return print_json(applied)
    where = f"{where}/{name}"
    if dry_run:
        return say(f"the cluster would take {where}")
    is_new = applied["metadata"].get("generation") == 1 and not applied.get("status")
    return say(
        f"{where} is {'submitted' if is_new else 'changed'}; pliant get {name} shows it, and "
        f"pliant status --job {CLUSTER_JOB}{where} what it does"
    )


def get(
    name: Annotated[str | None, argument("NAME", "Only this job.")] = None,
    namespace: Namespace = None,
    all_namespaces: Annotated[bool, option("-A --all-namespaces", "Of all namespaces.")] = False,
    context: Context = None,
    as_json: Json = False,
) -> int:
    """List the jobs of a namespace of a cluster."""
    with api_of(context, namespace) as api:
        where = None if all_namespaces else api.cluster.namespace
        found = _found(api, name, where)
    if as_json:
        return print_json({"jobs": found})
    if not found:
        return say(f"there is no job in {'the cluster' if where is None else where}")
    table = plain_table("namespace", "job", "phase", "replicas", "for", "why", pad_edge=False)
    for job in found:
        table.add_row(*map(Text, _row(job)))
    return draw(table)


def _found(api: SyncApi, name: str | None, where: str | None) -> list[dict[str, Any]]:
    if name is not None:
        return [asked(api, client.read(ELASTIC_JOBS, name, api.cluster.namespace), name)]
    try:
        return api.list(client.listing(ELASTIC_JOBS, where))[0]
    except ApiError as error:
        raise refusal(error, api.cluster, None) from error


def describe(
    name: Name, namespace: Namespace = None, context: Context = None, as_json: Json = False
) -> int:
    """Show what a job of a cluster does and waits for: its conditions, increments and events."""
    with api_of(context, namespace) as api:
        job = asked(api, client.read(ELASTIC_JOBS, name, api.cluster.namespace), name)
        events = _events_of(api, job)
    if as_json:
        return print_json({"job": job, "events": events})
    say("\n".join(_described(job)))
    conditions = job.get("status", {}).get("conditions") or []
    if conditions:
        table = plain_table("condition", "is", "since", "why", pad_edge=False)
        for one in conditions:
            since = _ago(one.get("lastTransitionTime"))
            why = printable(one.get("message") or one.get("reason") or "")
            table.add_row(*map(Text, (one["type"], one["status"], since, why)))
        say("")
        draw(table)
    if events:
        table = plain_table("event", "when", "what", pad_edge=False)
        for one in events:
            what = printable(one.get("note") or "")
            table.add_row(*map(Text, (str(one.get("reason")), _ago(_time_of(one)), what)))
        say("")
        draw(table)
    return EXIT_OK


def delete(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    wait: Annotated[bool, option("--wait", "Return once nothing of it is left.")] = False,
) -> int:
    """Delete a job of a cluster with its pods; checkpoints stay where they are."""
    propagation = "Foreground" if wait else "Background"
    with api_of(context, namespace) as api:
        where = api.cluster.namespace
        asked(api, client.delete(ELASTIC_JOBS, name, where, propagation=propagation), name)
        if wait:
            _wait_until_gone(api, name)
    return say(f"{where}/{name} is {'gone' if wait else 'being deleted'}")


def _wait_until_gone(api: SyncApi, name: str) -> None:
    pause = threading.Event()
    while True:
        try:
            api.ask(client.read(ELASTIC_JOBS, name, api.cluster.namespace))
        except ApiError as error:
            if error.is_gone:
                return
            raise refusal(error, api.cluster, name) from error
        pause.wait(POLL_S)


def _events_of(api: SyncApi, job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the newest Events about a job, newest first; none where they may not be read."""
    fields = f"regarding.uid={job['metadata']['uid']}"
    try:
        call = client.listing(client.EVENTS, job["metadata"]["namespace"], fields=fields)
        found, _ = api.list(call)
    except ApiError:
        return []
    return sorted(found, key=_time_of, reverse=True)[:EVENTS_SHOWN]


def _time_of(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    meta = event["metadata"].get("creationTimestamp")
    return str(series.get("lastObservedTime") or event.get("eventTime") or meta or "")


# --- how it is shown


def _row(job: Mapping[str, Any]) -> Iterable[str]:
    meta, status = job["metadata"], job.get("status") or {}
    phase = str(status.get("phase") or "Unknown")
    why = status.get("reason") or "the operator has not seen it yet"
    since = _ago(meta.get("creationTimestamp"))
    return (meta["namespace"], meta["name"], phase, _sizes(job), since, printable(why))


def _sizes(job: Mapping[str, Any]) -> str:
    """Say how many replicas train, and how many there may be."""
    policy, status = job["spec"].get("elasticPolicy") or {}, job.get("status") or {}
    return f"{status.get('replicas') or 0}/{policy.get('maxReplicas', '?')}"


def _described(job: Mapping[str, Any]) -> Iterable[str]:
    spec, status = job["spec"], job.get("status") or {}
    policy = spec.get("elasticPolicy") or {}
    phase = status.get("phase") or "Unknown"
    reason = status.get("reason") or "the operator has not seen it yet"
    yield f"{job['metadata']['namespace']}/{job['metadata']['name']}: {phase}, {printable(reason)}"
    what = " ".join(spec.get("command") or ["a recipe"])
    yield f"  command: {printable(what)}"
    low, high = policy.get("minReplicas", 1), policy.get("maxReplicas")
    yield f"  replicas: {counted(int(status.get('replicas') or 0), 'replica')}, {low} to {high}"
    for words, field in (
        ("admitted", "admittedReplicas"),
        ("could use", "wantedReplicas"),
        ("asks for", "pending"),
        ("wished for", "wish"),
    ):
        value = spec.get("replicas") if field == "wish" else status.get(field)
        if value not in (None, ""):
            yield f"  {words}: {printable(str(value))}"
    ending = ((status.get("memory") or {}).get("outcome") or {}).get("ending") or {}
    for name in ("digest", "audit"):
        if ending.get(name):
            yield f"  {name}: {printable(str(ending[name]))}"


def _ago(stamp: str | None) -> str:
    """Say how long ago a moment was that the cluster wrote."""
    at_s = seconds_of(stamp)
    return "" if at_s is None else duration(max(0.0, time.time() - at_s))
