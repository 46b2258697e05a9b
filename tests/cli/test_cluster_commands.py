"""Jobs of a cluster from the command line, against an API server of the tests."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.fake_api import FakeApi, served
from tests.kube.jobs import manifest

from pliant.cli.main import code_of
from pliant.kube.client import ELASTIC_JOBS


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """A cluster that the kubeconfig names, with the namespace team-a."""
    fake = FakeApi()
    with served(fake) as found:
        entry = {"name": "test"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [entry | {"cluster": {"server": found.url}}],
            "users": [entry | {"user": {"token": "of-the-user"}}],
            "contexts": [
                entry | {"context": {"cluster": "test", "user": "test", "namespace": "team-a"}}
            ],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.chdir(tmp_path)
        yield fake


def write_job(**spec: Any) -> str:
    body = manifest(**spec)
    del body["metadata"]["namespace"]
    Path("gpt.yaml").write_text(yaml.safe_dump(body))
    return "gpt.yaml"


def spec_of(fake: FakeApi) -> dict[str, Any]:
    found = fake.get(ELASTIC_JOBS, "gpt", "team-a")
    assert found is not None
    spec: dict[str, Any] = found["spec"]
    return spec


def test_a_job_file_is_the_manifest(cluster: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["submit", write_job()]) == 0
    assert "team-a/gpt is submitted; pliant get gpt shows it" in capsys.readouterr().out
    assert spec_of(cluster) == manifest()["spec"]
    found = cluster.get(ELASTIC_JOBS, "gpt", "team-a")
    assert found is not None
    labels = found["metadata"]["labels"]
    assert labels == {"kueue.x-k8s.io/queue-name": manifest()["spec"]["queue"]["name"]}
    assert code_of(["submit", write_job(replicas=4)]) == 0
    assert spec_of(cluster)["replicas"] == 4


def test_what_the_cluster_could_not_bound_is_refused(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["submit", write_job(elasticPolicy={"minReplicas": 2})]) == 2
    assert "gpt.yaml must say spec.elasticPolicy.maxReplicas" in capsys.readouterr().err
    assert not cluster.writes()


def test_jobs_are_listed_from_their_status(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["get"]) == 0
    assert "there is no job in team-a" in capsys.readouterr().out
    cluster.put(manifest())
    code_of(["get"])
    assert "the operator has not seen it yet" in capsys.readouterr().out
    why = "waits for quota"
    cluster.update(manifest(), phase="Pending", reason=why, replicas=0, wantedReplicas=10)
    code_of(["get", "gpt"])
    shown = capsys.readouterr().out
    assert "Pending" in shown
    assert "0/10" in shown
    assert why in shown
    code_of(["get", "-A", "--json"])
    assert json.loads(capsys.readouterr().out)["jobs"][0]["status"]["wantedReplicas"] == 10


def test_a_job_is_described_with_conditions_and_events(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    job = cluster.put(manifest())
    condition = {"type": "Admitted", "status": "True", "message": "base is admitted"}
    cluster.update(manifest(), phase="Running", replicas=2, conditions=[condition], pending="x1")
    event = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "reason": "Evicted"}
    about = {"metadata": {"name": "gpt.1", "namespace": "team-a"}, "note": "x3 is preempted"}
    cluster.put({**event, **about, "regarding": {"uid": job["metadata"]["uid"]}})
    assert code_of(["describe", "gpt"]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("2 replicas, 2 to 10", "asks for: x1"))
    assert all(text in shown for text in ("base is admitted", "x3 is preempted"))


def test_a_job_is_changed_by_its_resource_without_its_coordinator(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.put(manifest())
    assert code_of(["scale", "4", "--job", "kube:team-a/gpt"]) == 0
    assert spec_of(cluster)["replicas"] == 4
    assert code_of(["suspend", "--job", "kube:gpt"]) == 0
    assert spec_of(cluster)["suspend"] is True
    assert code_of(["resume", "kube:team-a/gpt"]) == 0
    assert spec_of(cluster)["suspend"] is False
    assert "spec.suspend is false now; the operator follows it" in capsys.readouterr().out
    assert code_of(["delete", "gpt", "--wait"]) == 0
    assert cluster.get(ELASTIC_JOBS, "gpt", "team-a") is None


def test_a_coordinator_answers_through_the_proxy(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    meta = {"name": "gpt-coordinator", "namespace": "team-a"}
    cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}})
    cluster.update({"apiVersion": "v1", "kind": "Pod", "metadata": meta}, phase="Running")
    secret = {"apiVersion": "v1", "kind": "Secret"}
    token = {"token": b64encode(b"of-the-job").decode()}
    cluster.put({**secret, "metadata": {**meta, "name": "gpt-token"}, "data": token})
    cluster.pods["gpt-coordinator"] = lambda path, method, body: {"path": path, "step": 7}
    assert code_of(["status", "--job", "kube:team-a/gpt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": "/v1/status", "step": 7}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["describe", "other"], "there is no job other in namespace team-a"),
        (["status", "--job", "kube:team-a/gpt"], "has no coordinator now; pliant describe gpt"),
        (["status", "--job", "kube:a/b/c"], "--job kube:a/b/c must be kube:NAMESPACE/NAME"),
        (["status", "--job", "kube:gpt", "--join", "a:1"], "--join a:1 does not go with --job"),
        (["status", "--job", "gpt", "--context", "x"], "--context x needs --job kube:NAMESPACE"),
        (["get", "--context", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_sentence(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert code_of(words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
