"""Which accelerators of a host get no worker for now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from pliant.machine import accelerators, device_health
from pliant.machine.device_health import DeviceHealth
from pliant.machine.event_loop import cancelled

NAMES = {0: "cuda:GPU-a", 1: "cuda:GPU-b", 2: "cpu:0-3", 3: ""}


def test_what_ails_a_device_is_told_when_it_begins_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hot, hotter = {"cuda:GPU-b": "too hot: 95 C"}, {"cuda:GPU-b": "too hot: 97 C"}
    nobody_answers: dict[str, str] = {}
    said = [nobody_answers, hot, hotter, nobody_answers, {"cuda:GPU-b": ""}]
    asked, told = list[Sequence[str]](), list[tuple[int, dict[str, str], dict[int, str]]]()

    def ailments(names: Sequence[str]) -> dict[str, str]:
        asked.append(names)
        return said[min(len(asked), len(said)) - 1]

    def tell(found: Mapping[str, str]) -> None:
        told.append((len(asked), dict(found), health.ailing))

    async def watch_for_a_while() -> None:
        watching = asyncio.create_task(health.watch())
        while len(asked) <= len(said):
            await asyncio.sleep(0.01)
        await cancelled(watching)

    monkeypatch.setattr(accelerators, "ailments", ailments)
    monkeypatch.setattr(device_health, "LOOK_S", 0.0)
    health = DeviceHealth(NAMES, tell)

    asyncio.run(watch_for_a_while())

    assert {tuple(names) for names in asked} == {("cuda:GPU-a", "cuda:GPU-b")}
    assert told == [(2, hot, {1: "too hot: 95 C"}), (5, {}, {})]


def test_where_no_device_has_a_name_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(accelerators, "ailments")

    asyncio.run(DeviceHealth({0: "", 1: "cpu:0-3"}, lambda found: None).watch())
