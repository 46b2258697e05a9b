"""What is installed, what it may do, and that the files of ``deploy`` are made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tests.kube.jobs import job
from tools import deploy_files

from pliant.cli.main import code_of
from pliant.kube import bodies, install
from pliant.kube.install import Installation

ROOT = Path(__file__).parents[2]


def named(kind: str, name: str = install.NAME) -> dict[str, Any]:
    for body in install.objects(Installation()):
        if (body["kind"], body["metadata"]["name"]) == (kind, name):
            return body
    raise LookupError(kind)


def allowed(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_files_of_deploy_are_made_from_what_is_installed() -> None:
    for name, text in deploy_files.files().items():
        assert (ROOT / name).read_text() == text, f"{name}: run python -m tools.make_pages"


def test_kustomize_and_helm_make_what_the_command_applies() -> None:
    wanted = Installation(namespace="ops", image="mine:1", replicas=3)
    based = [
        body
        for name in ("crd", "operator")
        for body in yaml.safe_load_all((ROOT / f"deploy/kustomize/{name}.yaml").read_text())
    ]
    values = {"xNAMESPACEx": "ops", "xIMAGEx": "mine:1", "987654": "3"}
    text = (ROOT / "deploy/helm/templates/operator.yaml").read_text()
    for placeholder, expression in deploy_files.VALUES.items():
        text = text.replace(expression, values[placeholder])

    assert based == install.objects(Installation())
    assert list(yaml.safe_load_all(text)) == install.objects(wanted)[2:]


def test_the_operator_may_give_a_coordinator_what_that_needs_and_touches_no_queue() -> None:
    given = allowed(named("ClusterRole"))
    _, role, _ = bodies.account(job())

    assert allowed(role) <= given
    assert not any(verb == "*" or resource == "*" for _, resource, verb in given)
    written = {resource for _, resource, verb in given if verb in ("create", "update", "patch")}
    assert written == {
        *("pods", "services", "serviceaccounts", "secrets", "configmaps", "roles"),
        *("rolebindings", "networkpolicies", "events", "workloads", "workloads/status"),
        *("elasticjobs/status", "elasticjobs/finalizers"),
    }


def test_users_write_jobs_and_no_workloads() -> None:
    view, edit = named("ClusterRole", "pliant-view"), named("ClusterRole", "pliant-edit")

    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert {resource for _, resource, _ in allowed(view) | allowed(edit)} == {
        "elasticjobs",
        "elasticjobs/scale",
    }


def test_kueue_is_told_once() -> None:
    told = {
        "data": {"controller_manager_config.yaml": f"externalFrameworks: [{install.FRAMEWORK}]"}
    }

    assert install.advice_on_kueue(told) == ""
    assert "ElasticJob.v1alpha1.pliant.dev" in install.advice_on_kueue({"data": {}})
    assert "there is no ConfigMap kueue-system/kueue-manager-config" in install.advice_on_kueue(
        None
    )


def test_a_dry_run_prints_what_would_be_applied_and_asks_nobody(capsys: Any) -> None:
    code = code_of(["operator", "install", "--dry-run", "--image", "mine:1", "--pod-monitor"])

    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    wanted = Installation(image="mine:1")
    assert code == 0
    assert printed == [*install.objects(wanted), install.pod_monitor(wanted)]


def test_convert_prints_the_job_and_says_what_it_left_out(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("kind: TrainJob\nmetadata: {name: x}\nspec: {trainer: {command: [a.py]}}\n")

    code = code_of(["convert", str(file)])

    printed, said = capsys.readouterr()
    assert code == 0
    assert yaml.safe_load(printed)["spec"]["command"] == ["a.py"]
    assert all(line.startswith(f"{file}: ") for line in said.splitlines())
    assert "its image is the runtime's: replace REPLACE-ME" in said


def test_convert_takes_one_job(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("kind: TrainJob\n---\nkind: TrainJob\n")

    assert code_of(["convert", str(file)]) == 2
    assert capsys.readouterr().err == f"pliant: {file} must hold one job; it holds 2 documents\n"
