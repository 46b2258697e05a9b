"""How many workers a replica has, and with what files it proves itself, as settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pliant.cli.job_settings import hosts_of, tls_of, work_options_of
from pliant.cli.settings import resolve
from pliant.core.errors import ConfigError
from pliant.core.values import Mode, TlsFiles
from pliant.spec.job import ElasticJob
from pliant.spec.load import parse

JOB = """\
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {name: from-file}
spec:
  elasticPolicy: {minReplicas: 2, maxReplicas: 6}
  command: [train.py]
"""

TLS = {"tls_ca": "ca.pem", "tls_certificate": "node.pem", "tls_key": "/tls/node.key"}
WITH_TLS = JOB + "  tls: {ca: /job/ca.pem, certificate: /job/node.pem, key: /job/node.key}\n"


def load(text: str) -> ElasticJob:
    return parse(ElasticJob, text, source="job.yaml")


def test_relative_paths_of_tls_count_from_where_the_command_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    found = tls_of(resolve(TLS, {}, None))

    assert found == TlsFiles(
        ca=str(tmp_path / "ca.pem"), certificate=str(tmp_path / "node.pem"), key="/tls/node.key"
    )


def test_each_file_of_tls_comes_from_the_first_place_that_gives_it() -> None:
    given = {"tls_key": Path("/typed/node.key")}
    environ = {"PLIANT_TLS_KEY": "/var/node.key", "PLIANT_TLS_CERTIFICATE": "/var/node.pem"}

    found = tls_of(resolve(given, environ, load(WITH_TLS)))

    assert found == TlsFiles(ca="/job/ca.pem", certificate="/var/node.pem", key="/typed/node.key")


def test_without_any_file_there_is_no_tls() -> None:
    assert tls_of(resolve({}, {}, load(JOB))) is None


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (("tls_ca",), "--tls-certificate and --tls-key"),
        (("tls_ca", "tls_key"), "--tls-certificate"),
        (("tls_certificate", "tls_key"), "--tls-ca"),
    ],
)
def test_some_files_of_tls_are_not_enough(given: tuple[str, ...], missing: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tls_of(resolve({name: TLS[name] for name in given}, {}, None))

    said = f"{missing} must be given, too: replicas need all three files for TLS"
    assert str(caught.value) == said


def test_how_many_workers_a_replica_has_is_said_like_any_other_setting() -> None:
    job = load(JOB.replace("  command", "  workersPerReplica: 4\n  command"))
    environ = {"PLIANT_WORKERS_PER_REPLICA": "3"}

    def workers_of(*places: Any) -> int:
        return int(resolve(*places)["workers_per_replica"].value)

    assert workers_of({}, {}, None) == 1
    assert workers_of({}, {}, job) == 4
    assert workers_of({}, environ, job) == 3
    assert workers_of({"workers_per_replica": 2}, environ, job) == 2


def test_over_how_many_hosts_a_replica_is_divided_is_said_like_any_other_setting() -> None:
    job = load(JOB.replace("  command", "  workersPerReplica: 4\n  hostsPerReplica: 2\n  command"))

    assert hosts_of(resolve({}, {}, None)) == 1
    assert hosts_of(resolve({}, {}, job)) == 2
    assert hosts_of(resolve({}, {"PLIANT_HOSTS_PER_REPLICA": "4"}, job)) == 4
    assert hosts_of(resolve({"hosts_per_replica": 1}, {}, job)) == 1


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_a_replica_has_at_least_one_worker_and_no_more_than_a_node_devices(count: int) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"workers_per_replica": count}, {}, None)

    assert str(caught.value) == f"--workers-per-replica {count} must be between 1 and 10000"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"init": "weights.pt"}, "--init weights.pt"),
        ({"verify_every": 5}, "--verify-every 5"),
        ({"balance": "speed"}, "--balance speed"),
        ({"exchange": "host"}, "--exchange host"),
        ({"from_checkpoint": "never"}, "--from-checkpoint never"),
        ({"workers_per_replica": 2, "hosts_per_replica": 2}, "--hosts-per-replica 2"),
    ],
)
def test_what_a_session_reads_is_refused_in_restart_mode(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        work_options_of(resolve({"mode": "restart", **given}, {}, None))

    assert str(caught.value) == (
        f"{said} is for scripts with a pliant.Session, and mode restart starts scripts as they are;"
        " leave out one of them"
    )


def test_a_job_file_gives_the_mode() -> None:
    found = work_options_of(resolve({}, {}, load(JOB + "  mode: restart\n")))

    assert found["mode"] is Mode.RESTART
