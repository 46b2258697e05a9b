"""What devices a host has for a job without a pool."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pliant.core.device_masks import Accelerator
from pliant.core.errors import ConfigError
from pliant.run import host_devices
from pliant.run.host_devices import HostDevices, accelerators_called


@pytest.fixture
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("cuda:GPU-a", "cuda:GPU-b", "xpu:0")
    found = tuple(Accelerator(name=name) for name in names)
    monkeypatch.setattr(host_devices, "visible", lambda environ: found)


def test_a_host_without_accelerators_has_cores_that_workers_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_devices, "visible", lambda environ: ())
    monkeypatch.setattr(host_devices, "count_cores", lambda: 4)
    here = HostDevices.of({})

    assert (here.count(), here.count(9), str(here)) == (4, 9, "4 cores")
    assert here.require(9, "--devices 9") == 9
    assert here.device_name(8) == "", "and nothing confines a worker"


@pytest.mark.usefixtures("two_kinds")
def test_a_host_has_as_many_devices_as_accelerators_of_its_first_kind() -> None:
    here = HostDevices.of({})

    assert (here.count(), here.count(9), str(here)) == (2, 2, "2 accelerators")
    assert here.device_name(1) == "cuda:GPU-b"
    assert HostDevices.of({}, "xpu").names == ("xpu:0",)
    assert here.require(2, "--devices 2") == 2
    with pytest.raises(ConfigError, match="--devices 3: this host has 2 accelerators, each for"):
        here.require(3, "--devices 3")


@pytest.mark.usefixtures("two_kinds")
def test_a_job_can_train_on_the_cpu_beside_accelerators() -> None:
    here = HostDevices.of({}, "cpu")

    assert (here.count(9), here.device_name(8)) == (9, "cpu")


def test_devices_are_described_by_the_names_that_they_were_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Mapping[str, str]] = []

    def look(environ: Mapping[str, str]) -> tuple[Accelerator, ...]:
        seen.append(environ)
        return (Accelerator(name="cuda:1", model="A"),)

    monkeypatch.setattr(host_devices, "visible", look)

    found = accelerators_called(["cuda:1", "cuda:0"], {"CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert found["cuda:1"].model == "A"
    assert accelerators_called(["", ""], {}) == {}

    assert [environ["CUDA_VISIBLE_DEVICES"] for environ in seen] == ["1,0"]


@pytest.mark.usefixtures("two_kinds")
def test_a_kind_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="this host has no such device; it has cpu, cuda, xpu"):
        HostDevices.of({}, "rocm")
