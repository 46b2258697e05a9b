"""Jobs of other operators as ElasticJobs: HyperPodPyTorchJob, Kubeflow's PyTorchJob and TrainJob.

Owns which of their fields become which of ours, and that every other one is named: nothing is
dropped in silence.  Their replica is a pod with all its workers; so is ours then.  Such scripts
expect torchrun, so the mode is restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from pliant.core.errors import ConfigError
from pliant.kube.job import GROUP, KIND, QUEUE_LABEL, VERSION, require_name
from pliant.spec.cluster_job import TRAINER
from pliant.spec.job import ElasticJob
from pliant.spec.load import check
from pliant.spec.log_rules import LogRuleEntry
from pliant.spec.policy import ElasticPolicy

UNKNOWN = "REPLACE-ME"
"""Stands for what the file does not say, and a job needs."""

PRIORITY = "kueue.x-k8s.io/priority-class"

LAUNCHERS = ("torchrun", "hyperpodrun", "torch.distributed.run", "torch.distributed.launch")
PYTHONS = ("python", "python3")
SHELLS = ("sh", "bash", "ash", "dash")

SWITCHES = {
    *("--standalone", "--no-python", "--run-path", "--use-env", "--virtual-local-rank"),
}
"""Options of launchers that no value follows."""

POLICY = {str(one.alias) for one in ElasticPolicy.model_fields.values()}

ACCELERATORS = ("/gpu", "/tpu", "/gaudi", "/neuron")
"""How resources that are accelerators end."""

KUBEFLOW_RENDEZVOUS = {
    *("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone"),
}
"""Of an elastic policy: workers find each other by themselves."""


@dataclass(frozen=True, slots=True)
class Converted:
    """An ElasticJob, and what it does not say."""

    job: dict[str, Any]
    notes: tuple[str, ...]
    """One for each thing that could not be carried over, or was assumed."""


@dataclass(slots=True)
class _Draft:
    """What a job will be made of."""

    template: dict[str, Any]
    policy: dict[str, Any] = field(default_factory=dict)
    workers: object = None
    """As the file has it: a number, text, ``auto``, nothing."""

    spec: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def left_out(self, given: Mapping[str, Any], known: set[str], path: str) -> None:
        """Name the fields that nothing became of."""
        self.notes += [
            f"{path}.{name} is not carried over" for name in sorted(given.keys() - known)
        ]


def converted(manifest: Mapping[str, Any], *, source: str) -> Converted:
    """Return the ElasticJob that a job of another kind is.

    Raises:
        ConfigError: it is of no kind that is known, or has not what makes a job.
    """
    kind = str(manifest.get("kind"))
    makers = {
        "HyperPodPyTorchJob": _of_hyperpod,
        "PyTorchJob": _of_kubeflow,
        "TrainJob": _of_trainer,
    }
    if kind not in makers:
        raise ConfigError(f"{source} is of kind {kind}; known are {', '.join(makers)}")
    meta, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
    name = str(meta.get("name") or meta.get("generateName") or "").rstrip("-")
    require_name(name)
    try:
        draft = makers[kind](spec, source)
        if spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"):
            draft.spec["suspend"] = True
        job = _finished(draft, name, meta)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{source} is no {kind} that its operator would take: {error}") from None
    check(ElasticJob, job, source=f"{source}, converted")
    return Converted(job, tuple(draft.notes))


# --- the kinds


def _of_hyperpod(spec: Mapping[str, Any], source: str) -> _Draft:
    groups = [dict(one) for one in spec.get("replicaSpecs") or ()]
    draft = _Draft(_template_of(groups, source), workers=spec.get("nprocPerNode"))
    least = int(groups[0].get("replicas", 1))
    most = sum(int(one.get("maxReplicas") or one.get("replicas", 1)) for one in groups)
    draft.policy = _bounds(spec.get("elasticPolicy") or {}, least, most, draft)
    if spares := sum(int(one.get("spares", 0)) for one in groups):
        draft.policy["spares"] = spares
    for group in groups:
        at = f"replicaSpecs {group.get('name')}"
        draft.left_out(group, {"name", "replicas", "maxReplicas", "spares", "template"}, at)
    run = spec.get("runPolicy") or {}
    if (retries := run.get("jobMaxRetryCount")) is not None:
        draft.spec["maxRestarts"] = int(retries)
    _log_rules(run.get("logMonitoringConfiguration") or (), draft)
    known = {"jobMaxRetryCount", "suspend", "logMonitoringConfiguration"}
    draft.left_out(run, known, "runPolicy")
    draft.left_out(spec, {"nprocPerNode", "replicaSpecs", "elasticPolicy", "runPolicy"}, "spec")
    return draft


def _log_rules(rules: Sequence[Mapping[str, Any]], draft: _Draft) -> None:
    """Carry rules over, but for fields that ours have not."""
    known = {str(one.alias) for one in LogRuleEntry.model_fields.values()}
    for rule in rules:
        draft.left_out(rule, known, f"the log rule {rule.get('name')}")
    if rules:
        draft.spec["logMonitoringConfiguration"] = [
            {name: value for name, value in rule.items() if name in known} for rule in rules
        ]
        draft.notes.append(
            "log rules are of each replica here: one process of each has to print what they ask for"
        )


def _of_kubeflow(spec: Mapping[str, Any], source: str) -> _Draft:
    by_role = spec.get("pytorchReplicaSpecs") or {}
    groups = [dict(by_role[role]) for role in ("Worker", "Master") if role in by_role]
    draft = _Draft(_template_of(groups, source), workers=spec.get("nprocPerNode"))
    elastic = spec.get("elasticPolicy") or {}
    number = sum(int(one.get("replicas", 1)) for one in groups)
    draft.workers = draft.workers or elastic.get("nProcPerNode")
    known = KUBEFLOW_RENDEZVOUS | {"nProcPerNode", "maxRestarts"}
    bounds = {name: value for name, value in elastic.items() if name not in known}
    draft.policy = _bounds(bounds, number, number, draft)
    if not elastic:
        draft.notes.append(
            f"it has no elasticPolicy: minReplicas and maxReplicas are {number}; lower one or "
            "raise the other"
        )
    run = spec.get("runPolicy") or {}
    retries = elastic.get("maxRestarts", run.get("backoffLimit"))
    if retries is not None:
        draft.spec["maxRestarts"] = int(retries)
    for group in groups:
        draft.left_out(group, {"replicas", "template"}, "pytorchReplicaSpecs")
    draft.left_out(run, {"backoffLimit", "suspend"}, "runPolicy")
    fields = {"pytorchReplicaSpecs", "elasticPolicy", "runPolicy", "nprocPerNode"}
    draft.left_out(spec, fields, "spec")
    return draft


def _of_trainer(spec: Mapping[str, Any], source: str) -> _Draft:
    trainer = dict(spec.get("trainer") or {})
    number = int(trainer.get("numNodes") or 1)
    container = {"name": TRAINER, "image": trainer.get("image") or UNKNOWN}
    container |= {name: trainer[name] for name in ("command", "args", "env") if name in trainer}
    if "resourcesPerNode" in trainer:
        container["resources"] = trainer["resourcesPerNode"]
    draft = _Draft({"spec": {"containers": [container]}}, workers=trainer.get("numProcPerNode"))
    draft.policy = {"minReplicas": number, "maxReplicas": number}
    runtime = (spec.get("runtimeRef") or {}).get("name")
    draft.notes += [
        f"what the runtime {runtime} adds (pod template, image, environment) is not in {source}",
        f"a TrainJob has one size: minReplicas and maxReplicas are {number}; lower one or raise "
        "the other",
    ]
    if "image" not in trainer:
        draft.notes.append(f"its image is the runtime's: replace {UNKNOWN}")
    known = {*("image", "command", "args", "env", "numNodes"), "resourcesPerNode", "numProcPerNode"}
    draft.left_out(trainer, known, "trainer")
    draft.left_out(spec, {"trainer", "runtimeRef", "suspend", "managedBy"}, "spec")
    return draft


# --- what they have in common


def _template_of(groups: Sequence[Mapping[str, Any]], source: str) -> dict[str, Any]:
    templates = [one["template"] for one in groups if (one.get("template") or {}).get("spec")]
    if not templates or not templates[0]["spec"].get("containers"):
        raise ConfigError(f"{source} has no pod template with a container")
    return dict(deepcopy(templates[0])) | {"differs": any(one != templates[0] for one in templates)}


def _bounds(elastic: Mapping[str, Any], least: int, most: int, draft: _Draft) -> dict[str, Any]:
    """Return the elastic policy: its own fields have our names."""
    draft.left_out(elastic, POLICY, "elasticPolicy")
    policy = {name: value for name, value in elastic.items() if name in POLICY}
    sizes = policy.get("replicaDiscreteValues")
    if not sizes:
        policy.setdefault("minReplicas", least)
    policy.setdefault("maxReplicas", max(sizes) if sizes else max(most, policy["minReplicas"]))
    return policy


def _finished(draft: _Draft, name: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    template = draft.template
    if template.pop("differs", False):
        draft.notes.append("its groups have different pod templates; that of the first is taken")
    spec = template["spec"]
    container = _named_trainer(spec["containers"])
    words = [*(container.pop("command", None) or ()), *(container.pop("args", None) or ())]
    command, flags = _command(words, draft.notes)
    workers = _workers(draft.workers or flags.get("--nproc-per-node"), container, draft.notes)
    if spec.pop("restartPolicy", None) not in (None, "Never", "OnFailure"):
        draft.notes.append("restartPolicy: pods of a job end, and are replaced")
    labels = dict(meta.get("labels") or {})
    job: dict[str, Any] = {
        "command": command,
        "mode": "restart",
        "elasticPolicy": draft.policy,
        "workersPerReplica": workers,
        **draft.spec,
    }
    queue = {"name": labels.get(QUEUE_LABEL), "priorityClass": labels.get(PRIORITY)}
    if given := {key: value for key, value in queue.items() if value}:
        job["queue"] = given
        draft.notes.append(
            "queue.incrementPriorityClass is not set: what comes above minReplicas is as important "
            "as the rest, and is given back last"
        )
    job["podTemplate"] = template
    draft.notes.append(
        "mode is restart, as scripts for torchrun need it; remove it for a script with a "
        "pliant.Session, which does not stop to change its size"
    )
    metadata = {key: meta[key] for key in ("namespace", "annotations") if meta.get(key)}
    if labels:
        metadata["labels"] = labels
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name, **metadata},
        "spec": job,
    }


def _named_trainer(containers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the container that trains; it is the first one, or called so."""
    for container in containers[1:]:
        if container.get("name") == "pytorch":
            container["name"] = TRAINER
            return container
    return containers[0]


