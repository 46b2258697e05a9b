"""Where a script puts its model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import pliant

Have = Callable[[int], None]


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> Have:
    """Let torch see so many accelerators; none: it sees none."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("PLIANT_DEVICE_NAMES", raising=False)

    def seen(number: int) -> None:
        kind = torch.device("xpu") if number else None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: kind)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: number)

    return seen


@pytest.mark.parametrize(
    ("number", "rank", "device"),
    [
        (0, None, "cpu"),
        (0, "1", "cpu"),
        (1, None, "xpu:0"),
        (4, None, "xpu:0"),
        (4, "3", "xpu:3"),
        (1, "3", "xpu:0"),
    ],
)
def test_each_process_of_a_host_has_a_device_of_its_own(
    have: Have, number: int, rank: str | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(number)
    if rank is not None:  # of torchrun
        monkeypatch.setenv("LOCAL_RANK", rank)

    assert pliant.device() == torch.device(device)


def test_who_was_given_cores_is_on_the_cpu(have: Have, monkeypatch: pytest.MonkeyPatch) -> None:
    have(2)
    for given in ("cpu", "cpu:0-3"):
        monkeypatch.setenv("PLIANT_DEVICE_NAMES", given)
        assert pliant.device() == torch.device("cpu")


def test_two_processes_are_not_put_on_one_device(
    have: Have, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(2)
    monkeypatch.setenv("LOCAL_RANK", "2")

    with pytest.raises(pliant.ConfigError, match="process 2 of this host sees 2 xpu devices"):
        pliant.device()
