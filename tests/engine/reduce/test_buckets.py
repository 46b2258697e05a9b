"""Where gradients lie, and how two models are told apart."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pliant.engine.reduce.buckets import Layout, dense_stride, first_difference, leaf_dtype


def a_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 4)
    )


def layout_of(model: torch.nn.Module, extras: int = 0) -> Layout:
    return Layout.of(model.named_parameters(), buffers=model.named_buffers(), extras=extras)


def test_buckets_hold_every_parameter_once_in_reverse_order() -> None:
    model = a_model()

    layout = Layout.of(model.named_parameters(), bucket_bytes=200)

    names = [entry.name for bucket in layout.buckets for entry in bucket.entries]
    assert names == [name for name, _ in model.named_parameters()][::-1]
    assert len(layout.buckets) > 1


def test_sixteen_bit_parameters_have_float32_leaves_and_wide_ones_their_own_buckets() -> None:
    parameters = [
        ("a", torch.empty(4, dtype=torch.bfloat16)),
        ("b", torch.empty(4)),
        ("c", torch.empty(4, dtype=torch.float64)),
        ("d", torch.empty(4, dtype=torch.float16)),
        ("e", torch.empty(4, dtype=torch.complex64)),
    ]

    layout = Layout.of(parameters, extras=3)

    found = {bucket.dtype: [e.name for e in bucket.entries] for bucket in layout.buckets[:-1]}
    assert found == {
        torch.float32: ["d", "b", "a"],
        torch.float64: ["c"],
        torch.complex64: ["e"],
    }
    assert layout.buckets[layout.extras_index].dtype == torch.float64
    assert layout.buckets[layout.extras_index].numel == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_leaves_are_never_narrower_than_float32(dtype: torch.dtype) -> None:
    assert leaf_dtype(dtype).itemsize >= 4


def test_views_keep_the_memory_order_of_channels_last() -> None:
    weight = torch.randn(8, 3, 5, 5).to(memory_format=torch.channels_last)
    (bucket,) = Layout.of([("bias", torch.empty(3)), ("weight", weight)]).buckets
    flat = bucket.empty().zero_()

    view = bucket.views(flat)["weight"]
    view.copy_(weight)

    assert view.stride() == weight.stride()
    assert torch.equal(flat[: weight.numel()], weight.permute(0, 2, 3, 1).reshape(-1))
    assert not flat[weight.numel() :].any()


def test_views_respect_the_offset_of_the_flat_tensor() -> None:
    (bucket,) = Layout.of([("a", torch.empty(2, 3))]).buckets
    memory = torch.arange(10.0)

    assert bucket.views(memory[4:])["a"].tolist() == [[4, 5, 6], [7, 8, 9]]


@given(st.lists(st.lists(st.integers(0, 7), max_size=4), max_size=12), st.integers(4, 400))
def test_entries_tile_their_buckets(shapes: list[list[int]], bucket_bytes: int) -> None:
    parameters = [(str(n), torch.empty(shape)) for n, shape in enumerate(shapes)]

    layout = Layout.of(parameters, bucket_bytes=bucket_bytes)

    for bucket in layout.buckets:
        end = 0
        for entry in bucket.entries:
            assert entry.offset == end
            end += entry.numel
        assert end == bucket.numel
        assert bucket.numel * 4 <= bucket_bytes or len(bucket.entries) == 1
    assert sum(len(bucket.entries) for bucket in layout.buckets) == len(shapes)


def test_gaps_and_overlaps_are_packed() -> None:
    assert dense_stride(torch.empty(4, 6)[:, ::2]) == (3, 1)
    assert (
        dense_stride(torch.empty(4, 1).expand(4, 3))
        == torch.empty_like(torch.empty(4, 1).expand(4, 3)).stride()
    )
    assert dense_stride(torch.empty(4, 6).t()) == (1, 6)


def test_equal_models_have_equal_digests_and_no_difference() -> None:
    one, two = layout_of(a_model(), extras=5), layout_of(a_model(), extras=5)

    assert one.digest == two.digest
    assert first_difference(one.describe(), json.loads(json.dumps(two.describe()))) is None


def test_the_first_difference_is_one_sentence_for_the_user() -> None:
    base = layout_of(a_model())

    def against(other: Layout) -> str | None:
        assert other.digest != base.digest
        return first_difference(other.describe(), json.loads(json.dumps(base.describe())))

    wider = torch.nn.Sequential(*list(a_model().children())[:2], torch.nn.Linear(9, 4))
    assert against(layout_of(wider)) == (
        "parameter '2.weight' is float32 [4, 9] on this worker but float32 [4, 8] on the members"
    )
    longer = torch.nn.Sequential(*a_model().children(), torch.nn.Linear(4, 1, bias=False))
    assert against(layout_of(longer)) == (
        "this worker has a parameter '3.weight' float32 [1, 4] that the members lack"
    )
    assert against(layout_of(a_model().to(torch.bfloat16))) == (
        "parameter '0.weight' is bfloat16 [8, 3, 3, 3] on this worker "
        "but float32 [8, 3, 3, 3] on the members"
    )
    assert against(layout_of(a_model().to(memory_format=torch.channels_last))) == (  # type: ignore[call-overload, unused-ignore]
        "parameter '0.weight' float32 [8, 3, 3, 3] has strides (27, 1, 9, 3) on this worker "
        "but (27, 9, 3, 1) on the members"
    )
    assert against(layout_of(a_model(), extras=1)) == (
        "1 values travel beside the gradients of this worker, but 0 beside those of the members"
    )
    renamed = torch.nn.ModuleDict({"stem": torch.nn.Conv2d(3, 8, 3)})
    assert against(layout_of(renamed)) == (
        "this worker has the parameter 'stem.weight' float32 [8, 3, 3, 3] "
        "where the members have '0.weight' float32 [8, 3, 3, 3]"
    )
