"""A job is the same again when its document is read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.core.job.state import JobSettings
from pliant.core.policy.decide import Policy, PolicyBackoff
from pliant.core.tenancy import PoolPlace
from pliant.core.values import Incarnation, ReplicaId, TlsFiles
from pliant.run.job_config import MOST_COMMAND_BYTES, JobConfig
from pliant.wire.launch import MAX_RECORD_BYTES, REQUESTS, Assignment, StartWorker


@pytest.mark.parametrize(
    "given",
    [
        Policy(),
        Policy(min_replicas=2, max_replicas=6, start_replicas=4, replica_increment_step=2),
        Policy(min_replicas=2, replica_discrete_values=(2, 4), backoff=PolicyBackoff(factor=3)),
        Policy(scaling_timeout_s=0.5, amortization=False, min_marginal_efficiency=0.1),
    ],
)
def test_a_resumed_run_has_the_policy_that_its_log_tells_of(given: Policy) -> None:
    config = JobConfig(
        name="gpt",
        argv=("train.py", "--steps", "5"),
        settings=JobSettings(policy=given, restart_budget=2),
        out=Path("runs/gpt"),
        pool=PoolPlace(name="gpus", priority="high"),
        tls=TlsFiles(ca="/tls/ca.pem", certificate="/tls/node.pem", key="/tls/node.key"),
        session_s=1800.0,
        workers_per_replica=4,
        hosts_per_replica=2,
        environ={},
    )
    document = json.loads(json.dumps(config.document()))

    assert JobConfig.of(document, name="gpt", out=Path("runs/gpt"), environ={}) == config


def test_agents_are_told_where_a_node_has_its_certificate(tmp_path: Path) -> None:
    files = TlsFiles(ca="/tls/ca.pem", certificate="/tls/node.pem", key="/tls/node.key")
    config = JobConfig(
        name="gpt", argv=("train.py",), settings=JobSettings(), out=tmp_path, environ={}, tls=files
    )

    assert config.work().tls == files
    assert replace(config, tls=None).work().tls is None


def test_a_run_of_before_tls_goes_on_without(tmp_path: Path) -> None:
    config = JobConfig(
        name="gpt", argv=("train.py",), settings=JobSettings(), out=tmp_path, environ={}
    )
    document = config.document()
    del document["tls"]

    assert JobConfig.of(document, name="gpt", out=tmp_path, environ={}) == config


def test_agents_are_told_how_many_workers_a_replica_has(tmp_path: Path) -> None:
    config = JobConfig(
        name="gpt", argv=("train.py",), settings=JobSettings(), out=tmp_path, environ={}
    )
    document = config.document()
    del (
        document["hosts_per_replica"],
        document["workers_per_replica"],
    )  # of a run before there could be several

    assert JobConfig.of(document, name="gpt", out=tmp_path, environ={}) == config
    assert config.work().workers_per_replica == 1
    assert replace(config, workers_per_replica=4).work().workers_per_replica == 4
    assert config.work().hosts_per_replica == 1
    assert replace(config, hosts_per_replica=2).work().hosts_per_replica == 2


def test_a_script_has_nine_tenths_of_the_start_to_make_its_session_unless_told(
    tmp_path: Path,
) -> None:
    settings = JobSettings(start_s=100.0)
    config = JobConfig(name="gpt", argv=("train.py",), settings=settings, out=tmp_path, environ={})

    assert config.work().session_s == 90.0
    assert replace(config, session_s=7200.0).work().session_s == 7200.0


def test_the_longest_command_is_one_record_with_what_else_a_worker_is_told(tmp_path: Path) -> None:
    path = "/" + "p" * 4000
    config = JobConfig(
        name="n" * 63,
        argv=("train.py", "x" * (MOST_COMMAND_BYTES - len("train.py"))),
        settings=JobSettings(),
        out=tmp_path,
        environ={},
        tls=TlsFiles(ca=path, certificate=path, key=path),
    )
    work = replace(config.work(), cwd=path, out=path, init=path)

    start = StartWorker(
        assignment=Assignment(
            replica=ReplicaId("r1"), work=work, address="a", incarnation=Incarnation(1), locks=path
        )
    )

    assert len(REQUESTS.dump_json(start)) < MAX_RECORD_BYTES
