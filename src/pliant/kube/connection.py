"""Which cluster, and who asks: as kubectl finds it, or as a pod is told.

Owns how a configuration becomes a URL, a trust and an ``Authorization`` header; the official client
(``kubernetes.config``) reads kubeconfigs, runs credential plugins and reads a service account's
token again.  Knows nothing of what is asked.

The official client's packages import a class for each kind of object, 35 MB in all, and what reads
configurations needs one of them.  So its parents are stood in for while it is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import ssl
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant.core.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, its namespace, and whom to trust."""

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One API server as one user sees it."""

    url: str
    context: str
    """As the kubeconfig calls it; ``in-cluster`` of a pod's service account."""
    namespace: str = DEFAULT_NAMESPACE
    """For what names none."""
    authorization: Callable[[], str | None] = lambda: None
    """Return the header; tokens are renewed by it, so it may block for a plugin."""
    trust: ssl.SSLContext | bool = True
    server_name: str | None = None
    """What the certificate must name, where it is not the URL's host."""
    is_proxied: bool = False
    """Whether HTTPS_PROXY and NO_PROXY hold, as they do for kubectl."""


def cluster_of(
    environ: Mapping[str, str], *, context: str | None = None, namespace: str | None = None
) -> Cluster:
    """Find the cluster: KUBECONFIG, ``~/.kube/config``, the service account, in this order.

    Args:
        environ: of this process.
        context: of the kubeconfig; None: its current one.
        namespace: instead of the context's; None: the context's.

    Raises:
        ConfigError: the extra is missing, or there is no cluster that can be asked.
    """
    kubeconfigs, in_cluster, configuration = _official_client()
    home = Path(environ.get("HOME", "~")).expanduser()
    named = environ.get("KUBECONFIG") or str(home / ".kube" / "config")
    is_there = any(Path(path).expanduser().is_file() for path in named.split(":") if path)
    try:
        if not is_there and context is None and "KUBERNETES_SERVICE_HOST" in environ:
            return _of_service_account(in_cluster, configuration, environ, namespace)
        if not is_there:
            raise ConfigError(
                f"no cluster is configured: {named} does not exist; set KUBECONFIG, or write one "
                "with your provider's command"
            )
        return _of_kubeconfig(kubeconfigs, configuration, named, context, namespace)
    except (kubeconfigs.ConfigException, OSError, ssl.SSLError, ValueError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the cluster's configuration cannot be used: {error}") from error


def _of_service_account(
    in_cluster: Any, configuration: Any, environ: Mapping[str, str], namespace: str | None
) -> Cluster:
    loader = in_cluster.InClusterConfigLoader(
        token_filename=str(SERVICE_ACCOUNT / "token"),
        cert_filename=str(SERVICE_ACCOUNT / "ca.crt"),
        environ=environ,
    )
    loader.load_and_set(configuration)
    own = SERVICE_ACCOUNT / "namespace"
    return _cluster(
        configuration,
        context="in-cluster",
        namespace=namespace or (own.read_text().strip() if own.is_file() else DEFAULT_NAMESPACE),
        is_proxied=False,
    )


def _of_kubeconfig(
    kubeconfigs: Any, configuration: Any, named: str, context: str | None, namespace: str | None
) -> Cluster:
    merged = kubeconfigs.KubeConfigMerger(named)
    loader = kubeconfigs.KubeConfigLoader(
        config_dict=merged.config, active_context=context, config_persister=merged.save_changes
    )
    loader.load_and_set(configuration)
    current = loader.current_context
    user = _named(merged.config.value.get("users"), current["context"].get("user"))
    if "exec" in user and not (configuration.api_key or configuration.cert_file):
        raise ConfigError(
            f"context {current['name']}: the credential plugin {user['exec'].get('command')} gave "
            "no credential; run it by hand to see why"
        )
    return _cluster(
        configuration,
        context=current["name"],
        namespace=namespace or current["context"].get("namespace") or DEFAULT_NAMESPACE,
        is_proxied=True,
    )


def _named(entries: Any, name: str | None) -> dict[str, Any]:
    """Return a user of a kubeconfig; an empty one where it has none of that name."""
    for entry in entries or ():
        one = getattr(entry, "value", entry)
        if one.get("name") == name:
            return one.get("user") or {}
    return {}


def _cluster(configuration: Any, **known: Any) -> Cluster:
    trust: ssl.SSLContext | bool = True
    if configuration.host.startswith("https:"):
        trust = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            trust.load_cert_chain(configuration.cert_file, configuration.key_file)
        if not configuration.verify_ssl:
            trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    return Cluster(
        url=configuration.host,
        authorization=lambda: configuration.get_api_key_with_prefix("BearerToken"),
        trust=trust,
        server_name=configuration.tls_server_name,
        **known,
    )


def _official_client() -> tuple[Any, Any, Any]:
    """Return the modules that read kubeconfigs and service accounts, and an empty configuration."""
    if (spec := importlib.util.find_spec("kubernetes")) is None:
        raise ConfigError("the Kubernetes client is not installed; run: pip install 'pliant[kube]'")
    with _parents_stood_in_for(list(spec.submodule_search_locations or ())):
        kubeconfigs = importlib.import_module("kubernetes.config.kube_config")
        in_cluster = importlib.import_module("kubernetes.config.incluster_config")
        configuration = importlib.import_module("kubernetes.client.configuration").Configuration()
    return kubeconfigs, in_cluster, configuration


@contextmanager
def _parents_stood_in_for(paths: list[str]) -> Iterator[None]:
    """Import below ``kubernetes`` without what its packages import; nothing if they are there."""
    if "kubernetes" in sys.modules:
        yield
        return
    parent, client = types.ModuleType("kubernetes"), types.ModuleType("kubernetes.client")
    parent.__path__, client.__path__ = paths, [f"{path}/client" for path in paths]
    before = set(sys.modules)
    sys.modules |= {"kubernetes": parent, "kubernetes.client": client}
    try:
        read = importlib.import_module("kubernetes.client.configuration")
        vars(client).update(Configuration=read.Configuration, ApiClient=_whole_client)
        yield
    finally:  # whoever imports them after this gets the real ones
        for name in [name for name in sys.modules if name.startswith("kubernetes")]:
            if name not in before:
                del sys.modules[name]


def _whole_client(*args: Any, **kwargs: Any) -> Any:
    """Return the official client itself: what renews a token of OpenID Connect asks with it."""
    return importlib.import_module("kubernetes.client").ApiClient(*args, **kwargs)
