"""Jobs that are no script for a Session, live: one that is started again, and a recipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cluster.api import Object
from tests.cluster.bodies import elastic_job, workload
from tests.cluster.cluster import Cluster
from tests.cluster.test_mishaps import audited
from tests.cluster.test_queues import set_quota, with_checkpoints
from tests.cluster.test_scenario import PATIENCE_S, ended, trains_with
from tests.integrations.playing import alone
from tests.integrations.test_own_loop import EPOCHS, STEPS
from tests.integrations.test_own_loop import SCRIPT as OWN_LOOP
from tests.recipes.test_runs import PRETRAINING, command, exported, write_data

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


def kept(cluster: Cluster, team: str) -> Path:
    """Return where a claim's files lie; pods of any user may write there."""
    found = cluster.kubelet.directory / f"claims/{team}_kept"
    found.mkdir(parents=True, exist_ok=True)
    found.chmod(0o777)
    return found


def a_job(cluster: Cluster, team: str, script: list[str]) -> Object:
    body = elastic_job(team, team, "gpt", script, minReplicas=1, maxReplicas=3)
    pod = body["spec"]["podTemplate"]["spec"]
    pod["volumes"] = []
    pod["containers"][0] |= {"volumeMounts": [], "env": []}
    return with_checkpoints(cluster, body)


def grow_lose_and_shrink(cluster: Cluster, team: str) -> None:
    job = f"{team}/gpt"
    trains_with(cluster, job, 1)
    set_quota(cluster, team, 3)
    trains_with(cluster, job, 3)
    cluster.pod(f"{job}-x1-0").die()
    trains_with(cluster, job, 2)
    trains_with(cluster, job, 3)
    cluster.apply(workload(team, team, "urgent", 1, priority=500))
    trains_with(cluster, job, 2)


def succeeded(cluster: Cluster, team: str) -> Object:
    done = cluster.wait_for("ElasticJob", f"{team}/gpt", ended, within_s=PATIENCE_S)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    return done


def test_a_script_of_torchrun_is_started_again_at_other_sizes(
    cluster: Cluster, team: str, operator: str, tmp_path: Path
) -> None:
    around = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    words = [sys.executable, str(OWN_LOOP), str(tmp_path), str(EPOCHS), "0"]
    subprocess.run(words, env=os.environ | around, check=True)
    here = kept(cluster, team)
    cluster.queue(team, [team], cpus=1)
    body = a_job(cluster, team, [str(OWN_LOOP), "/kept", str(EPOCHS), "1"])
    body["spec"] |= {"mode": "restart"}
    cluster.apply(body)

    grow_lose_and_shrink(cluster, team)
    succeeded(cluster, team)

    for step in range(1, STEPS + 1):
        mine, its = (json.loads((one / f"{step}.json").read_text()) for one in (here, tmp_path))
        assert mine == its
    a, b = (torch.load(one / "weights.pt", weights_only=True) for one in (here, tmp_path))
    torch.testing.assert_close(a, b)


@pytest.mark.skipif(find_spec("peft") is None, reason="pip install transformers peft")
def test_a_recipe_trains_without_a_script(
    cluster: Cluster, team: str, operator: str, tmp_path: Path
) -> None:
    def recipe(place: str) -> dict[str, Any]:
        data = {"train": f"{place}/texts.jsonl", "sequenceLength": 48, "cache": f"{place}/tokens"}
        training = {**PRETRAINING["training"], "steps": 1200}  # type: ignore[dict-item]
        return {"data": data, "training": training, "export": {"path": f"{place}/model"}}

    here = kept(cluster, team)
    write_data(here)
    write_data(tmp_path)
    alone(tmp_path, *command(recipe(str(tmp_path))))
    cluster.queue(team, [team], cpus=1)
    body = a_job(cluster, team, [])
    del body["spec"]["command"]
    body["spec"]["recipe"] = recipe("/kept")
    cluster.apply(body)

    grow_lose_and_shrink(cluster, team)
    done = succeeded(cluster, team)

    assert exported(here / "model") == exported(tmp_path / "model")
    assert done["status"]["memory"]["outcome"]["ending"]["digest"]
    found = audited(cluster, f"{team}/gpt")  # what the pod that died had not sent went with it
    assert found["problems"] == []
