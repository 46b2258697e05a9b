"""The files of ``deploy``: a kustomize base and a Helm chart, of what is installed.

A chart's templates are the same objects with a few values in the place of text.
"""

from __future__ import annotations

from typing import Any

import yaml

from pliant.kube.install import Installation, objects, pod_monitor

MADE = "# Made by `python -m tools.make_pages` from pliant.kube.install; change that.\n"

KUSTOMIZE = "deploy/kustomize"
HELM = "deploy/helm"

VALUES = {
    "xNAMESPACEx": "{{ .Release.Namespace }}",
    "xIMAGEx": "{{ .Values.image }}",
    "987654": "{{ .Values.replicas }}",
}
"""What stands for text in the objects that a chart is made of, and the template's expression."""

CHART_VALUES = """\
# Of the operator, and of the coordinators that it starts.
image: pliant-operator:latest
# One leads, the others wait.
replicas: 2
# For a Prometheus operator; pods have the annotations of a plain Prometheus in any case.
podMonitor: false
"""


def files() -> dict[str, str]:
    """Return every file that is made, by its path."""
    return {**_kustomize(), **_helm()}


def _text(*bodies: dict[str, Any]) -> str:
    return yaml.safe_dump_all(bodies, sort_keys=False)


def _kustomize() -> dict[str, str]:
    kind, *rest = objects(Installation())
    index = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["crd.yaml", "operator.yaml"],
    }
    return {
        f"{KUSTOMIZE}/kustomization.yaml": MADE + _text(index),
        f"{KUSTOMIZE}/crd.yaml": MADE + _text(kind),
        f"{KUSTOMIZE}/operator.yaml": MADE + _text(*rest),
    }


def _helm() -> dict[str, str]:
    wanted = Installation(namespace="xNAMESPACEx", image="xIMAGEx", replicas=987654)
    kind, _, *rest = objects(wanted)  # Helm makes the namespace
    kind["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    chart = {
        "apiVersion": "v2",
        "name": "pliant-operator",
        "description": "Elastic training for PyTorch: the operator of ElasticJobs.",
        "type": "application",
        "version": "0.1.0",
    }
    monitor = _templated(_text(pod_monitor(wanted)))
    return {
        f"{HELM}/Chart.yaml": MADE + _text(chart),
        f"{HELM}/values.yaml": MADE + CHART_VALUES,
        f"{HELM}/templates/crd.yaml": MADE + _text(kind),
        f"{HELM}/templates/operator.yaml": MADE + _templated(_text(*rest)),
        f"{HELM}/templates/pod-monitor.yaml": MADE
        + f"{{{{- if .Values.podMonitor }}}}\n{monitor}{{{{- end }}}}\n",
    }


def _templated(text: str) -> str:
    for placeholder, expression in VALUES.items():
        text = text.replace(placeholder, expression)
    return text
