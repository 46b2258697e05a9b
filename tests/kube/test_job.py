from __future__ import annotations

from typing import Any

import pytest
from tests.kube.jobs import job

from pliant.core.errors import ConfigError

REFUSED: list[tuple[str, dict[str, Any]]] = [
    (
        "the name of a job in a cluster begins with a letter and has at most 51 lower-case letters,"
        " digits and dashes; 4gpt has not",
        {"name": "4gpt"},
    ),
    (
        "job gpt needs spec.podTemplate in a cluster: the pod of its nodes",
        {"podTemplate": None},
    ),
    (
        "job gpt needs spec.elasticPolicy.maxReplicas in a cluster, where no machine has a number"
        " of cores",
        {"elasticPolicy": {"minReplicas": 2}},
    ),
    (
        "job gpt names a pool, which is of one host; in a cluster, name a queue: spec.queue",
        {"pool": {"name": "lab"}},
    ),
    (
        "job gpt names files for TLS, which lie on hosts; in a cluster, name a Secret:"
        " spec.tls.secretName",
        {"tls": {"ca": "ca.pem", "certificate": "node.pem", "key": "node.key"}},
    ),
]


@pytest.mark.parametrize(("sentence", "changed"), REFUSED)
def test_what_only_a_host_could_run_is_refused(sentence: str, changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        job(**changed)

    assert str(caught.value) == sentence


def test_the_workers_of_a_replica_are_divided_over_its_pods() -> None:
    found = job(workersPerReplica=16, hostsPerReplica=2)

    assert (found.pods_per_replica, found.devices_per_pod) == (2, 8)
