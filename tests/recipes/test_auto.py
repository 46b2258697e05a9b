"""``auto`` in a job file becomes what fits, with a reason; or the file is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pliant.cli.job_file import read_job
from pliant.cli.main import app
from pliant.core.errors import ConfigError
from pliant.recipes.auto import fill


def document(*, workers: Any = "auto", again: Any = "auto", **spec: Any) -> dict[str, Any]:
    recipe = {
        "model": {"size": "8b", "precision": "bfloat16", "activationCheckpointing": again},
        "devices": {"memory": 80, "number": 8},
        "data": {"train": "texts.jsonl", "sequenceLength": 4096},
        "training": {"epochs": 1},
    }
    return {
        "apiVersion": "pliant.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "auto"},
        "spec": {"recipe": recipe, "workersPerReplica": workers, **spec},
    }


def chosen(given: dict[str, Any], **devices: Any) -> tuple[int, bool]:
    given["spec"]["recipe"]["devices"] |= devices
    fill(given, Path("job.yaml"))
    spec = given["spec"]
    return spec["workersPerReplica"], spec["recipe"]["model"]["activationCheckpointing"]


def test_the_fewest_workers_that_hold_the_model_are_chosen() -> None:
    assert chosen(document(), memory=200) == (1, False)
    assert chosen(document(), memory=160) == (2, False)
    assert chosen(document(), memory=80) == (2, True)
    assert chosen(document(), memory=24) == (8, True)
    assert chosen(document(workers=4), memory=80) == (4, True)
    assert chosen(document(again=True), memory=200) == (1, True)
    assert chosen(document(hostsPerReplica=3), memory=30) == (6, True)


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"with 8 workers a replica, each needs some 16\.3 GiB"):
        chosen(document(), memory=10)
    with pytest.raises(ConfigError, match="a replica has 3 workers or more"):
        chosen(document(hostsPerReplica=3), number=2)
    with pytest.raises(ConfigError, match="nobody says how much memory a device has"):
        chosen(document(), memory=None)


def test_devices_that_are_there_are_asked_only_where_the_file_says_nothing() -> None:
    given = document()
    del given["spec"]["recipe"]["devices"]

    reasons = fill(given, Path("job.yaml"), found=lambda: 80.0)

    assert reasons[0].startswith("workersPerReplica 2: of 1 each would need 81.8 GiB")
    fill(document(), Path("job.yaml"), found=lambda: pytest.fail("the file says it"))


def test_a_mistake_elsewhere_in_the_file_keeps_its_line() -> None:
    given = document()
    given["spec"]["recipe"]["training"] = {"epoch": 1}

    with pytest.raises(ConfigError, match=r"job.yaml line \d+: unknown field .*training.epoch;"):
        read_job(Path("job.yaml"), yaml.safe_dump(given))


def test_show_says_why(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(document()))

    said = CliRunner().invoke(app, ["recipe", "show", str(path)], env={"COLUMNS": "200"}).stdout

    assert "workersPerReplica 2: of 1 each would need 81.8 GiB, more than 90% of 80" in said
    assert "model.activationCheckpointing true: without it 8 workers a replica would need" in said
    assert "memory of a worker, of 2: some 44.36 GiB" in said
