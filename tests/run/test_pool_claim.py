"""What a claim does that cannot use what it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.core.errors import EXIT_NOT_STARTED
from pliant.run import pool_claim
from pliant.run.pool_claim import ClaimConfig, run_claim
from pliant.wire.offers import Offer, Report


class GivesCores:
    """A pool that has a core which is not this process's."""

    def __init__(self, *named: object) -> None:
        pass

    def report(self, report: Report) -> Offer:
        return Offer(pool="p", revision=1, devices=(0,), names=("cpu:4090",), replicas=1)

    def withdraw(self, pid: int) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_command_that_cannot_have_its_cores_is_not_started_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have fewer than the machine."""
    monkeypatch.setattr(pool_claim, "ClaimAtPool", GivesCores)
    monkeypatch.setattr(pool_claim, "find_pool", lambda *named: None)
    (tmp_path / "default" / "devices").mkdir(parents=True)
    config = ClaimConfig(name="gpt", pool="default", records=tmp_path, devices=1, command=("true",))
    told: list[tuple[str, str]] = []

    code = run_claim(config, {}, lambda state, text, **more: told.append((state, text)))

    assert code == EXIT_NOT_STARTED
    assert told[0] == ("given", "cpu:4090 is yours")
    assert told[-1] == ("ended", "true cannot be run: this process may not use cpu:4090")
