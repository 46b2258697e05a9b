"""Sessions that keep their runs on an object store, through connections that break, and twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.conftest import BUCKET, s3_client, s3_options
from tests.checkpoint.proxy import proxy
from tests.engine import models

import pliant
from pliant.checkpoint import catalogue
from pliant.checkpoint.catalogue import CheckpointSummary, listed
from pliant.checkpoint.dcp.shares import discard
from pliant.checkpoint.store.base import Storage, StorageOptions
from pliant.checkpoint.store.open import open_storage

pytestmark = pytest.mark.timeout(120)

STEPS = 8


class Died(Exception):  # noqa: N818  what happens to a process
    pass


def train(place: str, *, die_at: int | None = None, **options: Any) -> str:
    def on_tail(session: pliant.Session, step: Any) -> None:
        if step.index == die_at:
            raise Died

    checkpoint = pliant.Checkpoint(place, **{"every": "1steps", **options})
    return models.train(models.build("gpt"), STEPS, on_tail=on_tail, checkpoint=checkpoint)


@pytest.fixture
def bucket(s3_endpoint: str) -> str:
    client = s3_client(s3_endpoint)
    client.create_bucket(Bucket=BUCKET)
    client.close()
    return f"s3://{BUCKET}"


def test_a_run_on_s3_goes_on_with_the_same_bits(bucket: str, s3_endpoint: str) -> None:
    place, options = f"{bucket}/run-a", s3_options(s3_endpoint)
    digest = models.train(models.build("gpt"), STEPS)
    with pytest.raises(Died):
        train(place, die_at=5, storage_options=options)

    assert train(place, storage_options=options) == digest

    newest = listed(open_storage(place, StorageOptions(fsspec=options)))[0]
    assert (newest.committed, newest.damage) == (STEPS, None)


def test_a_checkpoint_that_is_pruned_while_a_replica_looks_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that it lists first has gone when it opens that."""
    digest = models.train(models.build("gpt"), STEPS)
    with pytest.raises(Died):
        train(str(tmp_path), die_at=5)
    seen: list[str] = []

    def listed_and_pruned(storage: Storage) -> list[CheckpointSummary]:
        there = listed(storage)
        if not seen:
            discard(storage, there[0].name)
        seen.extend(one.name for one in there)
        return there

    monkeypatch.setattr(catalogue, "listed", listed_and_pruned)

    assert train(str(tmp_path)) == digest
    assert len(seen) > 1


def test_a_connection_that_is_reset_costs_no_checkpoint(bucket: str, s3_endpoint: str) -> None:
    digest = models.train(models.build("gpt"), STEPS)
    with proxy(s3_endpoint) as between:
        between.cut(after=40_000, times=3)
        options = s3_options(between.endpoint)

        assert train(f"{bucket}/run-b", storage_options=options, every="3steps") == digest

    newest = listed(open_storage(f"{bucket}/run-b", StorageOptions(fsspec=s3_options(s3_endpoint))))
    assert (newest[0].committed, newest[0].damage) == (STEPS, None)
