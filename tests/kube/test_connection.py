"""A cluster is found as kubectl finds it, or as a pod is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pliant.core.errors import ConfigError
from pliant.kube import connection
from pliant.kube.connection import cluster_of


def kubeconfig(directory: Path, **user: Any) -> dict[str, str]:
    contexts = [
        {"name": "first", "context": {"cluster": "one", "user": "ada"}},
        {"name": "second", "context": {"cluster": "two", "user": "ada", "namespace": "team-b"}},
    ]
    clusters = [
        {"name": name, "cluster": {"server": f"http://{name}.example:8080"}}
        for name in ("one", "two")
    ]
    file = directory / "config"
    file.write_text(
        yaml.safe_dump(
            {
                "current-context": "first",
                "contexts": contexts,
                "clusters": clusters,
                "users": [{"name": "ada", "user": user}],
            }
        )
    )
    return {"KUBECONFIG": str(file)}


def test_the_current_context_and_its_namespace_hold_unless_others_are_named(tmp_path: Path) -> None:
    environ = kubeconfig(tmp_path, token="secret")
    first = cluster_of(environ)
    assert (first.url, first.namespace) == ("http://one.example:8080", "default")
    assert first.authorization() == "Bearer secret"
    second = cluster_of(environ, context="second")
    assert (second.url, second.namespace) == ("http://two.example:8080", "team-b")
    assert cluster_of(environ, context="second", namespace="mine").namespace == "mine"
    with pytest.raises(ConfigError, match="configuration cannot be used: Invalid kube-config"):
        cluster_of(environ, context="third")


def test_a_credential_plugin_is_run_and_told_of_when_it_gives_nothing(tmp_path: Path) -> None:
    api = "client.authentication.k8s.io/v1"
    credential = {"apiVersion": api, "kind": "ExecCredential", "status": {"token": "of plugin"}}
    plugin = {"apiVersion": api, "command": "echo", "args": [json.dumps(credential)]}
    assert cluster_of(kubeconfig(tmp_path, exec=plugin)).authorization() == "Bearer of plugin"
    with pytest.raises(ConfigError, match="credential plugin false gave no credential"):
        cluster_of(kubeconfig(tmp_path, exec={"apiVersion": api, "command": "false"}))


def test_a_pod_is_its_service_account_and_reads_its_token_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SERVICE_ACCOUNT", tmp_path)
    import certifi

    (tmp_path / "ca.crt").write_text(Path(certifi.where()).read_text())
    (tmp_path / "token").write_text("first")
    (tmp_path / "namespace").write_text("pliant-system")
    environ = {
        "HOME": str(tmp_path / "none"),
        "KUBERNETES_SERVICE_HOST": "fd00::1",
        "KUBERNETES_SERVICE_PORT": "443",
    }
    found = cluster_of(environ)
    assert (found.url, found.namespace) == ("https://[fd00::1]:443", "pliant-system")
    assert found.authorization() == "bearer first"
    with pytest.raises(ConfigError, match="no cluster is configured"):
        cluster_of({"HOME": str(tmp_path / "none")})


def test_no_generated_class_is_imported_and_the_whole_client_still_can_be(tmp_path: Path) -> None:
    script = f"""
import sys
from pliant.kube.connection import cluster_of
cluster_of({kubeconfig(tmp_path, token="t")!r})
assert not [name for name in sys.modules if name.startswith("kubernetes.client.models")]
import kubernetes.client
assert kubernetes.client.V1Pod and kubernetes.config
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)


def test_who_lacks_the_client_is_told_which_extra_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'pliant\[kube\]'"):
        cluster_of(kubeconfig(tmp_path, token="t"))
