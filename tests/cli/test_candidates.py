"""Several hosts that may coordinate: which of the places is this one's, and what it needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.test_several_hosts import WHAT, settings

from pliant.cli import candidates
from pliant.cli.several_hosts import joining, run_on_several
from pliant.core.errors import ConfigError
from pliant.core.takeover import CoordinatorSign
from pliant.run.candidate import Candidate
from pliant.run.coordinator_places import write_sign

PLACES = "gone.invalid:7000,127.0.0.2:7341,10.254.254.254:7000"


def test_a_host_is_the_one_of_the_places_that_has_its_address(tmp_path: Path) -> None:
    sign = tmp_path / "coordinator.json"
    write_sign(sign, CoordinatorSign(url="http://127.0.0.1:7000", incarnation=1, beat=0))

    here = joining(settings(join=PLACES))
    assert (here.turn, here.address, here.port) == (1, "127.0.0.2", 7341)
    assert joining(settings(join=f"@{sign}")).turn is None


def test_several_that_may_coordinate_need_a_directory_that_all_see() -> None:
    with pytest.raises(ConfigError, match="say with --out DIR where the run's files go"):
        run_on_several(
            WHAT, settings(join=PLACES), {}, may_coordinate=candidates.run, as_json=False
        )


def test_the_register_lies_in_the_directory_of_the_run_unless_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    found: list[Candidate] = []

    def stand(candidate: Candidate) -> None:
        found.append(candidate)

    monkeypatch.setattr(candidates, "run_candidate", stand)
    given = settings(join=PLACES, out=tmp_path / "run")
    here = joining(given)
    environ = {"XDG_STATE_HOME": str(tmp_path)}

    candidates.run(here, WHAT, given, environ, as_json=True)
    elsewhere = {**given, "register": replace(given["register"], value="s3://bucket/gpt")}
    candidates.run(here, WHAT, elsewhere, environ, as_json=True)

    assert [one.config.register for one in found] == [
        str(tmp_path / "run" / "register"),
        "s3://bucket/gpt",
    ]
    assert {one.turn for one in found} == {1}
