"""One cluster for all tests of a session; it starts in 15 seconds and takes 0.9 GB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster import building, ground
from tests.cluster.bodies import priority_class
from tests.cluster.cluster import Cluster
from tests.cluster.kubelet import is_ready

NODES = ("node-a", "node-b", "node-c")


@pytest.fixture(scope="session")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := ground.obstacle() or building.missing():
        pytest.skip(reason)
    lent = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield lent
    finally:
        lent.close()


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """Lend the cluster with three nodes that are alive, and expect that it was kept in order."""
    nodes = {node["metadata"]["name"] for node in whole_cluster.objects("Node")}
    for name in NODES:
        if name in nodes and not whole_cluster.kubelet.is_alive(name):
            whole_cluster.revive_node(name)
        elif name not in nodes:
            whole_cluster.add_node(name)
    whole_cluster.wait(
        lambda: all(map(is_ready, whole_cluster.objects("Node"))), "all nodes are ready"
    )
    yield whole_cluster
    for name in NODES:
        if whole_cluster.find("Node", name) is not None:
            whole_cluster.cordon(name, on=False)
            whole_cluster.untaint(name)
    assert whole_cluster.kubelet.problems == []


@pytest.fixture
def team(cluster: Cluster) -> Iterator[str]:
    """Lend a namespace."""
    with cluster.namespace() as name:
        yield name


@pytest.fixture(scope="session")
def installed(whole_cluster: Cluster) -> str:
    """Install the operator as a user does; return its namespace."""
    whole_cluster.pliant("operator", "install")
    for name, value in (("minimum", 1000), ("urgent", 500), ("increments", 100)):
        whole_cluster.apply(priority_class(name, value))
    return "pliant-system"


@pytest.fixture
def operator(cluster: Cluster, installed: str) -> str:
    """Lend an operator that is ready: a Deployment of two pods; return its namespace."""
    cluster.wait_for(
        *("Deployment", f"{installed}/pliant-operator"),
        lambda body: body.get("status", {}).get("readyReplicas") == 2,
        within_s=120,
    )
    return installed
