"""What is enough of a host, and what to do where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pliant.core.device_masks import Accelerator
from pliant.core.host_checks import CoordinatorLook, HostLook, NodeLook, Verdict, findings

FIT = HostLook(
    python=(3, 13, 1),
    torch="2.13.0",
    address="10.0.0.1 (eth0)",
    cores=4,
    shm_bytes=8 << 30,
    disk_bytes=100 << 30,
    directory="/home/a",
    files=20_000,
    processes=4096,
    coordinators=(
        CoordinatorLook(place="gpu1:7000", answer_s=0.002, token="taken", clock_ahead_s=-300.0),
    ),
)
GPUS = tuple(
    Accelerator(name=f"cuda:{at}", model="NVIDIA H200", memory_bytes=140 << 30) for at in range(2)
)
AWAY = CoordinatorLook(place="gpu1:7000", obstacle="no answer within 3 s")
UNPROVED = CoordinatorLook(
    place="gpu1:7000", obstacle="c.pem holds no certificate in PEM form", is_about_files=True
)
NO_TOKEN = CoordinatorLook(place="gpu1:7000")


def test_of_a_host_that_is_fit_nothing_is_to_be_done_but_for_its_clock() -> None:
    found = findings(FIT)

    assert [one.name for one in found if one.verdict is not Verdict.OK] == ["clock"]
    assert [one.found for one in found] == [
        "3.13.1",
        "2.13.0",
        "10.0.0.1 (eth0)",
        "300 s behind the coordinator's",
        "8 GB free",
        "20000",
        "4096",
        "/home/a: 100 GB free",
        "gpu1:7000 answers within 2 ms, and the token is taken",
    ]


@pytest.mark.parametrize("ahead_s", [-1.9, 0.0, 1.9])
def test_an_answer_that_tells_its_time_in_seconds_makes_no_clock_wrong(ahead_s: float) -> None:
    (coordinator,) = FIT.coordinators
    look = replace(FIT, coordinators=(replace(coordinator, clock_ahead_s=ahead_s),))

    (clock,) = [one for one in findings(look) if one.name == "clock"]

    assert (clock.found, clock.verdict) == ("as the coordinator's, to 2 s", Verdict.OK)


@pytest.mark.parametrize(
    ("change", "name", "verdict", "do"),
    [
        ({"torch": "", "torch_obstacle": "No module"}, "torch", "obstacle", "pip install"),
        ({"address_obstacle": "this host has no way"}, "interface", "obstacle", "--interface"),
        ({"port_obstacle": "10.0.0.1 cannot be"}, "ports", "obstacle", "firewall"),
        ({"shm_bytes": 64 << 20}, "/dev/shm", "caution", "--shm-size"),
        ({"shm_bytes": None}, "/dev/shm", "caution", "mount a tmpfs"),
        ({"files": 256}, "open files", "obstacle", "ulimit -n 8192"),
        ({"processes": 20}, "processes", "obstacle", "ulimit -u"),
        ({"directory_obstacle": "/ cannot be"}, "directory", "obstacle", "may write to"),
        ({"disk_bytes": 1 << 20}, "directory", "caution", "make room"),
        ({"coordinators": (AWAY,)}, "coordinator", "obstacle", "open its port for this host"),
        ({"coordinators": (UNPROVED,)}, "coordinator", "obstacle", "give files of TLS that fit"),
        ({"coordinators": (NO_TOKEN,)}, "coordinator", "caution", "--token-file"),
        (
            {"coordinators": (replace(NO_TOKEN, token="refused"),)},
            "coordinator",
            "obstacle",
            "copy the token file of the coordinator anew",
        ),
    ],
)
def test_each_thing_that_is_missing_is_named_with_what_to_do(
    change: dict[str, Any], name: str, verdict: str, do: str
) -> None:
    at_ease = replace(FIT, coordinators=())

    (found,) = [
        one for one in findings(replace(at_ease, **change)) if one.verdict is not Verdict.OK
    ]

    assert (found.name, found.verdict) == (name, verdict)
    assert do in found.do


def test_what_has_no_limit_or_is_not_known_is_no_obstacle() -> None:
    look = replace(FIT, coordinators=(), files=None, processes=None, disk_bytes=None)

    assert all(one.verdict is Verdict.OK for one in findings(look))


def test_of_several_places_one_that_serves_is_enough() -> None:
    """Who may coordinate and does not now listens nowhere."""
    away = replace(AWAY, place="gpu2:7000")

    one = findings(replace(FIT, coordinators=(away, *FIT.coordinators)))
    none = findings(replace(FIT, coordinators=(away, AWAY)))

    told = [each.found for each in one if each.name == "coordinator"]
    assert told[0] == "gpu2:7000: no answer within 3 s; it is not needed now"
    assert told[1].endswith("the token is taken")
    assert all(each.verdict is Verdict.OK for each in one if each.name == "coordinator")
    assert [each.verdict for each in none if each.name == "coordinator"] == 2 * ["obstacle"]


def test_of_the_other_hosts_those_are_named_that_are_not_reached() -> None:
    near = NodeLook(name="b", address="10.0.0.2")
    away = NodeLook(name="c", address="10.0.0.3", obstacle="no answer within 3 s")

    (fit,) = [one for one in findings(replace(FIT, nodes=(near,))) if one.name == "other hosts"]
    (bad,) = [
        one for one in findings(replace(FIT, nodes=(near, away))) if one.name == "other hosts"
    ]

    assert (fit.verdict, fit.found) == ("ok", "b: reached")
    assert (bad.verdict, bad.found) == ("obstacle", "c (10.0.0.3): no answer within 3 s")
    assert bad.do.startswith("let the hosts reach each other")


def test_an_accelerator_that_is_not_healthy_is_a_caution() -> None:
    look = replace(FIT, accelerators=GPUS, ailments={"cuda:1": "it is too hot"})

    first, second = (one for one in findings(look) if one.name.startswith("cuda:"))

    assert (first.verdict, first.do) == (Verdict.OK, "")
    assert first.found == "NVIDIA H200, 140 GB"
    assert second.verdict is Verdict.CAUTION
    assert second.found == "NVIDIA H200, 140 GB, it is too hot"
