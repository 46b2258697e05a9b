"""What the page says of replicas of several workers is whole, and each sentence is reproduced."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
from tests.features import catalogue, several_workers
from tests.features.feature import Feature
from tests.processes.launching import running

FEATURES = Path(__file__).with_name("train_features.py")
DEADLINE_S = 120.0
ALL = {one.name: one for features in catalogue.GROUPS.values() for one in features}


def test_the_tables_name_features_that_there_are() -> None:
    tables = (several_workers.TESTED, several_workers.ONE_WORKER, several_workers.WHOLE)

    assert [name for table in tables for name in table if name not in ALL] == []
    assert [name for name in several_workers.WHOLE if ALL[name].build is None] == []


def test_every_feature_is_trained_in_two_workers_or_names_a_test_that_is_or_is_marked() -> None:
    """What is built is trained by ``test_any_history``, which has a case of two workers."""
    named = [one for one in ALL.values() if one.build is None]

    assert [one.name for one in named if not (_is_shown(one) or _is_marked(one))] == []
    assert [one.name for one in named if _is_marked(one) and one.name in _TESTED] == []


_TESTED = several_workers.TESTED


def _is_marked(feature: Feature) -> bool:
    return feature.name in several_workers.ONE_WORKER


def _is_shown(feature: Feature) -> bool:
    """Whether its test is there, and says how many workers, unless all of its file have several."""
    path, _, name = several_workers.shown_by(feature).partition("::")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    function = getattr(module, name)
    marks = [mark.args[0] for mark in getattr(function, "pytestmark", ()) if mark.args]
    is_always = path in (several_workers.SEVERAL, several_workers.FED, several_workers.STAGED)
    return is_always or "workers" in str(marks) + inspect.getsource(function)


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", sorted(several_workers.WHOLE))
def test_what_cannot_be_sharded_ends_with_its_sentence(tmp_path: Path, name: str) -> None:
    words = ("--job", name, "--shard", "--steps", 8, "--directory", tmp_path)
    with running(tmp_path, FEATURES, *words, replicas=1, restarts=0, warm=True, workers=2) as job:
        assert job.process.wait(DEADLINE_S) in (1, 2), job.said()
        records = [*job.records("usage"), *job.records("traceback")]

    said = [str(record.get("sentence", record.get("text"))) for record in records]
    assert [text for text in said if several_workers.WHOLE[name].says not in text] == []
    assert said
