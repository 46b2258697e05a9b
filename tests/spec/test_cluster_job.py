"""What a job file says of a cluster, and what a laptop makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.cli.job_file import read_command
from pliant.core.errors import ConfigError
from pliant.spec.job import ElasticJob
from pliant.spec.load import parse

JOB = """\
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {name: gpt}
spec:
  command: [train.py]
  elasticPolicy: {minReplicas: 2, maxReplicas: 8, replicaIncrementStep: 2}
"""

POD = """\
  podTemplate:
    spec: {containers: [{name: one, command: [x]}, {name: two}], shareProcessNamespace: true}
"""


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("replicas: 3", "replicas 3 is none of the sizes that elasticPolicy allows"),
        ("replicas: 10", "replicas 10 is none of the sizes that elasticPolicy allows"),
        (
            "queue: {increments: spare}",
            "queue.increments spare needs queue.name, which minReplicas wait in",
        ),
        (
            "storage: {claim: runs, sizeLimit: 2Gi}",
            "storage.sizeLimit 2Gi is of files that are kept in the pod; leave out either it or"
            " storage.claim runs",
        ),
        ("storage: {sizeLimit: much}", "storage.sizeLimit 'much' is no quantity such as 2Gi"),
        (
            "tls: {secretName: gpt-tls, ca: ca.pem}",
            "tls.secretName gpt-tls is for a cluster, and paths are for hosts; give one or the"
            " other",
        ),
        ("tls: {}", "tls.ca is missing: replicas need all three files for TLS"),
        (
            POD.strip(),
            "the container one must have neither command nor args: the agent runs in it, and"
            " spec.command is what that runs",
        ),
        (
            "podTemplate: {spec: {containers: [{name: a}, {name: trainer, args: [x]}]}}",
            "the container trainer must have neither command nor args: the agent runs in it, and"
            " spec.command is what that runs",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_in_a_sentence(field: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(ElasticJob, f"{JOB}  {field}\n", source="job.yaml")

    assert str(caught.value).endswith(f": {sentence}")


def test_a_pod_template_is_kept_as_it_is() -> None:
    text = JOB + POD.replace("command: [x]", "ports: [{containerPort: 80}]")

    template = parse(ElasticJob, text, source="job.yaml").spec.pod_template

    assert template is not None
    assert template.model_dump(by_alias=True, exclude_unset=True) == {
        "spec": {
            "containers": [{"name": "one", "ports": [{"containerPort": 80}]}, {"name": "two"}],
            "shareProcessNamespace": True,
        }
    }


def test_a_laptop_says_what_it_takes_no_notice_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    (tmp_path / "train.py").touch()
    file.write_text(f"{JOB}  suspend: true\n  queue: {{name: q}}\n  tls: {{secretName: s}}\n")

    what = read_command(str(file), [])

    ignored = "suspend, queue, tls.secretName"
    said = f"{file}: ignored here, as only a cluster uses it: {ignored}\n"
    assert what.words == ["train.py"]
    assert capsys.readouterr().err == said
