"""The number of devices follows a file or a trace; what cannot be read is said once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pliant.pool import devices
from pliant.pool.devices import replayed, watched
from pliant.spec.trace import Change

TRACE = [Change(at_s=at, devices=n) for at, n in [(0, 8), (60, 6), (120, 7), (121, 5)]]


async def timed(elapsed_s: float, *, scale: float) -> list[int]:
    return [n async for n in replayed(TRACE, time_scale=scale, elapsed_s=elapsed_s)]


@pytest.mark.parametrize(
    ("elapsed_s", "numbers"),
    [(0.0, [8, 6, 7, 5]), (0.07, [6, 7, 5]), (0.5, [5])],
)
def test_a_trace_is_replayed_from_where_it_was(elapsed_s: float, numbers: list[int]) -> None:
    assert asyncio.run(timed(elapsed_s, scale=1000)) == numbers


def test_a_file_is_followed_and_what_is_no_number_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "LOOK_S", 0.001)
    path = tmp_path / "devices"
    said: list[str] = []
    path.write_text("3\n")

    def complain(sentence: str) -> None:
        said.append(sentence)
        if len(said) == 1:
            path.write_text("12")
        else:
            path.write_text("0")

    async def following() -> list[int]:
        numbers = []
        async for number in watched(path, 8, complain):
            numbers.append(number)
            if number == 3:
                path.write_text("many")
            elif number == 8:
                path.unlink()
            else:
                break
        return numbers

    assert asyncio.run(asyncio.wait_for(following(), 10)) == [3, 8, 0]
    stays = "; the capacity stays as it is"
    assert said == [
        f"{path} holds 'many'; expected a number of devices, such as 8{stays}",
        f"{path} cannot be read: No such file or directory{stays}",
    ]
