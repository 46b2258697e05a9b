"""A register in a ConfigMap: of two who write one wins, and another coordinator is noticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kube.config_maps import NAME, FakeConfigMaps, config_maps

from pliant.coordinator.register import StoredRegister
from pliant.core.errors import ConfigError, ConflictError, RegisterGoneError
from pliant.core.values import Generation, Incarnation, Lineage, Register
from pliant.kube.client import SyncApi
from pliant.kube.connection import cluster_of
from pliant.kube.register import ConfigMapPlace

WAIT_S = 30.0

Open = Callable[[], ConfigMapPlace]


@pytest.fixture
def served() -> Iterator[FakeConfigMaps]:
    with config_maps() as found:
        yield found


@pytest.fixture
def place_of(served: FakeConfigMaps, tmp_path: Path) -> Iterator[Open]:
    opened: list[ConfigMapPlace] = []

    def open_place() -> ConfigMapPlace:
        cluster = cluster_of(served.kubeconfig(tmp_path))
        opened.append(ConfigMapPlace(SyncApi(cluster), NAME))
        return opened[-1]

    yield open_place
    served.stop()
    for place in opened:
        place.close()


def wait_for(place: ConfigMapPlace, expected: object) -> None:
    """Wait until the watch says this: whether something may have changed, or why nobody knows."""
    until_s = time.monotonic() + WAIT_S
    while (found := _said(place)) != expected:
        assert time.monotonic() < until_s, found
        time.sleep(0.02)


def _said(place: ConfigMapPlace) -> object:
    try:
        return place.may_have_changed()
    except OSError:
        return OSError


def test_what_is_as_expected_is_replaced_and_nothing_else_of_the_object(
    served: FakeConfigMaps, place_of: Open
) -> None:
    one, other = place_of(), place_of()

    assert one.read() is None
    assert one.exchange(b"1", expected=None)
    assert not other.exchange(b"2", expected=None)
    assert other.exchange(b"2", expected=b"1")
    assert not one.exchange(b"3", expected=b"1")
    assert one.read() == other.read() == b"2"
    assert served.body is not None
    assert served.body["metadata"]["labels"] == {"pliant.dev/job": "job"}


def test_a_change_of_something_else_is_no_conflict(served: FakeConfigMaps, place_of: Open) -> None:
    """The operator applies labels; to the register that is no other coordinator."""
    place = place_of()
    assert place.read() is None

    served.label(changed="yes")

    assert place.exchange(b"1", expected=None)
    assert served.body is not None
    assert served.body["metadata"]["labels"] == {"changed": "yes"}


def test_a_coordinator_that_was_overtaken_is_fenced(served: FakeConfigMaps, place_of: Open) -> None:
    old, new = (StoredRegister(place_of()) for _ in range(2))
    first, second = (
        Register(incarnation=Incarnation(n), number=Generation(1), lineage=Lineage(1))
        for n in (1, 2)
    )
    old.write(first, expected=None)
    new.write(second, expected=new.read())

    with pytest.raises(ConflictError, match="now that of incarnation 2"):
        old.write(replace(first, number=Generation(2)), expected=first)
    served.remove()
    with pytest.raises(RegisterGoneError):
        new.confirm(second)


def test_nobody_is_asked_until_another_has_written(served: FakeConfigMaps, place_of: Open) -> None:
    own, other = place_of(), place_of()
    assert own.read() is None
    own.watch()
    wait_for(own, False)
    assert own.exchange(b"1", expected=None)
    own.read()
    wait_for(own, False)
    before = len(served.asked)
    time.sleep(0.5)
    assert (own.may_have_changed(), len(served.asked)) == (False, before)

    assert other.exchange(b"2", expected=b"1")

    wait_for(own, True)


def test_that_the_api_server_is_away_is_known_without_asking(
    served: FakeConfigMaps, place_of: Open
) -> None:
    place = place_of()
    place.read()
    place.watch()
    wait_for(place, False)

    served.stop()
    wait_for(place, OSError)
    with pytest.raises(OSError, match="ConfigMap team-a"):
        place.exchange(b"1", expected=None)
    served.come_back()
    place.read()

    wait_for(place, False)


def test_an_object_that_nobody_has_made_is_refused(served: FakeConfigMaps, place_of: Open) -> None:
    served.remove()

    with pytest.raises(ConfigError, match="there is no ConfigMap team-a/job-register"):
        place_of().uid()
