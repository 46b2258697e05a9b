"""``pliant operator``, ``convert``: jobs of a cluster, and the operator that runs them.

Owns argv and what is printed.  Where no client of Kubernetes is installed, what needs none works.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import typer
import yaml

from pliant.cli.help import CommandGroup, argument, option
from pliant.cli.terminal import say, say_aside
from pliant.core.errors import EXIT_OK, ConfigError
from pliant.machine.files import read_named
from pliant.spec.load import no_yaml

app = typer.Typer(
    name="operator",
    cls=CommandGroup,
    help="Run jobs on Kubernetes.",
    rich_markup_mode=None,
)


@app.command()
def install(
    image: Annotated[
        str, option("--image IMAGE", "Of the operator and the coordinators; see deploy/.")
    ] = "pliant-operator:latest",
    namespace: Annotated[
        str, option("--namespace NAME", "Where the operator runs.")
    ] = "pliant-system",
    pod_monitor: Annotated[
        bool, option("--pod-monitor", "With one, for a Prometheus operator.")
    ] = False,
    context: Annotated[
        str | None, option("--context NAME", "Of the kubeconfig.  [default: its current one]")
    ] = None,
    dry_run: Annotated[
        bool, option("--dry-run", "Print what would be applied, and ask no cluster.")
    ] = False,
) -> int:
    """Install the kind ElasticJob and the operator, or bring them up to date.

    Everything is applied; nothing is deleted.
    """
    from pliant.kube import install as wanted

    installation = wanted.Installation(namespace=namespace, image=image)
    bodies = wanted.objects(installation)
    if pod_monitor:
        bodies.append(wanted.pod_monitor(installation))
    if dry_run:
        return say(yaml.safe_dump_all(bodies, sort_keys=False).rstrip("\n"))
    from pliant.kube import client
    from pliant.kube.connection import cluster_of

    cluster = cluster_of(os.environ, context=context)
    api = client.SyncApi(cluster)
    try:
        for body in bodies:
            api.ask(client.apply(body, manager="pliant-install"))
            say(f"{body['kind']} {body['metadata']['name']} applied")
        config = None
        try:
            place = (wanted.KUEUE_CONFIG, wanted.KUEUE_NAMESPACE)
            config = api.ask(client.read(client.CONFIG_MAPS, *place))
        except client.ApiError as error:
            if not error.is_gone:
                raise
    except client.ApiError as error:
        raise client.refusal_of(error, cluster) from error
    finally:
        api.close()
    if advice := wanted.advice_on_kueue(config):
        say_aside(advice)
    return EXIT_OK


@app.command()
def run(
    image: Annotated[str, option("--image IMAGE", "Of the coordinators that it starts.")],
    namespace: Annotated[
        str | None, option("--namespace NAME", "Its own, for its Lease.  [default: the context's]")
    ] = None,
    identity: Annotated[
        str | None, option("--identity NAME", "Of this one.  [default: the host's name]")
    ] = None,
    listen: Annotated[
        str, option("--listen ADDRESS:PORT", "Serve /healthz, /readyz and /metrics there.")
    ] = "0.0.0.0:8080",
    jobs_in: Annotated[
        str | None, option("--jobs-in NAMESPACE,...", "Run those only.  [default: all]")
    ] = None,
    context: Annotated[
        str | None, option("--context NAME", "Of the kubeconfig.  [default: its current one]")
    ] = None,
) -> int:
    """Be the operator: keep every ElasticJob as its plan says.  One of several leads."""
    from pliant.kube.connection import cluster_of
    from pliant.kube.operator import Settings
    from pliant.kube.process import run_operator

    cluster = cluster_of(os.environ, context=context, namespace=namespace)
    settings = Settings(
        image=image,
        namespace=cluster.namespace,
        identity=identity or socket.gethostname(),
        namespaces=tuple(filter(None, (jobs_in or "").split(","))),
    )
    return run_operator(cluster, settings, listen=listen)


def convert(
    file: Annotated[Path, argument("FILE", "Manifest of another kind of job; - for stdin.")],
) -> int:
    """Make an ElasticJob of a HyperPodPyTorchJob, a PyTorchJob, a TrainJob or a HyperPod recipe.

    It is printed; what could not be carried over is said on stderr, line by line.
    """
    from pliant.kube.convert import converted
    from pliant.recipes import hyperpod

    text = typer.get_text_stream("stdin").read() if str(file) == "-" else read_named(file)
    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        raise no_yaml(error, str(file)) from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ConfigError(f"{file} must hold one job; it holds {len(documents)} documents")
    if hyperpod.is_recipe(documents[0]):
        job, notes = hyperpod.converted(documents[0], source=str(file))
    else:
        found = converted(documents[0], source=str(file))
        job, notes = found.job, [*found.notes]
    for note in notes:
        say_aside(f"{file}: {note}")
    return say(yaml.safe_dump(job, sort_keys=False).rstrip("\n"))
