"""Jobs of other operators, as their users have them, and what becomes of each field."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pliant.core.errors import ConfigError
from pliant.kube.convert import converted
from pliant.spec.job import ElasticJob
from pliant.spec.load import check

HYPERPOD = """\
apiVersion: sagemaker.amazonaws.com/v1
kind: HyperPodPyTorchJob
metadata:
  name: llama
  namespace: team-a
  labels: {kueue.x-k8s.io/queue-name: research, kueue.x-k8s.io/priority-class: high}
spec:
  nprocPerNode: "8"
  elasticPolicy:
    minReplicas: 2
    maxReplicas: 8
    replicaIncrementStep: 2
    scalingTimeoutInSeconds: 60
    unheardOf: 1
  replicaSpecs:
  - name: base
    replicas: 2
    spares: 1
    template: &template
      spec:
        nodeSelector: {node.kubernetes.io/instance-type: ml.p5.48xlarge}
        containers:
        - name: trainer
          image: llama:1
          command: [hyperpodrun, --tee=3, --nnodes, "4", --nproc_per_node=8, train.py, --steps, "9"]
          resources: {limits: {nvidia.com/gpu: 8}}
  - {name: elastic, replicas: 0, maxReplicas: 6, template: *template}
  runPolicy:
    jobMaxRetryCount: 50
    cleanPodPolicy: All
    restartPolicy: {evalPeriodSeconds: 21600}
    logMonitoringConfiguration:
    - {name: JobStart, logPattern: ".*begins.*", expectedStartCutOffInSeconds: 120}
    - {name: Hang, logPattern: ".*loss.*", expectedRecurringFrequencyInSeconds: 300, policy: x}
"""

KUBEFLOW = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: resnet}
spec:
  elasticPolicy: {rdzvBackend: c10d, minReplicas: 1, maxReplicas: 4, maxRestarts: 7, metrics: []}
  pytorchReplicaSpecs:
    Worker:
      replicas: 4
      restartPolicy: OnFailure
      template:
        spec:
          restartPolicy: Always
          containers:
          - {name: proxy, image: "proxy:1"}
          - name: pytorch
            image: resnet:1
            command: [python, -m, torch.distributed.run, -m, train]
"""

TRAIN_JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: bert}
spec:
  runtimeRef: {name: torch-distributed}
  suspend: true
  trainer:
    image: bert:1
    command: [torchrun]
    args: [train.py, --epochs, "3"]
    numNodes: 3
    env: [{name: A, value: b}]
    resourcesPerNode: {limits: {nvidia.com/gpu: "4"}}
  initializer: {dataset: {}}
"""


def made(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    found = converted(yaml.safe_load(text), source="job.yaml")
    check(ElasticJob, found.job, source="converted")
    return found.job, found.notes


def test_a_job_of_hyperpod_keeps_its_policy_its_spares_and_its_queue() -> None:
    job, notes = made(HYPERPOD)

    spec = job["spec"]
    template = spec.pop("podTemplate")
    assert spec == {
        "command": ["train.py", "--steps", "9"],
        "mode": "restart",
        "elasticPolicy": {
            "minReplicas": 2,
            "maxReplicas": 8,
            "replicaIncrementStep": 2,
            "scalingTimeoutInSeconds": 60,
            "spares": 1,
        },
        "workersPerReplica": 8,
        "maxRestarts": 50,
        "logMonitoringConfiguration": [
            {
                "name": "JobStart",
                "logPattern": ".*begins.*",
                "expectedStartCutOffInSeconds": 120,
            },
            {
                "name": "Hang",
                "logPattern": ".*loss.*",
                "expectedRecurringFrequencyInSeconds": 300,
            },
        ],
        "queue": {"name": "research", "priorityClass": "high"},
    }
    (container,) = template["spec"]["containers"]
    assert container == {
        "name": "trainer",
        "image": "llama:1",
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    assert template["spec"]["nodeSelector"]
    assert job["metadata"]["namespace"] == "team-a"
    assert [note for note in notes if "not carried over" in note] == [
        "elasticPolicy.unheardOf is not carried over",
        "the log rule Hang.policy is not carried over",
        "runPolicy.cleanPodPolicy is not carried over",
        "runPolicy.restartPolicy is not carried over",
        "options of the launcher are not carried over: --tee=3 --nnodes 4",
    ]


def test_without_bounds_the_groups_of_hyperpod_say_them() -> None:
    manifest = yaml.safe_load(HYPERPOD)
    del manifest["spec"]["elasticPolicy"]

    job = converted(manifest, source="job.yaml").job

    policy = job["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"]) == (2, 8)


def test_a_job_of_kubeflow_keeps_its_elastic_policy() -> None:
    job, notes = made(KUBEFLOW)

    spec = job["spec"]
    assert spec["command"] == ["-m", "train"]
    assert spec["elasticPolicy"] == {"minReplicas": 1, "maxReplicas": 4}
    assert (spec["maxRestarts"], spec["workersPerReplica"]) == (7, 1)
    names = [one["name"] for one in spec["podTemplate"]["spec"]["containers"]]
    assert names == ["proxy", "trainer"]
    assert "restartPolicy" not in spec["podTemplate"]["spec"]
    assert [note for note in notes if "not carried over" in note] == [
        "elasticPolicy.metrics is not carried over",
        "pytorchReplicaSpecs.restartPolicy is not carried over",
    ]


def test_a_train_job_has_one_size_until_somebody_says_more() -> None:
    job, notes = made(TRAIN_JOB)

    spec = job["spec"]
    assert (spec["command"], spec["suspend"]) == (["train.py", "--epochs", "3"], True)
    assert spec["elasticPolicy"] == {"minReplicas": 3, "maxReplicas": 3}
    assert spec["workersPerReplica"] == 4
    (container,) = spec["podTemplate"]["spec"]["containers"]
    assert container.keys() == {"name", "image", "env", "resources"}
    assert "spec.initializer is not carried over" in notes
    assert any("what the runtime torch-distributed adds" in note for note in notes)


def test_a_shell_line_is_left_to_its_author() -> None:
    text = KUBEFLOW.replace(
        "[python, -m, torch.distributed.run, -m, train]", '[sh, -c, "cd /x && torchrun train.py"]'
    )

    job, notes = made(text)

    assert job["spec"]["command"] == ["REPLACE-ME.py"]
    assert any(note.startswith("the container runs a shell") for note in notes)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "kind: Job",
            "job.yaml is of kind Job; known are HyperPodPyTorchJob, PyTorchJob, TrainJob",
        ),
        (
            KUBEFLOW.replace("Worker:", "Launcher:"),
            "job.yaml has no pod template with a container",
        ),
        (
            KUBEFLOW.replace("replicas: 4", "replicas: many"),
            "job.yaml is no PyTorchJob that its operator would take: invalid literal for int() with"
            " base 10: 'many'",
        ),
        (
            KUBEFLOW.replace("resnet}", "4x}"),
            "the name of a job in a cluster begins with a letter and has at most 51 lower-case"
            " letters, digits and dashes; 4x has not",
        ),
        (
            KUBEFLOW.replace("minReplicas: 1", "minReplicas: 5"),
            "job.yaml, converted: minReplicas 5 is greater than maxReplicas 4",
        ),
    ],
)
def test_what_makes_no_job_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(text)

    assert str(caught.value) == sentence
