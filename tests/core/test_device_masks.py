"""What a mask of the surroundings lets a process see."""

from __future__ import annotations

import pytest

from pliant.core.device_masks import Accelerator, unmasked


def _gpu(uuid: str, *parts: str) -> Accelerator:
    inside = tuple(Accelerator(name=f"cuda:{part}", uuid=part, model="part") for part in parts)
    return Accelerator(name=f"cuda:{uuid}", uuid=uuid, model="whole", parts=inside)


FOUR = [_gpu("GPU-8f3a-1"), _gpu("GPU-8f3a-2"), _gpu("GPU-77", "MIG-a1", "MIG-a2"), _gpu("GPU-0")]


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        pytest.param(None, "GPU-8f3a-1 GPU-8f3a-2 MIG-a1 MIG-a2 GPU-0", id="none: UUIDs"),
        pytest.param("2,0", "2 0", id="as it is written"),
        pytest.param(" 1 , 0", "1 0", id="blanks"),
        pytest.param("", "", id="empty"),
        pytest.param("-1", "", id="none by number"),
        pytest.param("0,2,-1,1", "0 2", id="a list ends at what is no device"),
        pytest.param("0,,1", "0", id="and at what is empty"),
        pytest.param("0,9,1", "0", id="and at what is not there"),
        pytest.param("0,0", "", id="twice"),
        pytest.param("GPU-0,GPU-8f3a-2", "GPU-0 GPU-8f3a-2", id="UUIDs"),
        pytest.param("GPU-77,GPU-0", "GPU-77 GPU-0", id="the whole of what is divided"),
        pytest.param("GPU-7", "GPU-7", id="the beginning of one"),
        pytest.param("GPU-8f3a", "", id="the beginning of two"),
        pytest.param("GPU-7,GPU-77", "", id="twice, by other names"),
        pytest.param("GPU-0,1", "GPU-0", id="no number among UUIDs"),
        pytest.param("0,GPU-0", "0", id="no UUID among numbers"),
        pytest.param("MIG-a2,MIG-a1", "MIG-a2 MIG-a1", id="parts"),
        pytest.param("MIG-a2,GPU-0", "MIG-a2", id="no whole among parts"),
        pytest.param("MIG-GPU-77/1/0,MIG-GPU-9/1/0", "MIG-GPU-77/1/0", id="parts, as once"),
    ],
)
def test_what_a_mask_lets_through_is_called_as_it_is_written(mask: str | None, names: str) -> None:
    seen = unmasked(mask, FOUR)

    assert [one.name for one in seen] == [f"cuda:{name}" for name in names.split()]


def test_what_a_number_means_is_known_from_the_order() -> None:
    (one,) = unmasked("MIG-a1", FOUR)
    (other,) = unmasked("1", FOUR)

    assert (one.model, other.uuid) == ("part", "GPU-8f3a-2")
