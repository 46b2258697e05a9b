"""What devices are called, and what confines a process to some of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.device_names import confinement, cores_of, hidden_one, kind_of, parse_devices
from pliant.core.errors import ConfigError


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("8", 8),
        ("cuda:0-2", ("cuda:0", "cuda:1", "cuda:2")),
        ("cpu:0-3,4-7", ("cpu:0-3", "cpu:4-7")),
        ("cuda:GPU-3f,1+cpu:2-9", ("cuda:GPU-3f", "cuda:1", "cpu:2-9")),
        ("tpu:a", ("tpu:a",)),
    ],
)
def test_devices_are_a_number_or_a_list(typed: str, found: object) -> None:
    assert parse_devices(typed) == found


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("", "is neither a number nor a list"),
        ("-1", "is neither a number nor a list"),
        ("cuda", "is neither a number nor a list"),
        ("cuda:", "is neither a number nor a list"),
        ("CUDA:0", "is neither a number nor a list"),
        ("cuda:0,0", "cuda 0 is in two devices"),
        ("cpu:0-3,3-4", "cpu 3 is in two devices"),
        ("cpu:3-0", "3-0 ends before it begins"),
        ("cpu:a", "a is neither a core nor cores like 0-3"),
        ("cuda:0-99999", "0-99999 is more than 4096"),
        ("cuda:0,", "'' is no name of a device"),
        ("cuda:a b", "'a b' is no name of a device"),
    ],
)
def test_what_is_neither_is_refused(typed: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_devices(typed)


def test_many_devices_are_each_looked_at_once() -> None:
    ranges = ",".join(f"{first}-{first + 4095}" for first in range(0, 409_600, 4096))

    found = parse_devices(f"cuda:{ranges}")

    assert isinstance(found, tuple)
    assert len(found) == 409_600  # 10^11 comparisons if each were compared with all
    with pytest.raises(ConfigError, match="cuda 0 is in two devices"):
        parse_devices(f"cuda:{'0-4095,' * 100_000}0")  # 25 GB of names


@given(st.text(max_size=30))
def test_whatever_is_typed_is_read_or_refused(typed: str) -> None:
    try:
        found = parse_devices(typed)
    except ConfigError:
        return
    if isinstance(found, tuple):
        assert len(set(found)) == len(found)
        assert all(kind_of(name) for name in found)


def test_a_process_sees_the_accelerators_that_it_has_and_no_others() -> None:
    around = confinement(["cuda:2", "cuda:0"], environ={})

    assert around.cores is None
    assert around.variables["CUDA_VISIBLE_DEVICES"] == "2,0"
    assert around.variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "as nvidia-smi numbers them"
    assert around.variables["HIP_VISIBLE_DEVICES"] == "-1", "empty it shows all"
    assert around.variables["PLIANT_DEVICE_NAMES"] == "cuda:2,cuda:0"
    assert "OMP_NUM_THREADS" not in around.variables


def test_cores_are_counted_unless_the_user_has_said_how_many_threads() -> None:
    both = confinement(["cpu:0-1", "cpu:4"], environ={"OMP_NUM_THREADS": "1"})

    assert both.cores == cores_of(["cpu:0-1", "cpu:4"]) == {0, 1, 4}
    assert both.variables["MKL_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in both.variables
    assert both.variables["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_DEVICE_ORDER" not in both.variables


def test_a_worker_with_cuda_has_a_workspace_that_gives_equal_bits() -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"

    assert confinement(["cuda:0"], environ={}).variables[name] == ":4096:8"
    assert confinement(["cuda:0"], environ={name: ":16:8"}).variables[name] == ":16:8"
    assert name not in confinement(["cpu:0-1"], environ={}).variables


def test_numbers_and_kinds_that_are_not_known_confine_nothing() -> None:
    assert confinement(["", ""], environ={}).variables == {}
    assert confinement(["tpu:a"], environ={}).variables == {"PLIANT_DEVICE_NAMES": "tpu:a"}


@pytest.mark.parametrize(
    ("mask", "names", "is_ordered"),
    [
        (None, ["cuda:0"], True),
        ("2,0", ["cuda:0", "cuda:2"], False),
        ("2,0", ["cuda:3"], True),
        (None, ["cuda:GPU-3f"], False),
        (None, ["cuda:MIG-3f"], False),
    ],
)
def test_numbers_of_the_surroundings_keep_their_order(
    mask: str | None, names: list[str], is_ordered: bool
) -> None:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}

    assert ("CUDA_DEVICE_ORDER" in confinement(names, environ=environ).variables) is is_ordered


def test_workers_of_a_replica_see_all_of_its_accelerators_in_their_order() -> None:
    around = confinement(["cuda:GPU-b", "cuda:GPU-a"], own="cuda:GPU-a", environ={})

    assert around.variables["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert around.variables["PLIANT_DEVICE_NAMES"] == "cuda:GPU-a"


def test_cores_and_parts_are_each_workers_own() -> None:
    on_cores = confinement(["cpu:0-1", "cpu:2-3"], own="cpu:2-3", environ={})
    on_part = confinement(["cuda:MIG-a", "cuda:MIG-b"], own="cuda:MIG-b", environ={})

    assert on_cores.cores == frozenset({2, 3})
    assert on_cores.variables["OMP_NUM_THREADS"] == "2"
    assert on_part.variables["CUDA_VISIBLE_DEVICES"] == "MIG-b", "a process sees one"


def test_whoever_trains_on_the_cpu_sees_no_accelerator() -> None:
    around = confinement(["cpu", "cpu"], own="cpu", environ={})

    assert around.cores is None
    assert around.variables["CUDA_VISIBLE_DEVICES"] == ""
    assert around.variables["PLIANT_DEVICE_NAMES"] == "cpu"
    assert "OMP_NUM_THREADS" not in around.variables


def test_what_the_surroundings_hide_is_told() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "1, GPU-3f"}

    assert hidden_one(["cuda:1", "cuda:GPU-3f", "rocm:0", "cpu:0"], environ) == ""
    assert hidden_one(["cuda:0"], environ) == "cuda:0 is not in CUDA_VISIBLE_DEVICES=1, GPU-3f"