def _workers(given: object, container: Mapping[str, Any], notes: list[str]) -> int:
    if str(given).isdecimal() and int(str(given)) > 0:
        return int(str(given))
    limits = (container.get("resources") or {}).get("limits") or {}
    for name, number in limits.items():
        if name.endswith(ACCELERATORS) and str(number).isdecimal() and int(number) > 0:
            return int(number)
    notes.append("how many workers a pod has is not said, nor has it accelerators: 1 is assumed")
    return 1


def _command(words: Sequence[str], notes: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return what runs without its launcher, and what the launcher was told."""
    rest = list(map(str, words))
    if not rest or rest[0].rpartition("/")[2] in SHELLS:
        how = "runs a shell" if rest else "runs what its image says"
        notes.append(f"the container {how}: put the script and its arguments into spec.command")
        return [f"{UNKNOWN}.py"], {}
    if rest[0].rpartition("/")[2] in PYTHONS:
        rest.pop(0)
        while rest and rest[0] in ("-u", "-O", "-OO", "-B"):
            rest.pop(0)
    if rest[:1] == ["-m"] and rest[1:2] and rest[1] in LAUNCHERS:
        rest.pop(0)
    if not rest or rest[0].rpartition("/")[2] not in LAUNCHERS:
        return rest or [f"{UNKNOWN}.py"], {}
    flags: dict[str, str] = {}
    dropped = list(_launcher_flags(rest, flags))
    if dropped:
        notes.append(f"options of the launcher are not carried over: {' '.join(dropped)}")
    if "--no-python" in flags:
        notes.append(f"{rest[0]} is a program and no script: spec.command takes scripts")
    return rest, flags


def _launcher_flags(words: list[str], flags: dict[str, str]) -> Iterator[str]:
    """Take the launcher and its options off; yield those that mean nothing here."""
    words.pop(0)
    while words and words[0].startswith("-") and words[0] not in ("-m", "--module"):
        word = words.pop(0)
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if not equals and name not in SWITCHES and words:
            value = words.pop(0)
            word = f"{word} {value}"
        flags[name] = value
        if name != "--nproc-per-node":
            yield word
    if words[:1] == ["--module"]:
        words[0] = "-m"
