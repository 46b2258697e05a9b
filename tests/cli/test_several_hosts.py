"""One command on every host: who coordinates, and what the others do."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from pliant.agent.node_facts import GRACE_S
from pliant.cli import run_commands, several_hosts
from pliant.cli.arguments import seconds
from pliant.cli.job_file import WhatToRun
from pliant.cli.settings import Settings, resolve
from pliant.cli.several_hosts import (
    address_of,
    bounds_of,
    directory_of,
    joining,
    replicas_on,
    run_on_several,
    take_part,
)
from pliant.core.device_masks import Accelerator
from pliant.core.errors import ConfigError
from pliant.machine.interfaces import place_of
from pliant.run import host_devices
from pliant.run.register_location import CoordinatorSign, write_sign

WHAT = WhatToRun(words=["train.py"])


def settings(**given: Any) -> Settings:
    token = {"token_file": Path("job.token")}
    return resolve({"join": "127.0.0.1:7341", **token, **given}, {}, None)


@pytest.mark.parametrize(
    ("nodes", "low", "high"), [("2:8", 1, 4), ("4", 2, 2), ("3:7", 1, 3), ("5:5", 2, 2)]
)
def test_a_host_that_is_a_part_of_a_replica_is_counted_as_one(
    nodes: str, low: int, high: int
) -> None:
    """As torchrun counts; one that is left over waits for another."""
    given = settings(nnodes=nodes, hosts_per_replica=2, workers_per_replica=8)

    found = bounds_of(given, replicas_on(9, 8, 2), 2)

    assert (found["min_replicas"].value, found["max_replicas"].value) == (2 * low, 2 * high)


@pytest.mark.parametrize(
    ("nodes", "devices", "bounds"),
    [("2:8", 1, (2, 8)), ("2:8", 4, (8, 32)), ("3", 2, (6, 6))],
)
def test_numbers_of_hosts_are_the_bounds_of_the_policy(
    nodes: str, devices: int, bounds: tuple[int, int]
) -> None:
    found = bounds_of(settings(nnodes=nodes), devices)

    assert (found["min_replicas"].value, found["max_replicas"].value) == bounds
    assert bounds_of(settings(), devices) == {}


@pytest.mark.parametrize("nodes", ["0", "3:2", "a:b", "2:", ":2", "1:2:3", "-1"])
def test_what_is_no_number_of_hosts_is_refused(nodes: str) -> None:
    with pytest.raises(ConfigError, match="is neither MIN nor MIN:MAX"):
        bounds_of(settings(nnodes=nodes), 1)


def test_replicas_of_a_host_are_reached_where_the_coordinator_is_found() -> None:
    here = joining(settings(), {})

    assert (here.address, here.agent.address) == ("127.0.0.1", "127.0.0.1")
    assert joining(settings(interface="lo"), {}).agent.address in ("127.0.0.1", "::1")


def test_a_host_that_joins_has_its_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(Accelerator(name=f"cuda:GPU-{uuid}") for uuid in "ab")
    monkeypatch.setattr(host_devices, "visible", lambda environ: gpus)

    on_gpus = joining(settings(), {}).agent
    on_cores = joining(settings(kind="cpu", devices_per_node=8), {}).agent

    assert (on_gpus.devices, on_gpus.of_pool(1)) == (2, (None, "cuda:GPU-b"))
    assert (on_cores.devices, on_cores.of_pool(7)) == (8, (None, "cpu"))
    with pytest.raises(ConfigError, match="--devices-per-node 3: this host has 2 accelerators"):
        joining(settings(devices_per_node=3), {})


@pytest.mark.parametrize(
    ("join", "place"),
    [
        ("gpu1:7000", ("gpu1", 7000)),
        ("https://gpu1:7443/job", ("gpu1", 7443)),
        ("wss://[fd00::1]", ("fd00::1", None)),
    ],
)
def test_a_coordinator_is_named_by_place_or_url(join: str, place: tuple[str, int | None]) -> None:
    assert place_of(join) == place


def test_who_joins_waits_for_the_token_and_then_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_hosts, "TOKEN_S", 0.3)
    here = joining(settings(token_file=tmp_path / "job.token"), {})

    with pytest.raises(ConfigError, match=r"job\.token is not there; copy it from the host that"):
        take_part(here, WHAT, {})


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def test_who_finds_the_address_taken_joins(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[several_hosts.Joining] = []

    def join(here: several_hosts.Joining, *_: object) -> int:
        joined.append(here)
        return 7

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(several_hosts, "take_part", join)

    code = run_on_several(WHAT, settings(join=f"127.0.0.1:{taken}"), {}, as_json=False)

    assert code == 7
    assert [one.port for one in joined] == [taken]
    agent = joined[0].agent_of(WHAT, {})
    assert (agent.asked, agent.asked_workers, agent.asked_hosts) == (tuple(WHAT.words), 1, 1)
    assert list(tmp_path.iterdir()) == []


def began(out: str, at_s: float, job: str, *command: str, exit_code: int | None = None) -> None:
    """Write the log of a run whose coordinator was killed, or has ended."""
    records = [{"kind": "job_started", "at": 1.0, "job": job, "command": command}]
    if exit_code is not None:
        records.append({"kind": "job_ended", "at": 2.0, "exit_code": exit_code, "reason": ""})
    path = Path("runs", out, "events.jsonl")
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    os.utime(path, (at_s, at_s))


def test_who_is_started_again_follows_the_run_of_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    began("train", 1, "train", "train.py", "250")

    assert directory_of(settings(), ["train.py", "250"]) == Path("runs/train")
    assert directory_of(settings(), ["train.py", "600"]) is None
    assert directory_of(settings(name="other"), ["train.py", "250"]) is None

    began("train-2", 2, "train-2", "train.py", "250")
    assert directory_of(settings(), ["train.py", "250"]) == Path("runs/train")

    began("train-3", 3, "train", "train.py", "250", exit_code=0)
    assert directory_of(settings(), ["train.py", "250"]) is None


def test_a_coordinator_is_found_at_the_first_place_that_this_host_knows(tmp_path: Path) -> None:
    """Who is gone need not be known any more."""
    path = tmp_path / "coordinator.json"
    write_sign(path, CoordinatorSign(url="http://127.0.0.3:7000", incarnation=1))

    assert address_of("gone.invalid:7000,127.0.0.2:7000") == "127.0.0.2"
    assert address_of(f"@{path}") == "127.0.0.3"
    with pytest.raises(ConfigError, match="no host of this name is known here"):
        address_of("gone.invalid:7000,gone.invalid:7001")


def test_a_file_that_no_coordinator_has_written_is_waited_for_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_hosts, "TOKEN_S", 0.3)
    path = tmp_path / "coordinator.json"

    with pytest.raises(ConfigError, match="there is no such file; it is the"):
        address_of(f"@{path}")
    path.write_text("{}")
    with pytest.raises(ConfigError, match="no coordinator has written that"):
        address_of(f"@{path}")


@pytest.mark.parametrize(("given", "grace_s"), [(None, GRACE_S), ("1m", 60.0), ("0", 0.0)])
def test_the_agent_of_a_host_that_joins_has_the_grace_that_was_given(
    given: str | None, grace_s: float
) -> None:
    """As that of ``pliant agent``, with the same time unless it is told another."""
    here = joining(settings(grace=given), {})

    assert here.agent_of(WHAT, {}).grace_s == grace_s
    assert seconds("--grace", signature(run_commands.agent).parameters["grace"].default) == GRACE_S


def test_a_grace_that_is_no_time_is_refused_where_it_was_given() -> None:
    with pytest.raises(ConfigError, match="--grace 'soon' is no duration"):
        joining(settings(grace="soon"), {})


def test_the_first_of_several_places_coordinates_and_all_others_join(tmp_path: Path) -> None:
    sign = tmp_path / "coordinator.json"
    write_sign(sign, CoordinatorSign(url="http://127.0.0.1:7000", incarnation=1))

    first = joining(settings(join="127.0.0.2:7341,gone.invalid:7000"), {})
    second = joining(settings(join="127.0.0.1:7000,127.0.0.2:7341"), {})
    other = joining(settings(join="gone.invalid:7000,127.0.0.2:7341"), {})

    assert (first.host, first.address, first.port) == ("127.0.0.2", "127.0.0.2", 7341)
    assert (second.host, second.port) == ("127.0.0.1", 7000)
    assert (other.host, other.address, other.port) == ("", "127.0.0.2", 0)
    assert not joining(settings(join=f"@{sign}"), {}).host
