"""Where the coordinator of a job may be: lists, and the file that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.core.takeover import CoordinatorSign
from pliant.run.coordinator_places import agents_url, places_of, read_sign, write_sign


def sign(url: str) -> CoordinatorSign:
    return CoordinatorSign(url=url, incarnation=1, beat=0)


@pytest.mark.parametrize(
    ("join", "urls"),
    [
        ("gpu1:7000", ("ws://gpu1:7000/v1/agents",)),
        (
            "gpu1:7000, [fd00::2]:7001",
            ("ws://gpu1:7000/v1/agents", "ws://[fd00::2]:7001/v1/agents"),
        ),
        ("https://gpu1/job/,gpu2:1", ("wss://gpu1/job/v1/agents", "ws://gpu2:1/v1/agents")),
    ],
)
def test_a_list_names_places(join: str, urls: tuple[str, ...]) -> None:
    assert places_of(join)() == urls


@pytest.mark.parametrize("join", ["", "gpu1:7000,", ",gpu1:7000", "gpu1:7000,,gpu2:7000"])
def test_an_empty_place_is_refused(join: str) -> None:
    with pytest.raises(ConfigError, match="names an empty place; leave out the comma"):
        places_of(join)


def test_a_place_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="names gpu1:7000 twice; name each place once"):
        places_of("gpu1:7000, gpu2:7000,gpu1:7000")


def test_a_url_of_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no place of a coordinator"):
        agents_url("ftp://gpu1")


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.json"
    places = places_of(f"@{path}")
    write_sign(path, sign("http://gpu1:7000"))
    assert places() == ("ws://gpu1:7000/v1/agents",)

    write_sign(path, sign("http://gpu2:7000"))

    assert places() == ("ws://gpu2:7000/v1/agents",)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_not_there_or_not_of_a_coordinator_is_looked_at_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "coordinator.json"
    with pytest.raises(FileNotFoundError):
        places_of(f"@{path}")()
    path.write_text('{"url": 7}')
    with pytest.raises(OSError, match="no coordinator has written that"):
        read_sign(path)
